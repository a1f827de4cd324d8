"""`podium gate`: decide again whether the model of a finished run may be released, with other limits.

Only the gate runs. DVC must find every stage before it unchanged, and each file that the gate reads must have the bytes
that its stage wrote, so that no decision rests on another model, other data or edited scores.
"""

import contextlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from flows.commands import options, publish
from flows.commands.project import enter_project
from flows.dvc import releases
from flows.dvc.engine import Engine
from flows.dvc.session import PlanStatus
from flows.runs import listing, locks, report, run_params
from flows.runs.next_step import suggest_next
from flows.runs.stopping import RunFailed
from flows.views.screen import print_end
from ipu_model.core.strict import nearest
from tasks.params.overlays import Setting, read_setting, replace_overrides
from tasks.plan.dvc_records import find_gate_damage
from tasks.plan.plan_file import read_plan
from tasks.stage import artifacts, streams
from tasks.stage.errors import InputError, ParamsError

NEEDED = ("released", "seeds")
"""Parameters of a gate that name other evidence, from stages before it."""


@click.command(
    help="Decide again whether the model of the finished run RUN may be released, with other limits. Only the gate "
    "runs, which takes seconds. Nothing is published: podium publish RUN does that. Exit code 3 if rejected."
)
@click.argument("name", metavar="RUN", shell_complete=options.complete_runs)
@click.option(
    "--set",
    "overrides",
    multiple=True,
    metavar="KEY=VALUE",
    help="a limit of the gate, such as min_accuracy=80 or downstream.NAME.gate.min_accuracy=80; repeatable",
)
@click.option("--entry", metavar="NAME", help="entry whose limits are set, if the run has several")
@options.json_option
@click.pass_context
def command(ctx: click.Context, name: str, overrides: tuple[str, ...], entry: str | None, as_json: bool) -> None:
    project = enter_project(ctx)
    [run] = listing.find_runs(project, [name])
    if name == listing.PROJECT:
        raise ParamsError(f"run {name} has its limits in {artifacts.PARAMS}: change them there, then podium run")
    if run.at_work:
        raise InputError(f"run {name} is running: wait until it ends")
    if run.record is None or run.status not in listing.FINISHED:
        raise InputError(f"run {name} is {run.status}: podium resume {name} finishes it")
    run_params.require_known_params(project, run)
    to_json = contextlib.redirect_stdout(sys.stderr) if as_json else contextlib.nullcontext()
    with to_json, locks.hold_run(project, name, streams.note):
        limits = _read_limits(run, run.record, overrides, entry)
        try:
            decided = _decide(project, run, run.record, limits)
        except RunFailed as error:
            raise InputError(str(error)) from None
        code = print_end(decided, [])
    if as_json:
        options.print_json(decided.as_values())
    else:
        options.print_next(suggest_next(decided) if code else f"podium publish {name} releases the accepted model")
    if code:
        raise SystemExit(code)


def _read_limits(
    run: listing.Run, record: report.RunReport, overrides: Sequence[str], entry: str | None
) -> list[Setting]:
    """Return the overrides with the full names of their parameters.

    Raises:
        ParamsError: a short name fits several entries, or a parameter is not a limit of a gate of the run.
    """
    entries = [gate.partition("@")[2] for gate in record.results]
    if not entries:
        raise InputError(f"run {run.name} has no gate, so there is nothing to decide")
    if entry is not None and entry not in entries:
        raise ParamsError(f"--entry {entry} not found{nearest(entry, entries)}")
    settings = []
    for text in overrides:
        setting = read_setting(text)
        name = setting.name
        if not name.startswith("downstream."):
            if entry is None and len(entries) > 1:
                raise ParamsError(
                    f"--set {text} fits several entries ({', '.join(entries)}): name one with --entry, or "
                    f"downstream.{entries[0]}.gate.{text}"
                )
            name = f"downstream.{entry or entries[0]}.gate.{name.removeprefix('gate.')}"
        _, owner, section, key = f"{name}...".split(".")[:4]
        if owner not in entries or section != "gate" or key in NEEDED:
            raise ParamsError(
                f"--set {text} is not a limit of a gate of run {run.name}: podium run --like {run.name} --set "
                f"{text} starts a run with it"
            )
        settings.append(Setting(name, setting.value, setting.option))
    return settings


def _decide(project: Path, run: listing.Run, record: report.RunReport, limits: Sequence[Setting]) -> report.RunReport:
    """Write the limits into the parameters of a run, run its gates, and record their decisions.

    Raises:
        InputError: a stage before a gate is not up to date, or a file that a gate reads was changed.
        RunFailed: a gate failed; the run keeps its limits, and has no decision until the gate runs again.
    """
    root, gates = run.folder, list(record.results)
    plan = read_plan(root)
    upstream = [stage for stage in plan.with_upstream(gates) if stage not in gates]
    releases.fetch_releases(upstream, root, streams.say_line, unchanged=upstream)
    receipts = {gate: result["published"] for gate, result in record.results.items()}
    with Engine(root, record) as engine:
        unchanged = engine.session.check_plan(upstream).unchanged
        if unchanged != upstream:
            raise InputError(
                f"run {run.name} is not up to date: {upstream[len(unchanged)]} would run again, so the gate would "
                f"decide on old results. podium run --like {run.name} --name {run.name} updates it"
            )
        if damaged := find_gate_damage(gates, root):
            raise InputError("\n".join(damaged))
        with run_params.change_params(project, run, limits) as values:
            engine.bring(gates, PlanStatus([], True))
    _record_decision(project, root, record, values, limits, receipts)
    return record


def _record_decision(
    project: Path,
    root: Path,
    record: report.RunReport,
    values: dict[str, Any],
    limits: Sequence[Setting],
    receipts: dict[str, Any],
) -> None:
    """Write the decisions of a run's gates and its new parameters into its record and pages."""
    from flows.views.index_page import describe_parameters  # slow to import

    for gate, receipt in receipts.items():
        record.results[gate]["published"] = receipt
        if receipt is not None and not record.accepts(gate):
            streams.note(f"what was published before stays there: {report.release_location(receipt)}")
    record.overrides = replace_overrides(record.overrides, list(map(str, limits)))
    record.details |= describe_parameters(values)
    publish.write_record(record, project, root)
