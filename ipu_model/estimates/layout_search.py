"""Search for a faster layout of a training on the same IPUs, by the estimates of memory and time.

It varies the IPUs of a replica, the layers on each IPU, the micro-batch and recomputation. Replicas follow from the
available IPUs, and accumulation from the global batch; all other settings stay. The result is a proposal: nothing is
changed.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Iterator, List, Optional

from ipu_model.estimates.ipu_memory import fits_memory
from ipu_model.estimates.ipu_time import IpuProgram, call_interval, micro_batch_seconds
from ipu_model.ipu.config import MATMUL_PROPORTION
from ipu_model.ipu.placement import Placement

MICRO_BATCHES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
"""Micro-batches that the search tries, in rows."""

WORTH_A_LINE = 0.03
"""Smallest gain that is reported; smaller ones are within the error of the estimates."""


@dataclass(frozen=True)
class Proposal:
    """Current layout of a training on its IPUs, and a faster one."""

    current: IpuProgram
    proposed: Optional[IpuProgram]
    """None if no faster layout fits."""

    @property
    def gain(self) -> float:
        """Gain in rows a second, as a share of the current rate; 0 without a proposal."""
        return rows_per_second(self.proposed) / rows_per_second(self.current) - 1 if self.proposed else 0.0

    @property
    def margin(self) -> float:
        """Seconds that the embeddings of a row may take on IPU 0 before the gain is lost; 0 without a proposal.

        Embeddings are not a matrix product and not in the formula: IPU 0 is not the slowest in any published result,
        so that none shows their time.
        """
        if self.proposed is None:
            return 0.0
        as_fast = max(_row_seconds(self.current)) * self.proposed.replicas / self.current.replicas
        return as_fast - _row_seconds(self.proposed)[self.proposed.placement.embeddings]

    @property
    def is_worthwhile(self) -> bool:
        """True if the gain is large enough and IPU 0 has a margin; without one, the gain is unknown."""
        return self.gain >= WORTH_A_LINE and self.margin > 0

    def describe(self) -> str:
        """Format its settings, its gain, and the condition for it; empty without a proposal."""
        program = self.proposed
        if program is None:
            return ""
        layers, rows = ", ".join(map(str, program.placement.layers_per_ipu)), program.micro_batch_size
        others = "" if program.keeps_every_layer else ", recompute_checkpoint_every_layer false"
        if program.replicas != self.current.replicas:
            others += f", replication_factor {program.replicas}, matmul_proportion {program.matmul_proportion[0]:g}"
        return (
            f"{self.gain:.0%} more with layers_per_ipu [{layers}], micro_batch_size {rows}{others}, "
            f"as long as the embeddings take IPU 0 less than {1000 * self.margin:.2g} ms a row"
        )


def find_faster_layout(training: IpuProgram, instances: int = 1) -> Proposal:
    """Return the fastest layout that fits the IPUs of this training, next to its own.

    Args:
        instances: number of instances that share the replicas.
    """
    faster = [(rows_per_second(cut), cut) for cut in _candidates(training, instances)]
    faster = sorted((x for x in faster if x[0] > rows_per_second(training)), key=lambda x: -x[0])
    return Proposal(training, next((cut for _, cut in faster if fits_memory(cut)), None))


def rows_per_second(training: IpuProgram) -> float:
    """Return the likely rate of a training."""
    return training.rows_per_update * training.updates_per_call / call_interval(training).likely


def _row_seconds(training: IpuProgram) -> List[float]:
    """Return the seconds of each IPU for a row."""
    return [seconds / training.micro_batch_size for seconds in micro_batch_seconds(training)]


def _candidates(training: IpuProgram, instances: int) -> Iterator[IpuProgram]:
    """Yield every layout with the same rows of an update and a filled pipeline."""
    for of_pod in _pods(training, instances):
        for placement in _placements(of_pod.placement):
            for micro_batch in MICRO_BATCHES:
                accumulation, left = divmod(training.rows_per_update, micro_batch * of_pod.replicas)
                if left or accumulation < placement.training_stages:
                    continue
                cut = dataclasses.replace(
                    of_pod, placement=placement, micro_batch_size=micro_batch, accumulation=accumulation
                )
                for keeps in (True, False):
                    yield dataclasses.replace(cut, keeps_every_layer=keeps)


def _pods(training: IpuProgram, instances: int) -> Iterator[IpuProgram]:
    """Yield the division of the available IPUs into replicas: the current one first, then others."""
    current = training.placement
    yield training
    pod, ipus = current.ipus_per_replica * training.replicas, 1
    while ipus <= min(pod, len(current.layers)):
        if ipus != current.ipus_per_replica and pod % (ipus * instances) == 0:
            replicas = pod // ipus
            last = ipus - 1 if current.heads == current.ipus_per_replica - 1 else current.heads
            shares = training.matmul_proportion
            # A list for another number of IPUs does not apply (config.py).
            share = shares[0] if len(set(shares)) == 1 else MATMUL_PROPORTION
            yield dataclasses.replace(
                training,
                placement=dataclasses.replace(current, heads=last, ipus_per_replica=ipus),
                replicas=replicas,
                shards=replicas // instances if training.shards > 1 else 1,
                matmul_proportion=(share,) * ipus,
            )
        ipus *= 2


def _placements(current: Placement) -> Iterator[Placement]:
    """Yield other divisions of the layers: IPUs after the first get an even share of the rest, within one layer."""
    layers, ipus = len(current.layers), current.ipus_per_replica
    for first in range(layers // ipus + 2):
        for rest in _shares(layers - first, ipus - 1):
            counts = [first, *rest]
            yield dataclasses.replace(
                current,
                layers=tuple(ipu for ipu, count in enumerate(counts) for _ in range(count)),
                pooler=_pooler(current, counts),
            )


def _pooler(current: Placement, counts: List[int]) -> Optional[int]:
    """Return the pooler's IPU: that of the heads where these are with the embeddings, else that of the last layer."""
    if current.pooler is None or current.pooler == current.embeddings:
        return current.pooler
    return max(ipu for ipu, count in enumerate(counts) if count)


def _shares(layers: int, ipus: int) -> List[List[int]]:
    """Return ways to share layers evenly among `ipus` IPUs.

    A surplus goes to the first or to the last of them: which of the others has it makes no difference to the time.
    """
    if not ipus:
        return [[]] if not layers else []
    share, over = divmod(layers, ipus)
    if layers and not share:
        return []
    last = [share] * (ipus - over) + [share + 1] * over
    return [last] if not over else [last, last[::-1]]
