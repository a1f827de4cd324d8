"""Program on IPUs as the estimates see it, and the duration of its calls, computed before anything runs.

    seconds of an update = (accumulation + 2F - 2) x slowest IPU's micro-batch + update + collectives + host streams
    micro-batch of an IPU = layers x (dense products + scores + launches) + heads

F forward stages: 2F - 2 micro-batches are ramp-up and ramp-down. The heads of pre-training are on IPU 0 and add to its
work. Constants and their sources: ipu_constants.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import List, Tuple

from ipu_model.estimates import ipu_constants as constants
from ipu_model.estimates.estimate import Interval, Term
from ipu_model.estimates.ipu_constants import FITTED, MK2, PASSES, FittedConstants, Generation
from ipu_model.estimates.shapes import RowShape, decoder_flops, dense_flops, layer_parameters, model_parameters
from ipu_model.ipu.placement import Placement
from ipu_model.models.config import ModelConfig

TOKEN_COLUMNS = 4
"""int32 columns of L numbers that a program reads: ids, types, positions, sequences."""


@dataclass(frozen=True)
class IpuProgram:
    """Training program, or one that only runs forward."""

    model: ModelConfig
    placement: Placement
    rows: RowShape
    micro_batch_size: int
    accumulation: int = 1
    """Micro-batches of a replica in an update, or in a call that only runs forward."""
    replicas: int = 1
    updates_per_call: int = 1
    state_offchip: bool = False
    generation: Generation = MK2
    fitted: FittedConstants = FITTED
    training: bool = True
    pipelined: bool = True
    """True if all IPUs work in parallel, as in every training; else one after the other."""
    matmul_proportion: Tuple[float, ...] = ()
    weight_bytes: float = 2.0
    """Bytes of one element of the weights and activations."""
    gradient_bytes: float = 2.0
    """Bytes of one element of the accumulated gradients."""
    moment_bytes: float = 8.0
    """Bytes of all moments of one weight; 0 in inference."""
    shards: int = 1
    """Replicas that share the moments; 1 if each has all of them."""
    keeps_every_layer: bool = True
    table_pieces: int = 1
    """Parameters that the word table is cut into."""
    table_cuts: bool = True
    """True if embedding_serialization_factor can cut the table further: LAMB trains it whole."""
    decoder_pieces: int = 1
    """Pieces that the product with the tied decoder is cut into."""
    labels: int = 2
    """Classes of a head that is not tied."""

    @property
    def rows_per_update(self) -> int:
        """Rows of an update over all replicas."""
        return self.accumulation * self.micro_batch_size * self.replicas


def micro_batch_seconds(program: IpuProgram) -> List[float]:
    """Return the seconds of each IPU of a replica for one micro-batch of training, over all its stages.

    A single IPU recomputes nothing, which saves one pass.
    """
    passes = PASSES if program.placement.forward_stages > 1 else PASSES - 1
    return [passes * seconds for seconds in _pass_seconds(program)]


def _pass_seconds(program: IpuProgram) -> List[float]:
    """Return the seconds of each IPU for one of the PASSES, that is, for a forward pass."""
    model, rows, fitted, generation = program.model, program.rows, program.fitted, program.generation
    speed = program.micro_batch_size * fitted.dense / generation.peak_flops
    number = fitted.score / PASSES * program.micro_batch_size / generation.clock
    layer = dense_flops(model, rows.length) * speed + model.num_heads * rows.length**2 * number
    layer += fitted.layer / PASSES / generation.clock
    seconds = [0.0] * program.placement.ipus_per_replica
    for ipu in program.placement.layers:
        seconds[ipu] += layer
    # Assumed: a logit costs what a score costs; both go through a softmax and its gradient.
    logits = decoder_flops(model, rows.masked) * speed + rows.masked * model.vocab_size * number
    seconds[program.placement.heads] += logits
    return seconds


@dataclass(frozen=True)
class UpdateSeconds:
    """Seconds of one update by component, without the fixed cost of a call."""

    slowest: int
    """IPU that the others wait for."""
    micro_batches: float
    ramp: float
    collectives: float
    streams: float
    offchip: float

    @property
    def terms(self) -> Tuple[Term, ...]:
        """Components that are not zero."""
        terms = (
            Term(
                f"micro-batches through IPU {self.slowest}, the slowest",
                self.micro_batches,
                f"layers_per_ipu: fewer layers on IPU {self.slowest}",
            ),
            Term("ramp-up and ramp-down", self.ramp, "micro_batch_size: smaller, for more accumulation"),
            Term("collectives", self.collectives, "global_batch_size: larger"),
            Term("host streams", self.streams),
            Term("off-chip optimizer state", self.offchip, "optimizer_state_offchip: false, where it fits"),
        )
        return tuple(term for term in terms if term.amount)

    @property
    def likely(self) -> float:
        """Sum of the components."""
        return self.micro_batches + self.ramp + self.collectives + self.streams + self.offchip


def update_seconds(training: IpuProgram) -> UpdateSeconds:
    """Return the seconds of one update."""
    seconds = micro_batch_seconds(training)
    slowest = max(range(len(seconds)), key=seconds.__getitem__)
    weights = model_parameters(training.model, training.placement.head) if training.state_offchip else 0
    return UpdateSeconds(
        slowest,
        training.accumulation * seconds[slowest],
        2 * (training.placement.forward_stages - 1) * seconds[slowest],
        _collective_seconds(training),
        _stream_seconds(training),
        training.fitted.offchip * weights,
    )


def call_interval(training: IpuProgram) -> Interval:
    """Return the seconds of one call: its updates, and the time of the host between calls (bounds: SPREAD and others).

    A program that does not train only runs forward, a fourth of the work of training.
    """
    if not training.training:
        return _inference_interval(training)
    update, updates = update_seconds(training), training.updates_per_call
    spread = constants.SPREAD if training.accumulation >= constants.ENOUGH else constants.SPREAD_OF_FEW
    beats, rest = update.micro_batches + update.ramp, update.collectives + update.streams
    (fewest, most), (least_host, most_host) = constants.OFFCHIP_SPREAD, constants.HOST_SPREAD
    host = training.fitted.host
    return Interval(
        updates * ((1 - spread) * beats + rest + fewest * update.offchip) + least_host * host,
        updates * update.likely + host,
        updates * ((1 + spread) * beats + rest + most * update.offchip) + most_host * host,
    )


def _inference_interval(program: IpuProgram) -> Interval:
    each = _pass_seconds(program)
    if program.pipelined:
        beats = (program.accumulation + program.placement.forward_stages - 1) * max(each)
    else:
        beats = program.accumulation * sum(each)
    spread, (least_host, most_host), host = constants.SPREAD_OF_FEW, constants.HOST_SPREAD, program.fitted.host
    return Interval((1 - spread) * beats + least_host * host, beats + host, (1 + spread) * beats + most_host * host)


def _collective_seconds(training: IpuProgram) -> float:
    """Return the seconds of a ring all-reduce of the fullest IPU's fp16 gradients, between racks over the gateways."""
    if training.replicas < 2:
        return 0.0
    moved = 2 * 2.0 * max(training.placement.layers_per_ipu) * layer_parameters(training.model)
    ipus = training.replicas * training.placement.ipus_per_replica
    if ipus <= constants.IPUS_PER_RACK:
        return moved / constants.LINK_BYTES_PER_SECOND
    return moved / constants.LINK_BYTES_PER_SECOND + (
        moved * constants.IPUS_PER_MACHINE / constants.GATEWAY_BYTES_PER_SECOND
    )


def _stream_seconds(training: IpuProgram) -> float:
    """Return the seconds to send the int32 rows of an update through the host links of all machines."""
    numbers = TOKEN_COLUMNS * training.rows.length + 2 * training.rows.masked + 2 * training.rows.sequences
    machines = max(1, training.replicas * training.placement.ipus_per_replica // constants.IPUS_PER_MACHINE)
    return training.rows_per_update * numbers * 4.0 / (machines * constants.HOST_BYTES_PER_SECOND)
