"""The pipeline as one Prefect flow: one task per stage of dvc.yaml, then publish.

`podium run` calls it (flows/commands/run.py), and so do the deployments of prefect.yaml on a Prefect server.
"""

import contextlib
import errno
import inspect
import os
import sys
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import replace
from pathlib import Path
from typing import Any

from prefect import flow, get_run_logger
from prefect.client.schemas.objects import State
from prefect.runtime import flow_run
from prefect.states import Cancelled, Completed, Failed

from flows.checks import device
from flows.dvc.engine import Engine
from flows.dvc.session import DvcSession, open_session, use_fork_server
from flows.runs import checkout, environment, listing, locks, report, run_estimate, run_params
from flows.runs.log import check_log
from flows.runs.run_before import compare_with_run_before
from flows.runs.run_options import NO_KIND, RunOptions
from flows.runs.run_request import RunRequest, resolve_request
from flows.runs.stopping import RESUME_HINT, Interrupted, RunFailed, RunPaused, RunStopped, stop
from flows.server import run_artifacts
from flows.server.stage_tasks import CANCELLED, PAUSED_STATE, PrefectFollower, describe_cancellation
from flows.views import index_page, run_page
from flows.workers import dispatch
from tasks.stage import artifacts
from tasks.stage.errors import InputError, ParamsError, PodiumError
from tasks.stage.process import is_sent
from tasks.stage.streams import printable

REJECTED_STATE = "Rejected"
UNEXPECTED = "the run ended early: it was cancelled or failed unexpectedly (see its log)"
_prepared: ContextVar[tuple[RunRequest | None, DvcSession | None]] = ContextVar("prepared", default=(None, None))
"""Request of a run started in this process, and its DVC session if it has started. For runs started by a server, the
flow resolves its own parameters."""
FormParser = Callable[[Path, RunOptions], RunOptions]
_parse_form: ContextVar[FormParser] = ContextVar("form parser")
"""Returns the options of a run for the form's fields of a fine-tuning (flows/commands/finetune.py)."""


def _take_options(function: Callable[..., State]) -> Callable[..., State]:
    """Give a flow the parameters of `RunOptions` and their texts, from which Prefect derives the form."""
    function.__signature__ = inspect.signature(RunOptions)  # type: ignore[attr-defined]
    function.__doc__ = f"{function.__doc__}\n{inspect.getdoc(RunOptions)}"
    return function


@flow(name="podium", retries=0, flow_run_name=run_artifacts.format_start_name)
@_take_options
def pipeline(*values: Any, **named: Any) -> State:
    """Bring every stage up to date, then publish if the gate accepts.

    Raises:
        ParamsError: The parameters are invalid, before anything runs. On a worker, the run fails with that message.

    Returns:
        Completed, Completed named "Paused", Failed with the reason, named "Rejected" if the gate did, or Cancelled if
        Ctrl-C or SIGTERM came before there was anything to keep. reports/run.json records the same.
    """
    project, options = Path.cwd(), RunOptions(*values, **named)
    options = replace(options, name=run_artifacts.read_run_name(options.name))
    try:
        with stop.reclaim():
            environment.prepare_run(project, get_run_logger().info)  # for workers; podium run has already done it
            checkout.require_project(project)
            log = check_log(options.log) if is_sent() else options.log
            request, session = _prepared.get()
            if request is None:
                form = options.clean_form()
                request = resolve_request(project, form if form.kind == NO_KIND else _parse_form.get()(project, form))
            checkout.check_inputs(project, request.values, request.plan)
            return _run(request, session, options.command, log)
    except Interrupted:
        return Cancelled(message=f"cancelled by {stop.reason()} before the first stage")
    except PodiumError as error:
        run_artifacts.label_flow_run(run_artifacts.format_name(options.name or options.preset, "refused"))
        if not (is_sent() and isinstance(error, (InputError, ParamsError))):
            raise
        get_run_logger().error(printable(str(error)))  # Prefect itself logs it at a lower level
        return Failed(message=str(error))  # a traceback does not help the user who filled in the form


@contextlib.contextmanager
def use_request(request: RunRequest, say: Callable[[str], None] | None = None) -> Iterator[None]:
    """Pass a resolved request to the flow that is called inside the context.

    Args:
        say: receives messages about the checkout, which is prepared here, and its DVC process started, which takes a
            second. None: the flow does so. `podium run` has locked and checked the run, and its server is starting.
    """
    with contextlib.ExitStack() as held:
        session = None
        if say is not None:
            checkout.prepare_checkout(request.checkout, say)
            session = held.enter_context(open_session(request.root, say))
            expected = [request.plan[status.stage] for status in device.find_stages_to_run(request)]
            held.enter_context(use_fork_server(session, expected, request.root))
        token = _prepared.set((request, session))
        try:
            yield
        finally:
            _prepared.reset(token)


def use_form_parser(parse: FormParser) -> None:
    """Use `parse` for the fields of a fine-tuning in this process."""
    _parse_form.set(parse)


def _run(request: RunRequest, session: DvcSession | None, command: str | None, log: str | None) -> State:
    """Run a request, here or on workers."""
    options, follower = request.options, PrefectFollower()
    project, name, sends = request.project, options.name, options.on_workers
    values, root, plan = request.values, request.root, list(request.target)
    run_artifacts.label_flow_run(tags=run_artifacts.make_tags(values, options.preset, project))
    if is_sent():  # podium run has checked this and more before it started the flow
        device.require_fit(request, follower.say)
    words, folder = list(map(str, options.overrides)), os.path.relpath(root, project)
    command = command or f"podium run{options.as_words}{' --on-workers' if sends else ''}"
    run = report.RunReport(folder, options.preset, words, command=command, log=log, plan=plan)
    run.options = options.recorded
    run.details = index_page.describe_parameters(values)
    kind = locks.DISPATCH_LOCK if sends else locks.CHECKOUT_LOCK
    with locks.hold_run(project, run.name, follower.say, kind):
        run_params.require_same_params(project, values, name)
        queues = sends and dispatch.resolve_queues(values["device"]["runtime"], options.cpu_queue, options.device_queue)
        for queue in queues or ():
            dispatch.require_deployment(queue)
        if session is None:
            checkout.prepare_checkout(request.checkout, follower.say)
        if not queues:
            if note := run_estimate.describe_preparation(request):
                follower.say(note)

            def run_here() -> None:
                with Engine(root, run, follower, session) as engine:
                    engine.run_plan(plan, options.publish)

            return _supervise(run, project, root, name, run_here)
        code, checkout_name = checkout.hash_code(project), checkout.default_name(values, name or options.preset)
        shared = {"values": values, "checkout_name": checkout_name, "code": code}
        sender = dispatch.Dispatcher(root, shared, run, follower.say, flow_run.id)
        return _supervise(run, project, root, name, lambda: sender.run_plan(plan, *queues, options.publish))


def _supervise(run: report.RunReport, project: Path, root: Path, name: str | None, body: Callable[[], None]) -> State:
    """Call `body`, write the report, and return the outcome as a Prefect state."""
    run_page.correct_killed(project, listing.Run(run.name, root, report.read_report(project, root), at_work=False))
    run.begin(project)
    run.error = UNEXPECTED
    try:
        with run_page.keep_updated(run, project, root):
            body()
        run.error = None
    except RunFailed as error:
        run.error = str(error)
        return Failed(message=run.error)
    except RunPaused as paused:
        if stop.is_cancelled:
            run.interrupted, run.error = stop.reason(), f"cancelled in Prefect: {paused}; {RESUME_HINT}"
            return Cancelled(message=run.error)
        run.error, run.paused = None, f"{paused}; {RESUME_HINT}"
        return Completed(name=PAUSED_STATE, message=run.paused)
    except CANCELLED as stopped:
        run.interrupted = describe_cancellation(stopped)
        where = f" in stage {stopped}" if isinstance(stopped, RunStopped) else ""
        cause = f"{run.interrupted}{where}"
        how = "ended early by" if run.interrupted == report.WORKER_ENDED else "was cancelled by"
        run.error = f"the run {how} {cause}: nothing half-written was kept; {RESUME_HINT}"
        if not isinstance(stopped, (RunStopped, Interrupted)):
            raise  # a signal to a worker's run: the worker reports the state
        return Cancelled(message=run.error)
    finally:
        if run.error == UNEXPECTED and (ended_by := sys.exception()) is not None:
            run.error = _describe_end(ended_by)
        run.end()
        _write_report(run, project, root)
        run_artifacts.create_artifacts(run, project, root, name)
    if run.error is not None:
        return Failed(message=run.error)
    if (outcome := report.run_outcome(run)) == "rejected":
        decisions = [result["decision"] for result in run.results.values() if result["decision"] is not None]
        reasons = [reason for decision in decisions for reason in decision["reasons"]]
        # Of type Failed, so that it does not look like a success, and automations for failures act on it.
        return Failed(name=REJECTED_STATE, message=" ".join(reasons))
    return Completed(message=outcome)


def _describe_end(cause: BaseException) -> str:
    text = f"the run ended early, by {type(cause).__name__}: {printable(str(cause))} (see its log)"
    if "new thread" in text or getattr(cause, "errno", None) == errno.EAGAIN:
        text += ". This user has as many processes and threads as allowed: raise `ulimit -u`, or the container's limit"
    return text


def _write_report(run: report.RunReport, project: Path, root: Path) -> None:
    """Write the report and the pages of an ended run. A full disk or a lost server must not hide the outcome."""
    run.details["curves"] = index_page.read_curves(root / artifacts.PLOTS)
    run.details["runtime"] = index_page.read_runtime(root) or run.details.get("runtime", "")
    compare_with_run_before(run, project)
    try:
        run.write(project)
        run_page.write_ended(run, project, root)
    except OSError as error:
        text = f"the report could not be written: {error}"
        get_run_logger().error(printable(text))
        run.error = text if run.error is None else f"{run.error}\n{text}"
    first = not (project / artifacts.INDEX_PAGE).is_file()
    try:
        index_page.write_index(project, ended=run.name)
    except (OSError, ValueError, PodiumError) as error:  # the problem may be in another run
        get_run_logger().warning(printable(f"the page of all runs could not be written: {error}"))
    if first and (project / artifacts.INDEX_PAGE).is_file():
        with contextlib.suppress(OSError):  # the page exists; this adds the link to the index
            run_page.write_ended(run, project, root)
