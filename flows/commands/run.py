"""`podium run`: the pipeline, from the corpus to the published model."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import click

from flows.checks import preflight
from flows.checks.server import load_settings
from flows.checks.unchanged_run import tell_if_unchanged
from flows.commands import options
from flows.commands.project import Place, entered
from flows.runs import locks, report, run_params
from flows.runs.environment import can_write, prepare_run
from flows.runs.log import logged, new_log
from flows.runs.run_request import CPU_QUEUE, RunRequest, resolve_request
from flows.runs.stage_plan import ALL
from flows.runs.stopping import AGAIN, Interrupted, stop
from flows.server.local_server import own_server, started_early
from flows.views.screen import of_terminal, print_last, screen, shown, tell_end
from tasks.stage import artifacts, process, streams
from tasks.stage.errors import DONE, FAILED, REJECTED, PodiumError

SECONDS_FOR_A_LINK = 3.0
ANSWERS = {"exact_match", "exact"}
"""Scores of models that answer questions, which podium ask can be asked of: SQuAD 1.1 and 2.0."""


@click.command(
    help="Run the pipeline, from the corpus to the published model. Stages whose inputs did not change are skipped; a "
    "run that was stopped goes on where it was. With PREFECT_API_URL the run is seen on that server, else on one "
    "of its own that ends with it."
)
@options.parameters
@options.run_name
@click.option("--no-publish", is_flag=True, help="stop after the gate")
@options.stages
@click.option("--on-workers", is_flag=True, help="send the stages to workers (PREFECT_API_URL)")
@click.option("--cpu-queue", default=CPU_QUEUE, show_default=True, metavar="POOL/QUEUE", help="all but device jobs")
@click.option("--device-queue", metavar="POOL/QUEUE", help="for training and prediction")
@options.force
@options.as_json
@click.option("--verbose", is_flag=True, help="show what the stages print, too; else only the log of the run holds it")
@click.pass_context
def command(
    ctx: click.Context,
    preset: str | None,
    overrides: tuple[str, ...],
    no_publish: bool,
    cpu_queue: str,
    device_queue: str | None,
    json_wanted: bool,
    verbose: bool,
    **asked: Any,
) -> None:
    project, publish = entered(ctx), not no_publish
    options.tell_unread(project, preset)
    request = resolve_request(project, preset, overrides, publish=publish, **asked)
    carry_out(request, json_wanted, verbose, publish=publish, cpu_queue=cpu_queue, device_queue=device_queue)


def carry_out(request: RunRequest, json_wanted: bool, verbose: bool, **others: Any) -> None:
    """Run, say how it ended and what is useful next; what any verb that runs stages ends with.

    Args:
        request: what is to be run.
        json_wanted: standard output takes the report as JSON, and nothing else.
        verbose: show what the stages print.
        others: arguments of the flow that the request does not hold.

    Raises:
        SystemExit: the run did not end with 0.
        ParamsError, InputError: nothing was started, and why.
    """
    # What people read goes to standard error where a program reads standard output.
    run = None
    with stop.listening(), contextlib.redirect_stdout(sys.stderr) if json_wanted else contextlib.nullcontext():
        try:
            code, run = _ended(request, verbose, others)
        except Interrupted:
            print_last(f"ended by {stop.reason()}: nothing half-written was kept; {AGAIN}", "red")
            code = stop.exit_code()
    if json_wanted and run is not None:
        options.print_json(run.as_values())
    elif run is not None and code in (DONE, REJECTED):  # of the others the last line is the error, which says it
        options.say_next(useful_after(run, request.part, request.to))
    if code:
        raise SystemExit(code)


def useful_after(run: report.RunReport, part: str = ALL, to: Sequence[str] = ()) -> str:
    """What a person would do next with what this run made."""
    rejected = [one["name"] for one in run.results.values() if one["decision"] and not one["decision"]["accepted"]]
    if rejected:
        page = Path(run.folder) / artifacts.evaluation_page(rejected[0])
        limit = f"--set downstream.{rejected[0]}.gate.LIMIT=VALUE"
        return f"open {page} for the answers; train with more data or other parameters, or set another limit: {limit}"
    published = [one for one in run.results.values() if one["published"] is not None]
    if published:
        asked = [one for one in published if ANSWERS & set(one["scores"])]
        place = report.where_published((asked or published)[0]["published"]).split(" (")[0]
        words = f"podium ask {place} QUESTION --context TEXT", f"podium predict {place} FILE answers for all of a file"
        return words[0] if asked else words[1]
    if to or part != ALL:
        return f"the same words without {'--to' if to else '--part'} go on from there"
    if run.results:
        return "podium publish makes a release of what the gate accepted"
    trained = [stage.name.partition("@")[2] for stage in run.stages if stage.name.startswith("pretrain@")]
    if not trained:
        return "podium runs lists what was made"
    model = Path(run.folder).name or artifacts.model_folder(max(trained))
    return f"podium finetune KIND --model {model} --train FILE"


def _ended(request: RunRequest, verbose: bool, others: dict[str, Any]) -> tuple[int, report.RunReport | None]:
    """Run what is to be run; returns the exit code and the record of the run."""
    project = request.project
    kind = locks.SENT if request.on_workers else locks.HERE
    if not can_write(project / locks.FOLDER):
        # It says whose folder this is, and what else is in the way.
        preflight.require(request, streams.note, streams.say_line)
    with locks.held(project, request.name, streams.note, kind):
        run_params.require_same(project, request.values, request.called)  # who was waited for may have made it
        code = tell_if_unchanged(request)
        if code is None:
            preflight.require(request, streams.note, streams.say_line)
            prepare_run(project, streams.note)
            code = _run(request, verbose, others)
        return code, report.read(project, request.root)


def _run(request: RunRequest, verbose: bool, others: dict[str, Any]) -> int:
    project, place = request.project, click.get_current_context().find_object(Place)
    words = None if place is None else place.words
    log = new_log(project)
    with shown(of_terminal(verbose)):
        screen().tell("starting Prefect, which takes some seconds")
        started = started_early(project / log)
        with process.loading_packages():
            load_settings()
            from flows import pipeline  # takes seconds, in which the server comes up
            from flows.server.api import UNREACHED, quiet_outages

        with logged(project / log), own_server(project / log, started) as is_own:
            quiet_outages()
            flow = pipeline.pipeline if is_own else pipeline.pipeline.with_options(on_running=[_tell_link])
            try:
                with pipeline.resolved(request):
                    state = flow(**_asked(request), **others, command=words, log=str(log), return_state=True)
            except UNREACHED as error:
                _end_without_server(_report_of(request, log), log, error)
        if (run := _report_of(request, log)) is None:
            raise PodiumError(f"the run left no report: {state.message}\nlog of this run: {log}")
        rows = [report.HEADER, *map(report.row, run.stages)] if request.on_workers else []
        code = tell_end(run, [*rows, report.total(run)], log)
        return code or (0 if state.is_completed() else FAILED)


def _asked(request: RunRequest) -> dict[str, Any]:
    """The arguments of the flow that a request holds, which its server shows."""
    same = {name: getattr(request, name) for name in ("preset", "part", "on_workers", "force")}
    return {**same, "name": request.called, "overrides": list(request.overrides), "to": list(request.to)}


def _report_of(request: RunRequest, log: Path) -> report.RunReport | None:
    """What the run that has this log says of its end; None where it could not."""
    run = report.read(request.project, request.root)
    return run if run is not None and run.log == str(log) and run.ended is not None else None


def _tell_link(flow: Any, flow_run: Any, state: Any) -> None:
    """Say where the run is seen, if the server that was named has pages."""
    import httpx
    from prefect.utilities.urls import url_for

    with contextlib.suppress(httpx.HTTPError):
        if (url := url_for(flow_run)) and httpx.get(url, timeout=SECONDS_FOR_A_LINK).is_success:
            screen().tell(f"on the Prefect server: {url}")


def _end_without_server(run: report.RunReport | None, log: Path, error: Exception) -> NoReturn:
    """Say how a run ended whose last word the server did not take, and end with the code that says the same."""
    from flows.server.api import end_without_server

    code = FAILED if run is None else tell_end(run, [report.total(run)], log)
    streams.note(
        f"the Prefect server does not answer ({type(error).__name__}), and does not know how this run ended; "
        f"{f'the log does: {log}' if run is None else f'{artifacts.RUN_REPORT} does'}",
        "",
    )
    end_without_server(code)
