"""The whole pipeline as one Prefect flow: one task per stage of dvc.yaml, then publish.

`podium run` calls it (flows/commands/run.py), and a Prefect server does for the deployments of prefect.yaml.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from prefect import flow, get_run_logger
from prefect.artifacts import create_markdown_artifact
from prefect.client.schemas.objects import State
from prefect.states import Cancelled, Completed, Failed

from flows import allowed, checkout, environment, live_page, report, run_locks, run_params, runs, stages, workers
from flows.api import extra
from flows.plan import ALL, stages_to_run
from flows.preflight import device_jobs
from flows.preflight.finding import Wanted
from flows.sent_runs import Queue
from flows.stopping import AGAIN, Interrupted, stop
from tasks.project.errors import PodiumError

REJECTED_STATE = "Rejected"
MOST_READ = 10
"""Runs that the end of one reads for the page of all: its own, and some that others left; --page reads all."""


@flow(name="podium", retries=0)
def pipeline(
    preset: str | None = None,
    overrides: list[str] | None = None,
    publish: bool = True,
    part: str = ALL,
    on_workers: bool = False,
    cpu_queue: str = workers.CPU_QUEUE,
    device_queue: str | None = None,
    to: list[str] | None = None,
    name: str | None = None,
    command: str | None = None,
    log: str | None = None,
    force: bool = False,
) -> State:
    """Bring every stage up to date, then publish if the gate accepts.

    Args:
        preset: one of presets/*.yaml, which lies over the defaults; None: params.yaml.
        overrides: `section.key=value`, laid over that, for example `pretrain.seed=7`.
        publish: False stops after the gate.
        part: of the pipeline: pretraining; finetuning, which restores what pre-training made; one of dvc.yaml; or all.
        on_workers: send the stages to queues; False runs them all in this process.
        cpu_queue: `pool/queue` for preparing and judging data, evaluation, gate and publish.
        device_queue: `pool/queue` for training and prediction, for example `ipu/pod-a`; by default the queue
            `default` of the pool named like `device.runtime`.
        to: stages: these and what they need, nothing else, and nothing is published.
        name: of the run, whose checkout lies under it; one of other parameters is refused.
        command: the words that started it, for the list of runs.
        log: the file that holds what it prints, from the project's folder.
        force: try device jobs that are not expected to fit into their memory.

    Raises:
        ParamsError: before anything runs.

    Returns:
        Completed, Completed named "Rejected" or "Paused", Failed with the reason, or Cancelled where Ctrl-C or SIGTERM
        came before there was anything to keep; reports/run.json says the same.
    """
    project, overrides = Path.cwd(), overrides or []
    environment.prepare_run(project, get_run_logger().info)  # of a worker; podium run has done so
    checkout.require_project(project)
    values = _checked_params(project, preset, overrides)
    plan, publish = stages_to_run(project, values, part, to or []), publish and not to
    root = checkout.folder_of(project, values, preset, overrides, name, on_workers)
    _require_fit(Wanted(project, values, root, tuple(plan), publish, on_workers, force=force))
    run = report.RunReport(os.path.relpath(root, project), preset, overrides, command=command, log=log, plan=list(plan))
    with run_locks.held(project, run.name, stages.tell, run_locks.SENT if on_workers else run_locks.HERE):
        run_params.require_same(project, values, name)
        queues = _queues(values, cpu_queue, device_queue) if on_workers else None
        checkout.prepare(project, values, root, stages.tell)
        if queues is None:
            return _ended(run, project, root, lambda: stages.run_plan(plan, root, run, publish))
        sender = workers.Sender(root, _told_workers(project, values, name or preset), run, stages.tell)
        return _ended(run, project, root, lambda: sender.run_plan(plan, *queues, publish))


def _require_fit(wanted: Wanted) -> None:
    """Refuse what was sent and does not fit; podium run has looked at more than this before it starts a flow."""
    if allowed.is_sent():
        device_jobs.require_fit(wanted, stages.tell)


def _told_workers(project: Path, values: dict[str, Any], called: str | None) -> dict[str, Any]:
    """What every worker gets of the run: its parameters, the name of the checkout there, and hashes of the code."""
    code, checkout_name = checkout.code_hashes(project), checkout.own_name(values, called)
    return {"values": values, "checkout_name": checkout_name, "code": code}


def _queues(values: dict[str, Any], cpu_queue: str, device_queue: str | None) -> tuple[Queue, Queue]:
    """Where stages are sent, which must be known to the server."""
    queues = workers.queues_of(values["device"]["runtime"], cpu_queue, device_queue)
    for queue in queues:
        workers.require_deployment(queue)
    return queues


def _checked_params(project: Path, preset: str | None, overrides: list[str]) -> dict[str, Any]:
    """The parameters of the run; started by a worker, somebody may have stated them who may read nothing else here."""
    values = checkout.resolved_params(project, preset, overrides)
    if allowed.is_sent():
        allowed.require_parameters(values, project)
    checkout.check_inputs(project, values)
    return values


def _ended(run: report.RunReport, project: Path, root: Path, body: Callable[[], None]) -> State:
    """Do what `body` does, report how it went, and put that into a state."""
    live_page.correct(project, runs.Run(run.name, root, report.read(project, root), at_work=False))
    run.begin(project)
    run.error = "the run ended early: it was cancelled, or has a defect (its log says which)"
    try:
        with stop.taken_back(), live_page.kept_up(run, project, root):
            body()
        run.error = None
    except stages.RunFailed as error:
        run.error = str(error)
        return Failed(message=run.error)
    except stages.RunPaused as paused:
        run.error, run.paused = None, f"{paused}; {AGAIN}"
        return Completed(name=stages.PAUSED_STATE, message=run.paused)
    except (stages.RunStopped, Interrupted) as stopped:
        run.interrupted = stop.reason()
        place = f" in stage {stopped}" if isinstance(stopped, stages.RunStopped) else ""
        run.error = f"the run ended early, by {run.interrupted}{place}: nothing half-written was kept; {AGAIN}"
        return Cancelled(message=run.error)
    finally:
        run.end()
        run.settle(project)
        _write_report(run, project, root)
    if run.error is not None:
        return Failed(message=run.error)
    rejected = report.outcome(run) == "rejected"
    return Completed(name=REJECTED_STATE if rejected else None, message=report.outcome(run))


def _write_report(run: report.RunReport, project: Path, root: Path) -> None:
    """Say how the run ended; a disk that is full now, or a server that is lost, must not hide it."""
    try:
        run.write(project)
        live_page.write_ended(run, project, root)
    except OSError as error:
        text = f"the report could not be written: {error}"
        get_run_logger().error(text)
        run.error = text if run.error is None else f"{run.error}\n{text}"
    _write_index(run, project)
    text = report.markdown(run)
    extra(lambda: create_markdown_artifact(text, key="podium-run", description="Podium run"))


def _write_index(run: report.RunReport, project: Path) -> None:
    """The page of all runs; what is wrong with another one is not the fault of this."""
    from flows import index_page

    try:
        index_page.write(project, ended=run.name, anew=MOST_READ)
    except (OSError, ValueError, PodiumError) as error:
        get_run_logger().warning(f"the page of all runs could not be written: {error}")


if __name__ == "__main__":  # what podium run was called once
    from flows.cli import main

    main(["run", *sys.argv[1:]])
