"""The whole pipeline as one Prefect flow: one task per stage of dvc.yaml, then publish.

`podium run` calls it (flows/commands/run.py), and a Prefect server does for the deployments of prefect.yaml.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from pathlib import Path

from prefect import flow, get_run_logger
from prefect.client.schemas.objects import State
from prefect.runtime import flow_run
from prefect.states import Cancelled, Completed, Failed

from flows.checks import device
from flows.dvc import stages
from flows.runs import checkout, environment, listing, locks, report, run_params
from flows.runs.log import checked_log
from flows.runs.run_request import CPU_QUEUE, RunRequest, resolve_request
from flows.runs.stage_plan import ALL
from flows.runs.stopping import AGAIN, Interrupted, stop
from flows.server import run_artifacts
from flows.server.run_artifacts import NO_PRESET, Part, Preset, Text, Unseen, Words, preset_of, text_of, words_of
from flows.views import run_page
from flows.workers import dispatch
from tasks.stage import artifacts
from tasks.stage.errors import InputError, ParamsError, PodiumError
from tasks.stage.process import is_sent
from tasks.stage.streams import printable

REJECTED_STATE = "Rejected"
_request: ContextVar[RunRequest | None] = ContextVar("request", default=None)
"""Of a run that is started in this process; what a server starts is resolved by the flow, from its parameters."""
MOST_READ = 10
"""Runs that the end of one reads for the page of all: its own, and some that others left; --page reads all."""


@flow(name="podium", retries=0, flow_run_name=run_artifacts.name_at_start)
def pipeline(
    preset: Preset = NO_PRESET,
    overrides: Words = (),
    name: Text = "",
    part: Part = ALL,
    to: Words = (),
    publish: bool = True,
    force: bool = False,
    on_workers: bool = False,
    cpu_queue: str = CPU_QUEUE,
    device_queue: Text = "",
    command: Unseen = None,
    log: Unseen = None,
) -> State:
    """Bring every stage up to date, then publish if the gate accepts.

    Args:
        preset: A recipe that lies over the defaults; params.yaml: the parameters of the project as they are.
        overrides: Parameters that differ, as `section.key=value`: `pretrain.seed=7`, for example.
        name: What the run is called, in place of the "Run Name" of Prefect's form, and the folder it works in; the name
            of a run of other parameters is refused.
        part: What of the pipeline: all; pretraining; finetuning, which restores what pre-training made; or what one
            kind of task needs.
        to: Stages, such as gate@squad: these and what they need, nothing else, and nothing is published.
        publish: Publish what the gate accepts; without it the run ends at the gate.
        force: Try device jobs that are not expected to fit into their memory.
        on_workers: Send the stages to queues; without it they all run where this run does.
        cpu_queue: The `pool/queue` for preparing and judging data, evaluation, gate and publish.
        device_queue: The `pool/queue` for training and prediction, such as ipu/pod-a; empty: the queue `default` of the
            pool named like device.runtime, which must not be auto then.
        command: The words that started it, for the list of runs.
        log: The file that holds what it prints, from the project's folder.

    Raises:
        ParamsError: before anything runs; of a run that a worker was sent its words are the reason of the state Failed.

    Returns:
        Completed, Completed named "Rejected" or "Paused", Failed with the reason, or Cancelled where Ctrl-C or SIGTERM
        came before there was anything to keep; reports/run.json says the same.
    """
    queues = (cpu_queue.strip(), text_of(device_queue)) if on_workers else None
    project, called, recipe = Path.cwd(), text_of(name), preset_of(preset)
    try:
        environment.prepare_run(project, get_run_logger().info)  # of a worker; podium run has done so
        checkout.require_project(project)
        log = checked_log(log) if is_sent() else log
        if (request := _request.get()) is None:
            words, ends, sent = words_of(overrides), words_of(to), queues is not None
            request = resolve_request(project, recipe, words, part, ends, publish, sent, name=called, force=force)
        checkout.check_inputs(project, request.values, request.plan)
        return _run(request, queues, command, log)
    except PodiumError as error:
        run_artifacts.label(run_artifacts.name_of(called or recipe, "refused"))
        if not (is_sent() and isinstance(error, (InputError, ParamsError))):
            raise
        get_run_logger().error(printable(str(error)))  # else it is in a line of Prefect's, which is no error
        return Failed(message=str(error))  # whoever filled in the form needs no traceback of ours


@contextlib.contextmanager
def resolved(request: RunRequest) -> Iterator[None]:
    """Pass a request on to the flow that is called inside, with the same words."""
    token = _request.set(request)
    try:
        yield
    finally:
        _request.reset(token)


def _run(request: RunRequest, queues: tuple[str, str | None] | None, command: str | None, log: str | None) -> State:
    """Run it, its stages on workers where `queues` names those for the CPU and for devices."""
    project, name = request.project, request.called
    values, root, plan = request.values, request.root, list(request.target)
    run_artifacts.label(tags=run_artifacts.tags_of(values, request.preset, project))
    if is_sent():  # podium run has looked at more than this before it starts a flow
        device.require_fit(request, stages.tell)
    words, folder = list(request.overrides), os.path.relpath(root, project)
    command = command or f"podium run{request.words}{' --on-workers' if queues is not None else ''}"
    run = report.RunReport(folder, request.preset, words, command=command, log=log, plan=plan)
    with locks.held(project, run.name, stages.tell, locks.HERE if queues is None else locks.SENT):
        run_params.require_same(project, values, name)
        found = None if queues is None else dispatch.queues_of(values["device"]["runtime"], *queues)
        for queue in found or ():
            dispatch.require_deployment(queue)
        checkout.prepare(request.checkout, stages.tell)
        if found is None:
            return _ended(run, project, root, name, lambda: stages.run_plan(plan, root, run, request.publish))
        code, checkout_name = checkout.code_hashes(project), checkout.own_name(values, name or request.preset)
        told = {"values": values, "checkout_name": checkout_name, "code": code}
        sender = dispatch.Sender(root, told, run, stages.tell, flow_run.id)
        return _ended(run, project, root, name, lambda: sender.run_plan(plan, *found, request.publish))


def _ended(run: report.RunReport, project: Path, root: Path, name: str | None, body: Callable[[], None]) -> State:
    """Do what `body` does, report how it went, and put that into a state."""
    run_page.correct(project, listing.Run(run.name, root, report.read(project, root), at_work=False))
    run.begin(project)
    run.error = "the run ended early: it was cancelled, or has a defect (its log says which)"
    try:
        with stop.taken_back(), run_page.kept_up(run, project, root):
            body()
        run.error = None
    except stages.RunFailed as error:
        run.error = str(error)
        return Failed(message=run.error)
    except stages.RunPaused as paused:
        run.error, run.paused = None, f"{paused}; {AGAIN}"
        return Completed(name=stages.PAUSED_STATE, message=run.paused)
    except stages.CANCELLED as stopped:
        run.interrupted = stages.cancelled_by(stopped)
        place = f" in stage {stopped}" if isinstance(stopped, stages.RunStopped) else ""
        run.error = f"the run ended early, by {run.interrupted}{place}: nothing half-written was kept; {AGAIN}"
        if not isinstance(stopped, (stages.RunStopped, Interrupted)):
            raise  # a signal to a run of a worker, which says how it ended
        return Cancelled(message=run.error)
    finally:
        run.end()
        _write_report(run, project, root)
        run_artifacts.show(run, project, root, name)
    if run.error is not None:
        return Failed(message=run.error)
    rejected = report.outcome(run) == "rejected"
    return Completed(name=REJECTED_STATE if rejected else None, message=report.outcome(run))


def _write_report(run: report.RunReport, project: Path, root: Path) -> None:
    """Say how the run ended; a disk that is full now, or a server that is lost, must not hide it."""
    from flows.views import index_page

    try:
        run.write(project)
        run_page.write_ended(run, project, root)
    except OSError as error:
        text = f"the report could not be written: {error}"
        get_run_logger().error(printable(text))
        run.error = text if run.error is None else f"{run.error}\n{text}"
    first = not (project / artifacts.INDEX_PAGE).is_file()
    try:
        index_page.write(project, ended=run.name, anew=MOST_READ)
    except (OSError, ValueError, PodiumError) as error:  # what is wrong with another run is not the fault of this
        get_run_logger().warning(printable(f"the page of all runs could not be written: {error}"))
    if first and (project / artifacts.INDEX_PAGE).is_file():
        with contextlib.suppress(OSError):  # it has been written, and lacks a link
            run_page.write_ended(run, project, root)
