"""The flow `podium-stages`: consecutive stages of one run, on a worker, in the worker's own checkout.

Input is not trusted: names, paths and targets are checked before use (flows/runs/policy.py). The flow `podium` sends
these runs to queues (flows/workers/dispatch.py). Results return through the server as one artifact per stage, with its
record and its small files. Models and data go only through the DVC remote.
"""

import contextlib
import contextvars
import dataclasses
import functools
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from prefect import flow, get_run_logger
from prefect.artifacts import Artifact
from prefect.client.schemas.objects import State
from prefect.runtime import flow_run
from prefect.states import Completed, Failed

from flows import dvc
from flows.dvc.engine import Engine
from flows.runs import checkout, environment, locks, policy
from flows.runs.report import SENT, RunReport, StageRecord
from flows.runs.stopping import RunFailed, RunPaused
from flows.server.api import StageLock, call_optional, retry_call
from flows.server.stage_tasks import CANCELLED, PAUSED_STATE, PrefectFollower, describe_cancellation
from flows.views import curves, index_page
from flows.workers import reports
from ipu_model.core.units import format_count
from tasks.plan.dvc_records import LOCK
from tasks.plan.plan_file import read_plan
from tasks.stage.errors import InputError, ParamsError

REPORT_KEY = "podium-stage"
"""Key of the artifacts with a stage's record and small files."""
FLOW_NAME = "podium-stages"
SECONDS_BETWEEN_PLOTS = 5.0
"""Time between two looks for new evaluations of a running training."""


@flow(name=FLOW_NAME, retries=0)
def run_stages(
    names: list[str],
    values: dict[str, Any],
    checkout_name: str,
    code: dict[str, str],
    publish: bool = False,
    released: dict[str, list[str]] | None = None,
) -> State:
    """Bring consecutive stages up to date on this worker. The flow `podium` starts it; do not start it by hand.

    Args:
        names: stages of dvc.yaml, in order.
        values: the resolved parameters; this worker's own params.yaml is not read.
        checkout_name: the folder under runs/checkouts/ to run in.
        code: hashes of the code that sent this run; other code would produce other stages.
        publish: publish after the gate, if it accepts.
        released: entry -> TAG@COMMIT of the releases that its gate compares with, the same on all workers.

    Returns:
        Completed, Completed named "Paused", or Failed with the reason.
    """
    project, log = Path.cwd(), get_run_logger()
    try:
        environment.prepare_run(project, log.info)
        checkout.require_project(project)
        _require_code(project, code)
        params = policy.require_parameters(values, project)
        policy.require_checkout_name(checkout_name, values)
        target = checkout.describe_checkout(project, values, params, checkout.checkout_folder(project, checkout_name))
        policy.require_stages(names, target.plan)
        policy.require_releases(released or {}, values)
        checkout.check_inputs(project, values, target.plan)
    except (InputError, ParamsError) as error:
        return Failed(message=f"on {socket.gethostname()}: {error}")
    with locks.hold_run(project, checkout_name, log.info), _record_run(project, checkout_name, values) as run:
        checkout.prepare_checkout(target)
        root, follower = target.folder, PrefectFollower()
        lock = StageLock(str(flow_run.id), follower.say) if dvc.has_remote(root) else None
        engine = Engine(root, run, follower, allowed=names, lock=lock, on_end=lambda record: _send_record(record, root))
        try:
            with _send_evaluations(names, root), engine:
                engine.run_plan(names, publish, released)
        except RunFailed as error:
            run.error = str(error)
            return Failed(message=f"on {socket.gethostname()}: {error}")
        except RunPaused as paused:
            run.paused = str(paused)
            return Completed(name=PAUSED_STATE, message=run.paused)
        _send_files(f"dvc.lock after {names[-1]}", [LOCK], root)  # lets others pull all outs of the stages so far
    return Completed(message=f"{format_count(len(names), 'stages')} up to date on {socket.gethostname()}")


@contextlib.contextmanager
def _record_run(project: Path, name: str, values: dict[str, Any]) -> Iterator[RunReport]:
    """Record a sent run, so that it is listed among the runs of this host."""
    folder, details = checkout.checkout_folder(project, name), index_page.describe_parameters(values)
    run = RunReport(os.path.relpath(folder, project), command=SENT, details=details)
    run.begin(project)
    try:
        yield run
    except CANCELLED as stopped:
        run.interrupted = describe_cancellation(stopped)
        run.end()
        run.save(project)
        raise
    run.end()
    run.save(project)


@contextlib.contextmanager
def _send_evaluations(names: list[str], root: Path) -> Iterator[None]:
    """Send the held-out plot of a running training after each evaluation, so that a sweep can stop it early."""
    known, ended = read_plan(root), threading.Event()
    trainings = [known[name] for name in names if curves.is_training(known[name])]

    def send() -> None:
        sent: dict[str, str] = {}
        while not ended.wait(SECONDS_BETWEEN_PLOTS):
            for curve, plot in (stage.plots for stage in trainings):
                path = curves.find_evaluations(Path(curve).stem, root)
                text = path.read_text(encoding="utf-8") if path.is_file() else ""
                if text != sent.get(plot, ""):
                    sent[plot] = text
                    call_optional(functools.partial(_send, f"evaluations in {plot}", {plot: text}))

    thread = threading.Thread(target=contextvars.copy_context().run, args=(send,))
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _require_code(project: Path, code: dict[str, str]) -> None:
    ours = checkout.hash_code(project)
    if different := [name for name in sorted({*ours, *code}) if ours.get(name) != code.get(name)]:
        raise ParamsError(
            f"{', '.join(different)} of the checkout {project} differs from the code of the run. Update "
            "this worker and the host where the run was started to the same revision"
        )


def _send_record(record: StageRecord, root: Path) -> None:
    """Send the record and the small files of a stage to the orchestrating flow."""
    files = reports.figure_files(record.name, root) if record.status not in ("failed", "paused") else []
    sent = dataclasses.replace(record, host=socket.gethostname())
    description = f"{sent.name} {sent.status} on {sent.host} in {sent.seconds:.1f} s"
    _send_files(description, files, root, record=dataclasses.asdict(sent))


def _send_files(description: str, names: list[Path], root: Path, **data: Any) -> None:
    """Send small files of the checkout and other data to the orchestrating flow."""
    readable = [name for name in names if (root / name).is_file() and (root / name).stat().st_size <= reports.MAX_BYTES]
    texts = {name.as_posix(): (root / name).read_text(encoding="utf-8") for name in readable}
    retry_call(lambda: _send(description, texts, **data), get_run_logger().warning)


def _send(description: str, texts: dict[str, str], **data: Any) -> None:
    Artifact(key=REPORT_KEY, type="result", description=description, data={**data, "files": texts}).create()
