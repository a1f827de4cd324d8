"""Another cut of a training over the same IPUs: what fits and is fastest, by the estimates of memory and of time.

A search over IPUs of a replica, layers of each IPU, micro-batch and recomputation; replicas follow from the IPUs that
there are, accumulation from the global batch. Everything else of the job stays. What it finds is a proposal, nothing is
changed.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Iterator, List, Optional

from ipu_model.estimates.estimate import worst_verdict
from ipu_model.estimates.ipu_memory import fits, ipu_memories
from ipu_model.estimates.ipu_program import IpuProgram
from ipu_model.estimates.ipu_time import call_interval, micro_batch_seconds
from ipu_model.ipu.config import MATMUL_PROPORTION
from ipu_model.ipu.placement import Placement

MICRO_BATCHES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
"""Rows that are tried, which a program with fixed shapes can have."""

WORTH_A_LINE = 0.03
"""Gain of a faster cut that is told; smaller ones are lost in what is not known."""


@dataclass(frozen=True)
class Cut:
    """One way to lay a training over its IPUs, and what it gives and takes."""

    program: IpuProgram
    rows_per_second: float
    """Likely."""
    verdict: str
    fullest_bytes: float
    """Likely, of its fullest IPU."""
    first_seconds: float
    """What a row takes IPU 0."""
    slowest_seconds: float
    """What a row takes the slowest IPU."""


@dataclass(frozen=True)
class Proposal:
    """What is there, and what would be faster."""

    stated: Cut
    proposed: Optional[Cut]
    """None where nothing that fits is faster."""

    @property
    def gain(self) -> float:
        """Of rows a second, as a share of what is stated; 0 without a proposal."""
        return self.proposed.rows_per_second / self.stated.rows_per_second - 1 if self.proposed else 0.0

    @property
    def margin(self) -> float:
        """Seconds that the embeddings of a row may take IPU 0 before the gain is gone.

        They are no matrix product and not in the formula: IPU 0 is the slowest in no published row, so that none says
        what they take. 0 without a proposal.
        """
        if self.proposed is None:
            return 0.0
        as_fast = self.stated.slowest_seconds * self.proposed.program.replicas / self.stated.program.replicas
        return as_fast - self.proposed.first_seconds

    @property
    def is_worth_a_line(self) -> bool:
        """It gains something, and goes on to where IPU 0 has room: without a margin nothing is known of the gain."""
        return self.gain >= WORTH_A_LINE and self.margin > 0


def in_words(cut: Cut, proposal: Proposal) -> str:
    """What is proposed, what it gains, and what would undo that."""
    program = cut.program
    layers, rows = ", ".join(map(str, program.placement.layers_per_ipu)), program.micro_batch_size
    others = "" if program.keeps_every_layer else ", recompute_checkpoint_every_layer false"
    if program.replicas != proposal.stated.program.replicas:
        others += f", replication_factor {program.replicas}, matmul_proportion {program.matmul_proportion[0]:g}"
    return (
        f"{proposal.gain:.0%} more with layers_per_ipu [{layers}], micro_batch_size {rows}{others}, "
        f"as long as the embeddings take IPU 0 less than {1000 * proposal.margin:.2g} ms a row"
    )


def propose(training: IpuProgram, instances: int = 1) -> Proposal:
    """The fastest cut that fits the IPUs of this training, next to its own.

    Args:
        instances: that share the replicas.
    """
    stated = _evaluated(training)
    faster = [(_rate(cut), cut) for cut in _cuts(training, instances)]
    faster = sorted((x for x in faster if x[0] > stated.rows_per_second), key=lambda x: -x[0])
    found = next((cut for _, cut in faster if fits(cut)), None)
    return Proposal(stated, None if found is None else _evaluated(found))


def _rate(training: IpuProgram) -> float:
    """Rows a second, likely."""
    return training.rows_per_update * training.updates_per_call / call_interval(training).likely


def _evaluated(training: IpuProgram) -> Cut:
    memories = ipu_memories(training)
    of_row = [x / training.micro_batch_size for x in micro_batch_seconds(training)]
    first, likely = of_row[training.placement.embeddings], memories[0].total.likely
    return Cut(training, _rate(training), worst_verdict(memories), likely, first, max(of_row))


def _cuts(training: IpuProgram, instances: int) -> Iterator[IpuProgram]:
    """Every cut with the rows of an update as they are, the pipeline filled."""
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
    """The IPUs that there are, shared out among more or fewer replicas: as stated first, then otherwise."""
    stated = training.placement
    yield training
    pod, ipus = stated.ipus_per_replica * training.replicas, 1
    while ipus <= min(pod, len(stated.layers)):
        if ipus != stated.ipus_per_replica and pod % (ipus * instances) == 0:
            replicas = pod // ipus
            last = ipus - 1 if stated.heads == stated.ipus_per_replica - 1 else stated.heads
            shares = training.matmul_proportion
            # A list that was made for another number of IPUs is no guide (config.py).
            share = shares[0] if len(set(shares)) == 1 else MATMUL_PROPORTION
            yield dataclasses.replace(
                training,
                placement=dataclasses.replace(stated, heads=last, ipus_per_replica=ipus),
                replicas=replicas,
                shards=replicas // instances if training.shards > 1 else 1,
                matmul_proportion=(share,) * ipus,
            )
        ipus *= 2


def _placements(stated: Placement) -> Iterator[Placement]:
    """The layers cut otherwise: every IPU but the first within one of an even share of what the first leaves."""
    layers, ipus = len(stated.layers), stated.ipus_per_replica
    for first in range(layers // ipus + 2):
        for rest in _shares(layers - first, ipus - 1):
            counts = [first, *rest]
            yield dataclasses.replace(
                stated,
                layers=tuple(ipu for ipu, count in enumerate(counts) for _ in range(count)),
                pooler=_pooler(stated, counts),
            )


def _pooler(stated: Placement, counts: List[int]) -> Optional[int]:
    """Beside the heads where these came back to the embeddings, else beside the last layer."""
    if stated.pooler is None or stated.pooler == stated.embeddings:
        return stated.pooler
    return max(ipu for ipu, count in enumerate(counts) if count)


def _shares(layers: int, ipus: int) -> List[List[int]]:
    """Ways to give each of `ipus` IPUs its share of layers, one more to any of them where they do not come out even.

    The surplus goes to the first of them, or to the last: which of the others has it makes no difference to the time.
    """
    if not ipus:
        return [[]] if not layers else []
    share, over = divmod(layers, ipus)
    if layers and not share:
        return []
    last = [share] * (ipus - over) + [share + 1] * over
    return [last] if not over else [last, last[::-1]]
