"""The pipeline as one Prefect flow: one task per stage of dvc.yaml, then publish.

`podium run` calls it (flows/commands/run.py), and so do the deployments of prefect.yaml on a Prefect server.
"""

import contextlib
import errno
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from pathlib import Path

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
from flows.runs.run_request import CPU_QUEUE, RunRequest, resolve_request
from flows.runs.stage_plan import ALL
from flows.runs.stopping import RESUME_HINT, Interrupted, RunFailed, RunPaused, RunStopped, stop
from flows.server import run_artifacts
from flows.server.run_artifacts import (
    NO_KIND,
    NO_PRESET,
    HiddenText,
    Kind,
    Part,
    Preset,
    Text,
    Texts,
    resolve_preset,
    strip_items,
    strip_text,
)
from flows.server.stage_tasks import CANCELLED, PAUSED_STATE, PrefectFollower, describe_cancellation
from flows.views import index_page, run_page
from flows.workers import dispatch
from tasks.params.overlays import Setting
from tasks.stage import artifacts
from tasks.stage.errors import InputError, ParamsError, PodiumError
from tasks.stage.process import is_sent
from tasks.stage.streams import printable

REJECTED_STATE = "Rejected"
UNEXPECTED = "the run ended early: it was cancelled or failed unexpectedly (see its log)"
_prepared: ContextVar[tuple[RunRequest | None, DvcSession | None]] = ContextVar("prepared", default=(None, None))
"""Request of a run started in this process, and its DVC session if it has started. For runs started by a server, the
flow resolves its own parameters."""
FormParser = Callable[..., tuple[str, Sequence[str | Setting]]]
_parse_form: ContextVar[FormParser] = ContextVar("form parser")
"""Returns preset and overrides for the form's fields of a fine-tuning (flows/commands/finetune.py)."""


@flow(name="podium", retries=0, flow_run_name=run_artifacts.format_start_name)
def pipeline(
    preset: Preset = NO_PRESET,
    overrides: Texts = (),
    name: Text = "",
    part: Part = ALL,
    kind: Kind = NO_KIND,
    task: Text = "",
    model: Text = "",
    train: Text = "",
    dev: Text = "",
    columns: Texts = (),
    to: Texts = (),
    publish: bool = True,
    force: bool = False,
    on_workers: bool = False,
    cpu_queue: str = CPU_QUEUE,
    device_queue: Text = "",
    command: HiddenText = None,
    log: HiddenText = None,
) -> State:
    """Bring every stage up to date, then publish if the gate accepts.

    Args:
        preset: A preset that extends the defaults. params.yaml: use the project's parameters.
        overrides: Parameters to change, as `section.key=value`, for example `pretrain.seed=7`.
        name: Name of the run and of its folder, instead of the "Run Name" above. A name that belongs to a run with
            other parameters is refused.
        part: Part of the pipeline: all; pretraining; finetuning, which restores the pre-trained model; or the stages of
            one kind of task.
        kind: Kind of task, to fine-tune `model` on the file `train` as `podium finetune` does, without `preset`.
        task: Task of the kind glue, such as sst2.
        model: Model folder, run of podium pretrain, or Hub repository.
        train: Training data, a file or folder on the workers, or a Hub data set.
        dev: Evaluation data; if empty, a part of `train`.
        columns: Columns of the files, as PART=NAME, for example `label=stars`.
        to: Stages, such as gate@squad. Only these and the stages they need run, and nothing is published.
        publish: Publish models that the gate accepts. Otherwise the run ends at the gate.
        force: Run device jobs even if they are not expected to fit into memory.
        on_workers: Send the stages to queues. Otherwise they run on the host of this run.
        cpu_queue: The `pool/queue` for data preparation, validation, evaluation, gate and publish.
        device_queue: The `pool/queue` for training and prediction, such as ipu/pod-a. If empty, the queue `default` of
            the pool named like device.runtime, which must not be auto.
        command: The command line that started the run, for the list of runs.
        log: The log file, relative to the project's folder.

    Raises:
        ParamsError: The parameters are invalid, before anything runs. On a worker, the run fails with that message.

    Returns:
        Completed, Completed named "Paused", Failed with the reason, named "Rejected" if the gate did, or Cancelled if
        Ctrl-C or SIGTERM came before there was anything to keep. reports/run.json records the same.
    """
    queues = (cpu_queue.strip(), strip_text(device_queue)) if on_workers else None
    project, called, recipe = Path.cwd(), run_artifacts.read_run_name(name), resolve_preset(preset)
    try:
        with stop.reclaim():
            environment.prepare_run(project, get_run_logger().info)  # for workers; podium run has already done it
            checkout.require_project(project)
            log = check_log(log) if is_sent() else log
            request, session = _prepared.get()
            if request is None:
                words: Sequence[str | Setting] = strip_items(overrides)
                if kind != NO_KIND:
                    fields = {"task": task, "model": model, "train": train, "dev": dev, "name": called}
                    recipe, words = _parse_form.get()(project, kind, fields, strip_items(columns), words)
                ends, sent = strip_items(to), queues is not None
                request = resolve_request(project, recipe, words, part, ends, publish, sent, name=called, force=force)
            checkout.check_inputs(project, request.values, request.plan)
            return _run(request, session, queues, command, log)
    except Interrupted:
        return Cancelled(message=f"cancelled by {stop.reason()} before the first stage")
    except PodiumError as error:
        run_artifacts.label_flow_run(run_artifacts.format_name(called or recipe, "refused"))
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
            expected = [request.plan[one.stage] for one in device.find_stages_to_run(request)]
            held.enter_context(use_fork_server(session, expected, request.root))
        token = _prepared.set((request, session))
        try:
            yield
        finally:
            _prepared.reset(token)


def use_form_parser(parse: FormParser) -> None:
    """Use `parse` for the fields of a fine-tuning in this process."""
    _parse_form.set(parse)


def _run(
    request: RunRequest,
    session: DvcSession | None,
    queues: tuple[str, str | None] | None,
    command: str | None,
    log: str | None,
) -> State:
    """Run a request, on workers if `queues` names those for the CPU and for devices."""
    project, name, follower = request.project, request.explicit_name, PrefectFollower()
    values, root, plan = request.values, request.root, list(request.target)
    run_artifacts.label_flow_run(tags=run_artifacts.make_tags(values, request.preset, project))
    if is_sent():  # podium run has checked this and more before it started the flow
        device.require_fit(request, follower.say)
    words, folder = list(request.overrides), os.path.relpath(root, project)
    command = command or f"podium run{request.command_options}{' --on-workers' if queues is not None else ''}"
    run = report.RunReport(folder, request.preset, words, command=command, log=log, plan=plan)
    run.options = {**request.options, "queues": queues}
    run.details = index_page.describe_parameters(values)
    kind = locks.CHECKOUT_LOCK if queues is None else locks.DISPATCH_LOCK
    with locks.hold_run(project, run.name, follower.say, kind):
        run_params.require_same_params(project, values, name)
        found = None if queues is None else dispatch.resolve_queues(values["device"]["runtime"], *queues)
        for queue in found or ():
            dispatch.require_deployment(queue)
        if session is None:
            checkout.prepare_checkout(request.checkout, follower.say)
        if found is None:
            if note := run_estimate.describe_preparation(request):
                follower.say(note)

            def run_here() -> None:
                with Engine(root, run, follower, session) as engine:
                    engine.run_plan(plan, request.publish)

            return _supervise(run, project, root, name, run_here)
        code, checkout_name = checkout.hash_code(project), checkout.default_name(values, name or request.preset)
        told = {"values": values, "checkout_name": checkout_name, "code": code}
        sender = dispatch.Dispatcher(root, told, run, follower.say, flow_run.id)
        return _supervise(run, project, root, name, lambda: sender.run_plan(plan, *found, request.publish))


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
        place = f" in stage {stopped}" if isinstance(stopped, RunStopped) else ""
        cause = f"{run.interrupted}{place}"
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
        decisions = [one["decision"] for one in run.results.values() if one["decision"] is not None]
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
