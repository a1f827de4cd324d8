"""Settings that `auto` leaves to a measurement before the job starts, and their record.

A second measurement could give another result, and a run must not change its numbers. So the choice is recorded in the
run folder before training, and in every checkpoint, which also carries it to other hosts.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Callable, Optional, Tuple

from ipu_model.core.files import find_object, fingerprint, write_json
from ipu_model.core.progress import Emit
from ipu_model.distributed.instances import Instances
from ipu_model.jobs.plan import Choice, JobPlan
from ipu_model.train.checkpoint import Checkpoints, Fingerprint


@dataclass(frozen=True)
class MeasuredSetting:
    """A setting with two values, of which a measurement takes one."""

    name: str
    """Name of a field of JobPlan."""
    values: Tuple[str, str]

    @property
    def record(self) -> str:
        """Name of the record in the run folder."""
        return f"{self.name}.json"

    @property
    def field(self) -> str:
        """Name in the fingerprint of a run."""
        return f"plan.{self.name}"

    def resolve(
        self,
        plan: JobPlan,
        run_fingerprint: Fingerprint,
        run_folder: Path,
        instances: Instances,
        emit: Emit,
        choose: Callable[[], Choice],
    ) -> Choice:
        """Resolve `auto` for a job: the value that its training started with, else what `choose` returns.

        Instance 0 chooses for all. `run_fingerprint` is that of a training with `auto`; a prediction records nothing.
        """
        if plan.kind == "predict":
            return choose()
        instances.join(plan.runtime)
        choice = Choice(self.values[0], "auto: chosen by instance 0")
        if instances.is_writer:
            choice = self.find_recorded(run_folder, run_fingerprint, emit) or choose()
            record = {"job": fingerprint(run_fingerprint), self.name: choice.value, "reason": choice.reason}
            write_json(run_folder / self.record, record)
        (second,) = instances.any_instance([instances.is_writer and choice.value == self.values[1]])
        return Choice(self.values[second], choice.reason)

    def find_recorded(self, run_folder: Path, run_fingerprint: Fingerprint, emit: Emit) -> Optional[Choice]:
        """Return the value that this job started with, from its newest checkpoint or, without one, from its record."""
        record = find_object(run_folder / self.record) or {}
        recorded, value, reason = (record.get(name) for name in ("job", self.name, "reason"))
        state = Checkpoints(run_folder, run_fingerprint, emit).read_newest_state()
        if state is not None:
            recorded = fingerprint({**state["fingerprint"], self.field: "auto"})
            value, reason = state["fingerprint"].get(self.field), state.get(f"{self.name}_reason")
        if recorded != fingerprint(run_fingerprint) or value not in self.values:
            return None
        emit("message", text=f"{self.name}: {value}, recorded when this run started")
        return Choice(str(value), str(reason or "auto: recorded when this run started"))
