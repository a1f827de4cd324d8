"""Configurations compared in each case. To add one, add a line."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

from bench.children import TUNED_MALLOC
from bench.setup import OPTIMIZER
from bench.targets import OURS, OURS_BF16, OURS_COMPILED, OURS_FP32


@dataclass(frozen=True)
class Variant:
    """Configuration of a case."""

    name: str
    worker: str
    """Name of a worker of bench.child."""
    settings: dict[str, Any] = field(default_factory=dict)
    """ours: overrides of Job fields; others: as documented by the worker."""
    environment: dict[str, str] = field(default_factory=dict)
    updates_factor: int = 1
    """Multiplier of the updates per round, for samplers that need whole epochs."""
    threads: tuple[int, ...] = (1, 2)
    """Thread counts to measure."""
    unit: str | None = None
    """Unit, if it differs from that of the case."""
    inputs: dict[str, Any] = field(default_factory=dict)
    """Overrides of the inputs of the case."""


GFLOP = "GFLOP"
AUTO, FP32, BF16 = {"precision": "auto"}, {"precision": "fp32"}, {"precision": "bf16"}
LONGEST = {"padding": "longest"}
GROUPED = {"padding": "longest", "sampling": "group_by_length"}

PRETRAIN_TINY = (
    Variant(OURS, "ours", AUTO),
    Variant(OURS_FP32, "ours", FP32),
    Variant(OURS_BF16, "ours", BF16, threads=(1,)),
    Variant("hf fp32", "peer", FP32),
    Variant("hf fp32 malloc", "peer", FP32, TUNED_MALLOC, threads=(1,)),
    Variant("hf bf16", "peer", BF16),
    Variant("hf bf16 malloc", "peer", BF16, TUNED_MALLOC),
)
PRETRAIN_BASE = (
    Variant(OURS, "ours", AUTO),
    Variant("hf bf16", "peer", BF16),
    Variant("hf bf16 malloc", "peer", BF16, TUNED_MALLOC),
)
SQUAD_TINY = (
    Variant(OURS, "ours", AUTO),
    Variant(OURS_FP32, "ours", FP32),
    Variant(OURS_BF16, "ours", BF16, threads=(1,)),
    Variant("hf max fp32", "peer", FP32),
    Variant("hf max bf16", "peer", BF16, threads=(1,)),
    Variant("hf longest fp32", "peer", FP32 | LONGEST, threads=(1,)),
    Variant("hf grouped fp32", "peer", FP32 | GROUPED, updates_factor=5, threads=(1,)),
    Variant("hf grouped bf16", "peer", BF16 | GROUPED, updates_factor=5),
    Variant("hf grouped bf16 malloc", "peer", BF16 | GROUPED, TUNED_MALLOC, updates_factor=5),
)
UTILISATION = (
    Variant(OURS, "ours", AUTO),
    Variant("gemm bf16", "gemm", BF16, unit=GFLOP),
    Variant("gemm fp32", "gemm", FP32, unit=GFLOP),
)
LAMB = (
    Variant(OURS, "optimizer", {"optimizer": "lamb"}),
    Variant(OURS_COMPILED, "optimizer", {"optimizer": "lamb", "compile": "optimizer"}),
    Variant("per tensor", "optimizer", {"optimizer": "lamb-plain"}),
)
ADAMW = (
    Variant(OURS, "optimizer", {"optimizer": "adamw"}),
    Variant("per tensor", "optimizer", {"optimizer": "adamw-plain"}),
)
PREDICT = (
    Variant(OURS, "predict-ours", AUTO),
    Variant(OURS_FP32, "predict-ours", FP32),
    Variant(OURS_BF16, "predict-ours", BF16, threads=(1,)),
    Variant("hf max 8 fp32", "predict-peer", FP32 | {"batch": 8}),
    Variant("hf max 64 fp32", "predict-peer", FP32 | {"batch": 64}, threads=(1,)),
    Variant("hf max 64 bf16", "predict-peer", BF16 | {"batch": 64}),
    Variant("hf longest 64 bf16 malloc", "predict-peer", BF16 | LONGEST | {"batch": 64}, TUNED_MALLOC),
)
QUESTIONS = (
    Variant(OURS, "questions-ours"),
    Variant("hf map", "questions-peer", {"pad": True}),
    Variant("hf map unpadded", "questions-peer", {"pad": False}),
    Variant("hf map 2 processes", "questions-peer", {"pad": True, "num_proc": 2}, threads=(2,)),
)
PRETRAINING_ROWS = (Variant(OURS, "pretraining-rows"),)
PACKING = tuple(
    Variant(f"{sequences:,} sequences", "packing", {"sequences": sequences})
    for sequences in (10_000, 100_000, 1_000_000)
)
LAMB_COMPILED: dict[str, Any] = {
    "compile": "optimizer",
    "optimizer": dataclasses.asdict(dataclasses.replace(OPTIMIZER, name="lamb", max_grad_norm=None)),
}
"""Job fields that turn on compilation of LAMB on a CPU."""
EMPTY, FILLED = "empty cache", "filled cache"
STARTS = (
    Variant(FILLED, "start", {"job": LAMB_COMPILED, "filled": True}),
    Variant(EMPTY, "start", {"job": LAMB_COMPILED, "filled": False}),
)
ACROSS_LENGTHS = (
    Variant(OURS, "ours", AUTO),
    Variant("hf fp32", "peer", FP32),
    Variant("hf bf16 malloc", "peer", BF16, TUNED_MALLOC),
)
RECORDED = (
    Variant(OURS, "recorded-ours", AUTO),
    Variant("hf fp32", "recorded-peer", FP32),
    Variant("hf grouped bf16 malloc", "recorded-peer", BF16 | GROUPED, TUNED_MALLOC, updates_factor=10),
)
