"""`podium runs`: list runs, and show one in full."""

import time
from collections.abc import Sequence
from pathlib import Path

import click

from flows.commands import options
from flows.commands.project import enter_project
from flows.runs import listing, run_params
from ipu_model.core.units import format_bytes, format_count, format_duration
from tasks.params.schema import default_values
from tasks.params.strict_yaml import read_yaml
from tasks.params.tables import format_table
from tasks.plan.dvc_records import find_cache
from tasks.stage import artifacts, streams

WIDEST_COMMAND = 60


class _RunCommands(click.Group):
    """Command group that lists runs by default, so that `podium runs WORD` works."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        known = [*self.commands, *ctx.help_option_names]
        return super().parse_args(ctx, args if args and args[0] in known else ["list", *args])


@click.group(cls=_RunCommands, help="List runs, their results and disk use. The default command is list.")
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
    every = listing.list_all(project)
    found = listing.filter_runs(every, words, statuses)
    fix_pages(project, found)
    if as_json:
        options.print_json([run.as_values() for run in found])
        return
    if not found:
        streams.say("no runs yet\n" if not (words or statuses) else "no matching runs\n")
        options.print_next("podium run starts one; --name gives it a name")
        return
    sizes = [run.size().own for run in found]
    changes, now = listing.find_changes(every), time.time()
    rows = [("name", "status", "score", "change", "duration", "age", "size", "command")]
    for run, size in zip(found, sizes, strict=True):
        line = (run.record and run.record.command) or "-"
        shown = line if len(line) <= WIDEST_COMMAND else f"{line[: WIDEST_COMMAND - 1]}…"
        score = run.record.leading_score if run.record is not None else None
        rows.append(
            (
                *(run.name, run.status_text, "-" if score is None else listing.format_score(score)),
                changes[run.name].text if run.name in changes else "-",
                "-" if run.seconds is None else format_duration(run.seconds),
                *(listing.format_age(now - run.began), format_bytes(size), shown),
            )
        )
    streams.say(options.truncate_lines(format_table(rows)))
    cache = format_bytes(sum(vars(listing.measure_disk([find_cache(project)])).values()))
    streams.say(f"{format_count(len(found), 'runs')}, {format_bytes(sum(sizes))}; shared DVC cache, {cache}\n")
    options.print_next(f"podium runs show {found[0].name}, or podium clean to see what can be removed")


def fix_pages(project: Path, found: Sequence[listing.Run]) -> None:
    """Correct the pages of runs that were killed, which still show them as running."""
    killed = [run for run in found if run.was_killed]
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
    differ = {parameter: {"base": there, "run": here} for parameter, (there, here) in rows}
    values = {**run.as_values(), "record": run.record and run.record.as_values(), "parameters": differ}
    origin = "the defaults" if of_preset else str(artifacts.PARAMS)
    text = "" if as_json else run_view.format_run(run, project, origin, rows)
    options.print_result(as_json, values, text, f"podium compare {name} OTHER, or podium clean {name}")
