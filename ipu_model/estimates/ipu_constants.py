"""Constants of the IPU estimates: from data sheets, fitted to published runs, or assumed.

We measured none of them on a device. `python -m bench.ipu_estimates` repeats the fit and compares.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Dict


@dataclass(frozen=True)
class Generation:
    """Generation of IPUs."""

    name: str
    peak_flops: float
    """FLOPs in fp16.16, per second and IPU (Graphcore's data sheets)."""
    clock: float
    """Clock relative to Mk2: Graphcore states up to 40 % more for a Bow, the same chip at a higher clock."""


MK2, BOW = Generation("Mk2", 250e12, 1.0), Generation("Bow", 350e12, 1.4)
GENERATIONS: Dict[str, Generation] = {"mk2": MK2, "bow": BOW}

TILE_BYTES = 1472 * 624 * 1024
"""SRAM of an IPU, both Mk2 and Bow, 941 MB: 1,472 tiles of 638,976 bytes (data sheets, and the out-of-memory message
in Graphcore's "Memory and performance optimisation", section 6)."""

PASSES = 4
"""Work of a layer for one micro-batch in training, in forward passes: one forward, one to recompute activations (always
in pipelined training), and two for the backward pass."""


@dataclass(frozen=True)
class FittedConstants:
    """Components of time, fitted to the rows of bench/ipu_published.py; docs/ipu-estimates.md has the errors.

    Seconds are linear in each of them, so that they can be fitted by least squares.
    """

    dense: float
    """Seconds of products with weights, relative to their time at the peak: 2.5 means 40 % of the peak."""
    score: float
    """Seconds on Mk2 for one element of [heads, L, L] in all passes of training: products, softmax and dropout."""
    layer: float
    """Seconds on Mk2 for one layer and micro-batch of any size: launches, synchronisation, exchange."""
    offchip: float
    """Seconds of an update for each weight of the model, if the optimizer state is off chip."""
    host: float
    """Seconds of the host for each call with PyTorch."""


FITTED = FittedConstants(dense=2.53, score=27.0e-12, layer=0.190e-3, offchip=0.467e-9, host=0.250)
"""Fitted to all rows of pre-training, and to SQuAD on a POD16 of Mk2."""

# Time, from data sheets.
LINK_BYTES_PER_SECOND = 320e9
"""Bandwidth from an IPU to its neighbours (IPU-Links)."""
GATEWAY_BYTES_PER_SECOND = 25e9
"""Bandwidth from a machine of 4 IPUs to other racks (two GW-Links of 100 Gb/s)."""
HOST_BYTES_PER_SECOND = 12.5e9
"""Bandwidth from a machine of 4 IPUs to its host (100 Gb/s)."""
IPUS_PER_MACHINE, IPUS_PER_RACK = 4, 16

# Time: errors.
SPREAD = 0.12
"""Error of the time of micro-batches if an update has at least ENOUGH of them: the largest error of a pre-training
row, estimated from the rows of other layouts, is 11 %."""
SPREAD_OF_FEW = 0.20
"""Error with fewer micro-batches: SQuAD rows of a Bow Pod16 took up to 18 % less."""
ENOUGH = 256
"""Micro-batches of an update: no fitted row has fewer."""
OFFCHIP_SPREAD = (0.5, 2.5)
"""Factors of `offchip`: BERT large with PyTorch takes more than twice as much in pre-training, other frameworks less
than one."""
HOST_SPREAD = (0.0, 1.1)
"""Factors of `host`: the PyTorch figure of SQuAD on a Bow Pod16, whose host prepared rows ahead as Podium's does,
leaves no time for it; the figures of two notebooks leave all of it."""
SWAP_SECONDS = 30.0
"""Assumed time of an evaluation for changing programs, as no figure is published: its program and the weights are sent
to the IPUs, then those of training with the optimizer's state. Filling 16 IPUs of 900 MB takes 1.2 s through a host
link of 100 Gb/s, and loading does more than that."""


@dataclass(frozen=True)
class MemoryAssumptions:
    """Parts of an IPU's memory that no formula gives: one set each for the lower end, likely, and the upper end."""

    code: float
    """Bytes of code, exchange and control on an IPU with a training program. Published layouts limit it: with more
    than 290 MB, and the rest at its lower end, one of them would not fit."""
    inference_code: float
    """Bytes of code, exchange and control on an IPU with a program that only runs forward."""
    proportion: float
    """Share used of the memory that matmul_proportion allows for temporaries, which is a limit, not a usage (Graphcore,
    "Optimising temporary memory usage for convolutions and matmuls on the IPU"), and which the planner exceeds if
    nothing fits."""
    hidden: float
    """Tensors [rows, L, H] that exist together while one layer is recomputed and differentiated."""
    scores: float
    """Tensors [rows, heads, L, L] that exist together at that time."""
    logits: float
    """Tensors [rows, P, V] that exist together in the loss: logits, probabilities, their gradient."""
    update: float
    """Bytes for each element of the largest tensor during its update, without loaded moments."""


LOW = MemoryAssumptions(code=100e6, inference_code=50e6, proportion=0.5, hidden=8.0, scores=1.0, logits=2.0, update=0.0)
LIKELY = MemoryAssumptions(
    code=170e6, inference_code=100e6, proportion=0.75, hidden=12.0, scores=2.0, logits=2.0, update=4.0
)
HIGH = MemoryAssumptions(
    code=220e6, inference_code=150e6, proportion=0.9, hidden=14.0, scores=2.5, logits=2.5, update=6.0
)
