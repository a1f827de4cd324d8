"""`podium runs`: list runs, and show one in full."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import click

from flows.commands import options
from flows.commands.project import enter_project
from flows.runs import listing, run_params
from flows.views.sweep_plots import SweepView, read_sweeps
from ipu_model.core.strict import nearest
from ipu_model.core.units import format_bytes, format_count, format_duration
from tasks.params.schema import default_values
from tasks.params.strict_yaml import read_yaml
from tasks.params.tables import format_table
from tasks.plan.dvc_records import find_cache
from tasks.stage import artifacts, streams

WIDEST_COMMAND = 60


@click.group(cls=options.ListByDefault, help="List runs, their results and disk use. The default command is list.")
def command() -> None:
    pass


@command.command(
    "list",
    help="List runs, newest first. WORDS filter them: each must occur in the name, command, status or entries.",
    epilog="size: disk blocks that only this run uses. Files linked to DVC's cache are counted there, once for all "
    "runs.",
)
@click.argument("words", nargs=-1)
@click.option("--status", "statuses", multiple=True, type=click.Choice(listing.STATUSES), help="filter; repeatable")
@click.option("--page", is_flag=True, help="write all runs as a page to sort and filter, reports/index.html")
@options.json_option
@click.pass_context
def list_runs(ctx: click.Context, words: tuple[str, ...], statuses: tuple[str, ...], page: bool, as_json: bool) -> None:
    project = enter_project(ctx)
    if page:
        from flows.views import index_page  # slow to import

        if words or statuses or as_json:
            raise click.UsageError("--page always writes all runs: filter them on the page", ctx)
        fix_pages(project, listing.list_all(project))
        index_page.write_index(project)
        streams.say(f"{artifacts.INDEX_PAGE}\n")
        return
    every = listing.list_shown(project)
    shown = listing.filter_runs(every, words, statuses)
    fix_pages(project, shown)
    if as_json:
        options.print_json([run.as_values() for run in shown])
        return
    if not shown:
        known = [*listing.STATUSES, *(text for run in every for text in (run.name, *run.scores))]
        near = "".join(nearest(word, known, "") for word in words if not listing.filter_runs(every, [word], ()))
        streams.say(f"no matching runs{near}\n" if words or statuses else "no runs yet\n")
        options.print_next("podium run starts one; --name gives it a name")
        return
    sizes = {run.name: run.size().own for run in shown}
    rows = _list_rows(shown, sizes, listing.find_changes(every), read_sweeps(project))
    streams.say(options.truncate_lines(format_table(rows)))
    cache = format_bytes(sum(vars(listing.measure_disk([find_cache(project)])).values()))
    streams.say(f"{format_count(len(shown), 'runs')}, {format_bytes(sum(sizes.values()))}; shared DVC cache, {cache}\n")
    options.print_next(f"podium runs show {shown[0].name}, or podium clean to see what can be removed")


def _list_rows(
    listed: Sequence[listing.Run],
    sizes: Mapping[str, int],
    changes: Mapping[str, listing.ScoreChange],
    sweeps: Sequence[SweepView],
) -> list[tuple[str, ...]]:
    """Return the rows of the table of runs, newest first; the trials of a sweep are below a row of the sweep."""
    now, owners = time.time(), {trial["name"]: sweep for sweep in sweeps for trial in sweep.trials}
    rows: list[tuple[str, ...]] = [("name", "status", "score", "change", "duration", "age", "size", "command")]

    def add(name: str, status: str, score: str, change: str, runs: Sequence[listing.Run], command: str | None) -> None:
        seconds = [run.seconds for run in runs if run.seconds is not None]
        line = command or "-"
        rows.append(
            (
                *(name, status, score, change, format_duration(sum(seconds)) if seconds else "-"),
                listing.format_age(now - max(run.began for run in runs)),
                format_bytes(sum(sizes[run.name] for run in runs)),
                line if len(line) <= WIDEST_COMMAND else f"{line[: WIDEST_COMMAND - 1]}…",
            )
        )

    shown = set[str]()
    for first in listed:
        sweep = owners.get(first.name)
        together = [first] if sweep is None else [run for run in listed if owners.get(run.name) is sweep]
        if first.name in shown:
            continue
        shown |= {run.name for run in together}
        if sweep is not None:
            best = f"best {sweep.describe(sweep.best)}" if sweep.best else "-"
            add(sweep.name, format_count(len(sweep.trials), "trials"), best, "-", together, _command_of(first))
        for run in together:
            score = run.record.leading_score if run.record is not None else None
            held_out = "-" if sweep is None else sweep.describe(run.name)
            text = held_out if score is None else listing.format_score(score)
            change = changes[run.name].text if run.name in changes else "-"
            command = _command_of(run) if sweep is None else None
            add("  " * (sweep is not None) + run.name, run.status_text, text, change, [run], command)
    return rows


def _command_of(run: listing.Run) -> str | None:
    return None if run.record is None else run.record.command


def fix_pages(project: Path, shown: Sequence[listing.Run]) -> None:
    """Correct the pages of runs that were killed, which still show them as running."""
    killed = [run for run in shown if run.was_killed]
    if killed:
        from flows.views import run_page  # slow to import

        for run in killed:
            run_page.correct_killed(project, run)


@command.command(
    "show",
    help="Show one run in full: parameters, stages and their times, scores with intervals, gate decisions, file paths.",
)
@click.argument("name", shell_complete=options.complete_runs)
@options.json_option
@click.pass_context
def show_run(ctx: click.Context, name: str, as_json: bool) -> None:
    from flows.views import run_view

    project = enter_project(ctx)
    [run] = listing.find_runs(project, [name])
    fix_pages(project, [run])
    # Compare with params.yaml, or for a preset with the defaults; entries missing there with those of their kind.
    of_preset = run.record is not None and run.record.preset is not None
    base = default_values() if of_preset else read_yaml(project / artifacts.PARAMS)
    rows = run_params.diff_params(base, run_params.read_run_params(project, run.folder))
    differ = {parameter: {"base": base_value, "run": run_value} for parameter, (base_value, run_value) in rows}
    values = {**run.as_values(), "record": run.record and run.record.as_values(), "parameters": differ}
    origin = "the defaults" if of_preset else str(artifacts.PARAMS)
    text = "" if as_json else run_view.format_run(run, project, origin, rows)
    options.print_result(as_json, values, text, f"podium compare {name} OTHER, or podium clean {name}")
