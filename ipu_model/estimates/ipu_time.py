"""How long a call keeps the IPUs, worked out before anything runs.

    seconds of an update = (accumulation + 2F - 2) x slowest IPU's micro-batch + update + collectives + host streams
    micro-batch of an IPU = layers x (dense products + scores + launches) + heads

F forward stages: 2F - 2 micro-batches are ramp-up and ramp-down. The heads of pre-training are back on IPU 0, to whose
work they add. Constants and their sources: ipu_constants.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import List, Tuple

from ipu_model.estimates import ipu_constants as constants
from ipu_model.estimates.estimate import Interval, Term
from ipu_model.estimates.ipu_constants import FITTED, MK2, PASSES, Fitted, Generation
from ipu_model.estimates.shapes import RowShape, decoder_flops, dense_flops, layer_parameters, model_parameters
from ipu_model.ipu.placement import Placement
from ipu_model.models.config import ModelConfig

TOKEN_COLUMNS = 4
"""int32 columns of L numbers that a program reads: ids, types, positions, sequences."""


@dataclass(frozen=True)
class Training:
    """What decides the seconds of one call of a training program."""

    model: ModelConfig
    placement: Placement
    rows: RowShape
    micro_batch_size: int
    accumulation: int
    replicas: int = 1
    updates_per_call: int = 1
    state_offchip: bool = False
    generation: Generation = MK2
    fitted: Fitted = FITTED

    @property
    def beats(self) -> int:
        """Micro-batches' time of an update: those accumulated, ramp-up and ramp-down."""
        return self.accumulation + 2 * self.placement.forward_stages - 2

    @property
    def rows_per_update(self) -> int:
        """Over all replicas."""
        return self.accumulation * self.micro_batch_size * self.replicas


def micro_batch_seconds(
    model: ModelConfig,
    placement: Placement,
    rows: RowShape,
    micro_batch_size: int,
    generation: Generation,
    fitted: Fitted = FITTED,
) -> List[float]:
    """Seconds that each IPU of a replica works for one micro-batch while training, all its stages together.

    A single IPU recomputes nothing, which saves one of the passes.
    """
    passes = PASSES if placement.forward_stages > 1 else PASSES - 1
    shape = (model, placement, rows, micro_batch_size, generation, fitted)
    return [passes * seconds for seconds in _pass_seconds(*shape)]


def _pass_seconds(
    model: ModelConfig,
    placement: Placement,
    rows: RowShape,
    micro_batch_size: int,
    generation: Generation,
    fitted: Fitted,
) -> List[float]:
    """The same of one pass of PASSES, which is what going forward takes."""
    speed = micro_batch_size * fitted.dense / generation.peak_flops
    number = fitted.score / PASSES * micro_batch_size / generation.clock
    layer = dense_flops(model, rows.length) * speed + model.num_heads * rows.length**2 * number
    layer += fitted.layer / PASSES / generation.clock
    seconds = [0.0] * placement.ipus_per_replica
    for ipu in placement.layers:
        seconds[ipu] += layer
    # Assumed: a logit costs what a score costs; both go through a softmax and its gradient.
    seconds[placement.heads] += decoder_flops(model, rows.masked) * speed + rows.masked * model.vocab_size * number
    return seconds


@dataclass(frozen=True)
class UpdateSeconds:
    """The seconds of one update, by what takes them; a call's fixed cost aside."""

    slowest: int
    """The IPU that the others wait for."""
    micro_batches: float
    ramp: float
    collectives: float
    streams: float
    offchip: float

    @property
    def terms(self) -> Tuple[Term, ...]:
        """All that takes some."""
        found = (
            Term(
                f"micro-batches through IPU {self.slowest}, the slowest",
                self.micro_batches,
                f"layers_per_ipu: fewer layers on IPU {self.slowest}",
            ),
            Term("ramp-up and ramp-down", self.ramp, "micro_batch_size: smaller, for more accumulation"),
            Term("collectives", self.collectives, "global_batch_size: larger"),
            Term("host streams", self.streams),
            Term("optimizer state from off chip", self.offchip, "optimizer_state_offchip: false, where it fits"),
        )
        return tuple(term for term in found if term.amount)

    @property
    def likely(self) -> float:
        """Their sum."""
        return self.micro_batches + self.ramp + self.collectives + self.streams + self.offchip


def update_seconds(training: Training) -> UpdateSeconds:
    """The seconds of one update."""
    shape = (training.model, training.placement, training.rows, training.micro_batch_size, training.generation)
    seconds = micro_batch_seconds(*shape, training.fitted)
    slowest = max(range(len(seconds)), key=seconds.__getitem__)
    weights = model_parameters(training.model, training.placement.head) if training.state_offchip else 0
    return UpdateSeconds(
        slowest,
        training.accumulation * seconds[slowest],
        (training.beats - training.accumulation) * seconds[slowest],
        _collective_seconds(training),
        _stream_seconds(training),
        training.fitted.offchip * weights,
    )


def call_seconds(training: Training) -> float:
    """Seconds of one call, likely: its updates, and what the host takes between two calls."""
    return call_interval(training).likely


def call_interval(training: Training) -> Interval:
    """The same with its ends, see SPREAD and what stands beside it."""
    found, updates = update_seconds(training), training.updates_per_call
    spread = constants.SPREAD if training.accumulation >= constants.ENOUGH else constants.SPREAD_OF_FEW
    beats, rest = found.micro_batches + found.ramp, found.collectives + found.streams
    (fewest, most), (least_host, most_host) = constants.OFFCHIP_SPREAD, constants.HOST_SPREAD
    host = training.fitted.host
    return Interval(
        updates * ((1 - spread) * beats + rest + fewest * found.offchip) + least_host * host,
        updates * found.likely + host,
        updates * ((1 + spread) * beats + rest + most * found.offchip) + most_host * host,
    )


def inference_interval(
    model: ModelConfig,
    placement: Placement,
    rows: RowShape,
    micro_batch_size: int,
    iterations: int,
    pipelined: bool = True,
    generation: Generation = MK2,
) -> Interval:
    """Seconds of one call that only goes forward: a pass is a fourth of training's.

    Args:
        placement: of inference.
        iterations: micro-batches of a replica in one call.
        pipelined: all IPUs work at a time; else one after the other.
    """
    each = _pass_seconds(model, placement, rows, micro_batch_size, generation, FITTED)
    beats = (iterations + placement.forward_stages - 1) * max(each) if pipelined else iterations * sum(each)
    spread, (least_host, most_host) = constants.SPREAD_OF_FEW, constants.HOST_SPREAD
    return Interval(
        (1 - spread) * beats + least_host * FITTED.host,
        beats + FITTED.host,
        (1 + spread) * beats + most_host * FITTED.host,
    )


def evaluation_seconds(
    model: ModelConfig, placement: Placement, rows: RowShape, micro_batch_size: int, iterations: int, calls: int
) -> float:
    """Seconds that IPUs are kept from training by one evaluation: its calls, and the change of programs.

    Args:
        calls: that all held-out rows take; the others as for inference_interval.
    """
    each = inference_interval(model, placement, rows, micro_batch_size, iterations)
    return constants.SWAP_SECONDS + calls * each.likely


def _collective_seconds(training: Training) -> float:
    """A ring over the replicas: fp16 gradients of the fullest IPU, there and back; between racks over the gateways."""
    if training.replicas < 2:
        return 0.0
    counts = [training.placement.layers.count(ipu) for ipu in range(training.placement.ipus_per_replica)]
    moved = 2 * 2.0 * max(counts) * layer_parameters(training.model)
    ipus = training.replicas * training.placement.ipus_per_replica
    if ipus <= constants.IPUS_PER_RACK:
        return moved / constants.LINK_BYTES_PER_SECOND
    return moved / constants.LINK_BYTES_PER_SECOND + (
        moved * constants.IPUS_PER_MACHINE / constants.GATEWAY_BYTES_PER_SECOND
    )


def _stream_seconds(training: Training) -> float:
    """The rows of an update, int32, through the host links of all machines."""
    numbers = TOKEN_COLUMNS * training.rows.length + 2 * training.rows.masked + 2 * training.rows.sequences
    machines = max(1, training.replicas * training.placement.ipus_per_replica // constants.IPUS_PER_MACHINE)
    return training.rows_per_update * numbers * 4.0 / (machines * constants.HOST_BYTES_PER_SECOND)
