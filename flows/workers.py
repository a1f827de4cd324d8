"""The side of a run that sends stages to workers and waits: any host that reaches the Prefect server will do.

Consecutive stages for the same queue go together, as one run of the deployment `podium-stages/<pool>`.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from prefect.client.orchestration import get_client
from prefect.exceptions import ObjectNotFound

from flows import dvc, releases
from flows.dvc.session import restore
from flows.plan import publish_after
from flows.sent_runs import Dispatch, Queue, SentRun, deployment_of
from flows.stages import RunFailed
from ipu_model.files import read_json
from tasks.project import artifacts
from tasks.project.errors import ParamsError
from tasks.project.plan_file import Plan, read_plan
from tasks.project.stage_kinds import AUTO

POLL_S = 2.0
CPU_QUEUE = "cpu/default"


def queues_of(runtime: str, cpu_queue: str, device_queue: str | None) -> tuple[Queue, Queue]:
    """The queue of stages without a device and that of the others; the latter is `<runtime>/default` unless stated.

    Raises:
        ParamsError: a queue is misstated, or the device's cannot be known.
    """
    if device_queue is None and runtime == AUTO:
        raise ParamsError("device.runtime=auto does not say whose workers train: state device_queue, such as ipu/pod-a")
    cpu = Queue.parse(cpu_queue, "cpu_queue")
    return cpu, Queue.parse(device_queue or f"{runtime}/default", "device_queue")


def groups(plan: Sequence[str], known: Plan, cpu: Queue, device: Queue) -> Iterator[tuple[Queue, list[str]]]:
    """Consecutive stages that go to the same queue, in the order of the plan."""
    for queue, names in itertools.groupby(plan, lambda stage: device if known[stage].uses_device else cpu):
        yield queue, list(names)


def require_deployment(queue: Queue) -> None:
    """The server must know the deployment and the queue before anything is sent.

    Raises:
        ParamsError: it does not; says how to make it.
    """
    with get_client(sync_client=True) as client:
        try:
            client.read_deployment_by_name(deployment_of(queue))
            client.read_work_queue_by_name(queue.name, work_pool_name=queue.pool)
        except ObjectNotFound:
            raise ParamsError(
                f"the Prefect server at {client.api_url} knows no queue {queue} with the deployment "
                f"{deployment_of(queue)}: run `podium deploy --queue {queue}` once"
            ) from None


@dataclass
class Sender(Dispatch):
    """Sends runs of stages to queues and brings back what they say."""

    def run_plan(self, plan: list[str], cpu: Queue, device: Queue, publish: bool) -> None:
        """Run the stages of `plan` on their queues, then restore here what a person reads.

        Raises:
            RunFailed: see `run`.
        """
        known = read_plan(self.root)
        self.parameters["released"] = self._released(plan)
        gates = [stage for stage in plan if known[stage].is_gate]
        for queue, names in groups(plan, known, cpu, device):
            before, shares, rest = around_shares(names, known)
            if shares:
                self.run(queue, [before])
                self.run(queue, [[share] for share in shares])
            self.run(queue, [rest], publish and not set(gates).isdisjoint(names))
        self.report.read_results(self.root)
        entered = {stage.name for stage in self.report.stages}
        for gate in (known[name] for name in gates if publish_after(known[name]) in entered):
            receipt = read_json(self.root / artifacts.receipt_file(gate.item))
            self.report.enter_receipt(receipt, gate.name)
        pages = [stage for stage in plan if "page" in known[stage].meta]
        if dvc.has_remote(self.root) and (said := restore(pages, self.root, self.say)) is not None:
            self.say(f"the pages of {', '.join(pages)} could not be restored here: {said}")

    def _released(self, plan: Sequence[str]) -> releases.Chosen:
        try:
            return releases.choose(plan, self.root)
        except releases.ReleaseFailed as error:
            raise RunFailed(str(error)) from None

    def run(self, queue: Queue, together: Sequence[Sequence[str]], publish: bool = False) -> None:
        """Send runs of consecutive stages to `queue` at once, and each again when its worker is lost or a stage paused.

        Raises:
            RunFailed, RunStopped: see `SentRun.look`; the others are cancelled.
        """
        runs: list[SentRun] = []
        with get_client(sync_client=True) as client:
            try:
                for names in filter(None, together):
                    runs.append(SentRun(self, client, queue, names, publish))
                waiting = list(runs)
                while waiting := [run for run in waiting if not run.look()]:
                    time.sleep(POLL_S)
            except BaseException:  # cancelled, interrupted or failed here: no pod must work on for nobody
                for run in runs:
                    run.cancel()
                raise


def around_shares(names: Sequence[str], known: Plan) -> tuple[list[str], list[str], list[str]]:
    """Stages of one queue before those that help others, these, and the run that follows, where they are restored.

    around_shares(["tokenizer", "row_share@1", "pretrain_rows@phase1"], ...) ==
    (["tokenizer"], ["row_share@1"], ["row_share@1", "pretrain_rows@phase1"]); without shares all is in the last.
    """
    places = [index for index, name in enumerate(names) if "helps" in known[name].meta]
    if not places:
        return [], [], list(names)
    return list(names[: places[0]]), [names[place] for place in places], list(names[places[0] :])
