"""`podium run`: run the pipeline, from the corpus to the published model."""

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from flows import dvc
from flows.checks.server import import_prefect
from flows.commands import options
from flows.commands.project import CommandContext, enter_project
from flows.dvc.engine import Engine
from flows.runs import checkout, listing, locks, report, run_params
from flows.runs.environment import is_writable, prepare_run
from flows.runs.log import new_log, redirect_logging
from flows.runs.next_step import suggest_next
from flows.runs.run_options import RunOptions
from flows.runs.run_request import RunRequest, resolve_request
from flows.runs.stage_plan import PUBLISH
from flows.runs.stopping import RESUME_HINT, Interrupted, RunFailed, stop
from flows.server.local_server import LocalServer, connect_server, may_be_configured, start_early
from flows.views import run_page
from flows.views.screen import current_screen, make_screen, print_end, print_reason, use_screen
from tasks.plan.named_files import find_dvc_files, list_input_paths
from tasks.stage import artifacts, process, streams
from tasks.stage.errors import DONE, FAILED, REJECTED, WRONG_USAGE, PodiumError

SECONDS_FOR_A_LINK = 3.0
SECONDS_BETWEEN_LOOKS = 3.0
"""Time between two looks whether the run was cancelled on the server."""
FINISHED_OUTCOMES = ("finished", "published", "rejected")
KEPT_FIELDS = (
    "command",
    "began",
    "ended",
    "seconds",
    "earlier_seconds",
    "user",
    "host",
    "python",
    "commit",
    "changed",
    "details",
    "options",
)
"""Fields taken from the record of the run that made the outputs."""


@click.command(
    help="Run the pipeline, from the corpus to the published model. Stages whose inputs did not change are skipped, "
    "and a stopped run resumes where it stopped. Set PREFECT_API_URL to see the run on your Prefect server; otherwise "
    "it starts a temporary one."
)
@options.parameter_options
@options.name_option
@click.option(
    "--like",
    metavar="RUN",
    shell_complete=options.complete_runs,
    help="start with the parameters of RUN, however it was made; --set changes some",
)
@click.option("--no-publish", is_flag=True, help="stop after the gate")
@options.stage_options
@options.workers_option
@options.cpu_queue_option
@options.device_queue_option
@click.option("--started-by", "command", hidden=True, help="command line that starts this run, for its record")
@options.force_option
@options.json_option
@options.verbose_option
@click.pass_context
def command(ctx: click.Context, as_json: bool, verbose: bool, no_publish: bool, like: str | None, **asked: Any) -> None:
    project, run, values = enter_project(ctx), RunOptions(**asked, publish=not no_publish), None
    options.warn_unread_params(project, run.preset)
    if like is not None:
        if run.preset is not None:
            raise click.UsageError("--like takes the parameters of a run: leave out --preset", ctx)
        run, values = run_params.copy_params(project, like, run)
    execute_run(resolve_request(project, run, values), as_json, verbose)


def execute_run(request: RunRequest, as_json: bool, verbose: bool) -> None:
    """Run the pipeline, then print the outcome and the next step. All commands that run stages end with this.

    Args:
        request: run to carry out.
        as_json: print the report as JSON to standard output, and everything else to standard error.
        verbose: show the output of the stages.

    Raises:
        SystemExit: the run did not end with exit code 0.
        ParamsError, InputError: the run was refused before it started.
    """
    run = None
    with stop.listen(), contextlib.redirect_stdout(sys.stderr) if as_json else contextlib.nullcontext():
        try:
            code, run = _run_locked(request, verbose)
        except Interrupted:
            print_reason(f"cancelled by {stop.reason()}: nothing half-written was kept; {RESUME_HINT}", "red")
            code = stop.exit_code()
    if as_json and run is not None:
        options.print_json(run.as_values())
    elif run is not None and code in (DONE, REJECTED):  # after a failure the error comes last and names the next step
        options.print_next(suggest_next(run))
    elif run is not None and code not in (FAILED, WRONG_USAGE) and run.name != listing.PROJECT:
        options.print_next(f"podium resume {run.name}")
    if code:
        raise SystemExit(code)


def _run_locked(request: RunRequest, verbose: bool) -> tuple[int, report.RunReport | None]:
    """Run a request; return the exit code and the record of the run."""
    project = request.project
    kind = locks.DISPATCH_LOCK if request.options.on_workers else locks.CHECKOUT_LOCK
    if not is_writable(project / locks.FOLDER):
        _require_runnable(request)  # reports who owns the folder, and all other problems
    with locks.hold_run(project, request.name, streams.note, kind):
        run_params.require_same_params(
            project, request.values, request.options.name
        )  # the run we waited for may have created it
        code = finish_if_unchanged(request)
        if code is None:
            with use_screen(make_screen(verbose)):
                code = _start(request)
        return code, report.read_report(project, request.root)


def _start(request: RunRequest) -> int:
    """Check a request while Prefect starts, which takes seconds; run it and return the exit code."""
    project = request.project
    current_screen().tell("checking the run and starting Prefect (a few seconds)")
    log = new_log(project)
    started = start_early(project / log)
    try:
        try:
            _require_runnable(request, *([] if started is None else [load_flow]))
        except PodiumError:
            (project / log).unlink(missing_ok=True)
            raise
        prepare_run(project, streams.note)
        load_flow()
        return _run(request, log, started)
    finally:
        if started is not None:
            started.end()


def _require_runnable(request: RunRequest, meanwhile: Callable[[], None] = lambda: None) -> None:
    from flows.checks import preflight  # imports numpy and pyarrow; the first line of a run comes before

    preflight.require_runnable(request, meanwhile)


def load_flow() -> None:
    """Import the flow with Prefect, which takes a second.

    Raises:
        InputError: Prefect's settings are invalid.
    """
    with process.loading_packages():
        import_prefect()
        import flows.pipeline  # noqa: F401


def _run(request: RunRequest, log: Path, started: LocalServer | None) -> int:
    from flows import pipeline
    from flows.server.api import SERVER_ERRORS, exit_without_server, silence_outages

    project, context = request.project, click.get_current_context().find_object(CommandContext)
    command = request.options.command or (None if context is None else context.command_line)
    shown = replace(request.options, command=command, log=str(log))  # Prefect's pages show these arguments
    prepared = pipeline.use_request(request, None if started is None else current_screen().tell)
    with redirect_logging(project / log), prepared, connect_server(project / log, started) as is_own:
        silence_outages()
        flow = pipeline.pipeline
        if not is_own:
            flow = flow.with_options(on_running=[_print_link, _follow_cancellation])
        try:
            state = flow(**vars(shown), return_state=True)
        except SERVER_ERRORS as error:  # the final state did not reach the server
            run = _read_ended(request, log)
            code = FAILED if run is None else print_end(run, [report.format_total(run)], log)
            streams.note(
                f"the Prefect server does not answer ({type(error).__name__}) and did not receive the end of this "
                f"run; see {log if run is None else artifacts.RUN_REPORT}",
                "",
            )
            exit_without_server(code)
    if (run := _read_ended(request, log)) is None:
        stop.check()
        refused = state.result(raise_on_failure=False)
        if isinstance(refused, PodiumError):
            raise refused
        raise PodiumError(f"the run wrote no report: {state.message}\nlog: {log}")
    rows = [report.HEADER, *map(report.format_stage, run.stages)] if request.options.on_workers else []
    code = print_end(run, [*rows, report.format_total(run)], log)
    return code or (0 if state.is_completed() else FAILED)


def _read_ended(request: RunRequest, log: Path) -> report.RunReport | None:
    """Return the report of the ended run with this log; None if it could not write one."""
    run = report.read_report(request.project, request.root)
    return run if run is not None and run.log == str(log) and run.ended is not None else None


def _print_link(flow: Any, flow_run: Any, state: Any) -> None:
    """Print the run's URL if the configured server serves pages."""
    import httpx
    from prefect.utilities.urls import url_for

    with contextlib.suppress(httpx.HTTPError):
        if (url := url_for(flow_run)) and httpx.get(url, timeout=SECONDS_FOR_A_LINK).is_success:
            current_screen().tell(f"Prefect: {url}")


def _follow_cancellation(flow: Any, flow_run: Any, state: Any) -> None:
    """Stop this run when someone cancels it on the configured server, which itself ends no process."""
    from flows.server.api import read_state

    def follow() -> None:
        while stop.listens and not stop.number:
            time.sleep(SECONDS_BETWEEN_LOOKS)
            if (now := read_state(flow_run.id)) is not None and now.is_cancelling():
                stop.cancel()

    threading.Thread(target=follow, name="cancellation in Prefect", daemon=True).start()


def finish_if_unchanged(request: RunRequest) -> int | None:
    """Report a run in which nothing changed and return its exit code; return None if there may be something to do.

    Prefect's server takes longer to start than this check. reports/run.json and reports/run.html keep describing the
    run that made the outputs.

    This includes publishing: a release folder that is missing or differs is published again.
    """
    project, root, plan = request.project, request.root, list(request.target)
    if (
        request.options.on_workers
        or may_be_configured()
        or (request.options.publish and request.values["publish"]["target"] != "local")
    ):
        return None
    before = report.read_report(project, root)
    if before is None or report.run_outcome(before) not in FINISHED_OUTCOMES or dvc.has_remote(root):
        return None
    if plan != [stage.name for stage in before.stages if stage.name.partition("@")[0] != PUBLISH]:
        return None
    if find_dvc_files(project, list_input_paths(request.values)):
        return None  # the checks before a run refuse it, together with all other problems
    checkout.prepare_checkout(request.checkout, current_screen().tell)  # its code may be older than the project's
    made, words = {name: getattr(before, name) for name in KEPT_FIELDS}, list(map(str, request.options.overrides))
    run = report.RunReport(os.path.relpath(root, project), request.options.preset, words, plan=plan, **made)
    published = False
    with Engine(root, run) as engine:
        try:
            status = engine.check_plan(plan)
        except RunFailed:  # the run reports it
            return None
        if status.unchanged != plan:
            return None
        engine.bring(plan, status)
        with streams.outlive_output():
            streams.say(f"nothing changed: all {len(plan)} stages are up to date\n")
        try:
            published = request.options.publish and engine.publish(plan)
        except RunFailed as error:
            run.error = str(error)
    if run.error is None and not published:
        before.write(project)
    else:
        run.write(project)
        run_page.write_ended(run, project, root)
    return print_end(run, [report.format_stage(stage) for stage in run.stages[len(plan) :]])
