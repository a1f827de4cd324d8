"""Values that decide the memory of a program on IPUs and the duration of its calls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Tuple

from ipu_model.estimates.ipu_constants import FITTED, MK2, FittedConstants, Generation
from ipu_model.estimates.shapes import RowShape
from ipu_model.ipu.placement import Placement
from ipu_model.models.config import ModelConfig


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
    """Share of each IPU."""
    weight_bytes: float = 2.0
    """Bytes of one element of the weights and activations."""
    gradient_bytes: float = 2.0
    """Bytes of one element of the accumulated gradients."""
    moment_bytes: float = 8.0
    """Bytes of all moments of one weight; 0 in inference."""
    shards: int = 1
    """Replicas that share the moments; 1 if each has all of them."""
    keeps_every_layer: bool = True
    """Value of recompute_checkpoint_every_layer."""
    table_pieces: int = 1
    """Parameters that the word table is cut into."""
    table_cuts: bool = True
    """True if embedding_serialization_factor can cut the table further: LAMB trains it whole."""
    decoder_pieces: int = 1
    """Pieces that the product with the tied decoder is cut into."""
    labels: int = 2
    """Classes of a head that is not tied."""

    @property
    def beats(self) -> int:
        """Duration of an update in micro-batches: accumulation, ramp-up and ramp-down."""
        return self.accumulation + 2 * self.placement.forward_stages - 2

    @property
    def rows_per_update(self) -> int:
        """Rows of an update over all replicas."""
        return self.accumulation * self.micro_batch_size * self.replicas
