"""Every figure of the IPU estimates that is no arithmetic: of data sheets, fitted to published runs, or assumed.

Nothing here was measured by us on a device. `python -m bench.ipu_estimates` fits anew and compares.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Dict


@dataclass(frozen=True)
class Generation:
    """One kind of IPU."""

    name: str
    peak_flops: float
    """fp16.16, per second and IPU (Graphcore's data sheets)."""
    clock: float
    """Beside Mk2's: Graphcore states up to 40 % more for a Bow, which is the same chip at a higher clock."""


MK2, BOW = Generation("Mk2", 250e12, 1.0), Generation("Bow", 350e12, 1.4)
GENERATIONS: Dict[str, Generation] = {"mk2": MK2, "bow": BOW}

TILE_BYTES = 1472 * 624 * 1024
"""SRAM of an IPU, Mk2 and Bow alike, 941 MB: 1,472 tiles of 638,976 bytes (data sheets; the number stands in the
out-of-memory message of Graphcore's "Memory and performance optimisation", section 6)."""

PASSES = 4
"""Of one micro-batch through a layer while training, in forward passes: forward, again when activations are recomputed,
which pipelined training always does, and twice that on the way back."""


@dataclass(frozen=True)
class Fitted:
    """What time is made of, fitted to the rows of bench/ipu_published.py; docs/ipu-estimates.md has the errors.

    Seconds are linear in each of them, so that a fit is a least-squares one.
    """

    dense: float
    """Seconds of products with weights, beside what they would take at the peak: 2.5 means 40 % of it."""
    score: float
    """Seconds on Mk2 of one number of [heads, L, L] in all passes of training: its products, softmax and dropout."""
    layer: float
    """Seconds on Mk2 of one layer and micro-batch, whatever its size: launches, synchronisation, exchange."""
    offchip: float
    """Seconds of an update for each weight of the model, where the optimizer state is off chip."""
    host: float
    """Seconds of the host for each call with PyTorch."""


FITTED = Fitted(dense=2.53, score=27.0e-12, layer=0.190e-3, offchip=0.467e-9, host=0.250)
"""All rows of pre-training, and SQuAD on a POD16 of Mk2."""

# Time, of data sheets.
LINK_BYTES_PER_SECOND = 320e9
"""Of an IPU to its neighbours (IPU-Links)."""
GATEWAY_BYTES_PER_SECOND = 25e9
"""Of a machine of 4 IPUs to other racks (two GW-Links of 100 Gb/s)."""
HOST_BYTES_PER_SECOND = 12.5e9
"""Of a machine of 4 IPUs to its host (100 Gb/s)."""
IPUS_PER_MACHINE, IPUS_PER_RACK = 4, 16

# Time: how far off.
SPREAD = 0.12
"""Of the time of micro-batches where an update has ENOUGH of them: the worst error of a pre-training row, estimated
from the rows of other layouts, is 11 %."""
SPREAD_OF_FEW = 0.20
"""Of fewer: SQuAD rows of a Bow Pod16 took up to 18 % less."""
ENOUGH = 256
"""Micro-batches of an update: no fitted row has fewer."""
OFFCHIP_SPREAD = (0.5, 2.5)
"""Of offchip: BERT large with PyTorch takes more than twice as much in pre-training, other frameworks less than one."""
HOST_SPREAD = (0.0, 1.1)
"""Of host: nothing is left to it in the PyTorch figure of SQuAD on a Bow Pod16, whose host made rows ready ahead, as
Podium's does; all of it in the figures of two notebooks."""
SWAP_SECONDS = 30.0
"""Assumed of an evaluation, as nobody published it: its program and the weights go to the IPUs, then those of training
with the optimizer's state. To fill 16 IPUs of 900 MB takes 1.2 s through a host link of 100 Gb/s; loading does more."""


@dataclass(frozen=True)
class Assumed:
    """What of an IPU's memory no formula gives: one set for the lower end, one likely, one for the upper end."""

    code: float
    """Bytes of code, exchange and control on an IPU with a program of training. Published layouts bound it: with more
    than 290 MB, and the rest at its lower end, one of them would not fit."""
    inference_code: float
    """The same of a program that only goes forward."""
    proportion: float
    """Of the memory that matmul_proportion allows for temporaries, which is a bound and no use (Graphcore, "Optimising
    temporary memory usage for convolutions and matmuls on the IPU"), and which the planner leaves behind where
    nothing fits."""
    hidden: float
    """Tensors [rows, L, H] that live at once while one layer is recomputed and differentiated."""
    scores: float
    """Tensors [rows, heads, L, L], the same."""
    logits: float
    """Tensors [rows, P, V] that live at once in the loss: logits, probabilities, their gradient."""
    update: float
    """Bytes for each number of the largest tensor while it is updated, moments that are loaded aside."""


LOW = Assumed(code=100e6, inference_code=50e6, proportion=0.5, hidden=8.0, scores=1.0, logits=2.0, update=0.0)
LIKELY = Assumed(code=170e6, inference_code=100e6, proportion=0.75, hidden=12.0, scores=2.0, logits=2.0, update=4.0)
HIGH = Assumed(code=220e6, inference_code=150e6, proportion=0.9, hidden=14.0, scores=2.5, logits=2.5, update=6.0)
