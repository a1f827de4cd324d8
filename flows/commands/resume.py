"""`podium resume`: continue a run that stopped, failed, was paused or was killed."""

import click

from flows.commands import options, run
from flows.commands.project import enter_project
from flows.runs import listing, report
from flows.runs.run_options import RECORDED, RunOptions
from flows.runs.run_params import read_run_params, require_known_params
from flows.runs.run_request import resolve_request
from tasks.stage import streams
from tasks.stage.errors import DONE, REJECTED, InputError


@click.command(
    help="Continue a run that stopped, failed, was paused or was killed, with the parameters and options it was "
    "started with. Completed stages are not repeated, and training continues from its last checkpoint."
)
@click.argument("name", metavar="RUN", shell_complete=options.complete_runs)
@options.json_option
@options.verbose_option
@click.pass_context
def command(ctx: click.Context, name: str, as_json: bool, verbose: bool) -> None:
    project = enter_project(ctx)
    [stopped] = listing.find_runs(project, [name])
    record = _require_started(stopped)
    if stopped.status not in report.UNFINISHED:
        streams.note(f"run {name} is {stopped.status}: there is nothing to resume", "")
        options.print_next(f"podium run --like {name} --set ... starts a new run from it; podium open {name} shows it")
        raise SystemExit(REJECTED if stopped.status == "rejected" else DONE)
    require_known_params(project, stopped)
    run_name = None if name == listing.PROJECT else name
    recorded = {name: value for name, value in record.options.items() if name in RECORDED}
    asked = RunOptions(record.preset, record.overrides, run_name, command=record.command, **recorded)
    run.execute_run(resolve_request(project, asked, read_run_params(project, stopped.folder)), as_json, verbose)


def _require_started(stopped: listing.Run) -> report.RunReport:
    """Return the record of a run that is not running; it must state the options that the run was started with.

    Raises:
        InputError: the run is running, never started, or its record is from an older version.
    """
    name, record = stopped.name, stopped.record
    if stopped.at_work:
        raise InputError(f"run {name} is running: podium open {name} shows its progress")
    if record is None:
        again = "podium run" if name == listing.PROJECT else f"podium run --like {name} --name {name}"
        raise InputError(
            f"run {name} never started, so its options are not known: {again} starts it; add --part, --to or "
            "--no-publish if it had them"
        )
    if record.began is None and record.error is not None:
        raise InputError(record.error)
    if stopped.status in report.UNFINISHED and (not record.options or record.options.get("queues")):
        raise InputError(
            f"an older version of Podium started run {name} and recorded its options otherwise: repeat its command, "
            f"{record.command or 'podium run'}"
        )
    return record
