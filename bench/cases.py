"""What is measured: cases, and the configurations that are compared in each. To add one, add a line."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import Any

from bench.bars import OURS, OURS_FP32
from bench.children import TUNED_MALLOC
from bench.setup import Training


@dataclass(frozen=True)
class Variant:
    """One configuration of a case."""

    name: str
    worker: str
    """Of bench.child."""
    settings: dict[str, Any] = field(default_factory=dict)
    """ours: fields laid over the Job; peer: precision, padding, sampling."""
    environment: dict[str, str] = field(default_factory=dict)
    updates_factor: int = 1
    """So many times the updates of a round; for samplers that need whole epochs."""


@dataclass(frozen=True)
class Case:
    """Configurations that do the same job, measured in interleaved rounds."""

    name: str
    title: str
    unit: str
    variants: tuple[Variant, ...]
    training: Training
    updates: int
    """Of one round."""
    rounds: int
    warmup: int = 2
    threads: tuple[int, ...] = (1, 2)

    def spec(self, variant: Variant, threads: int) -> dict[str, Any]:
        """What bench.child needs to know."""
        return {
            "worker": variant.worker,
            "threads": threads,
            "training": asdict(self.training),
            "settings": variant.settings,
            "updates": self.updates * variant.updates_factor,
            "rounds": self.rounds,
            "warmup": self.warmup,
        }


PRETRAIN_TINY = (
    Variant(OURS, "ours", {"precision": "auto"}),
    Variant(OURS_FP32, "ours", {"precision": "fp32"}),
    Variant("hf fp32", "peer", {"precision": "fp32"}),
    Variant("hf fp32 malloc", "peer", {"precision": "fp32"}, TUNED_MALLOC),
    Variant("hf bf16", "peer", {"precision": "bf16"}),
    Variant("hf bf16 malloc", "peer", {"precision": "bf16"}, TUNED_MALLOC),
)
PRETRAIN_BASE = (
    Variant(OURS, "ours", {"precision": "auto"}),
    Variant("hf bf16", "peer", {"precision": "bf16"}),
    Variant("hf bf16 malloc", "peer", {"precision": "bf16"}, TUNED_MALLOC),
)
GROUPED = {"padding": "longest", "sampling": "group_by_length"}
SQUAD_TINY = (
    Variant(OURS, "ours", {"precision": "auto"}),
    Variant(OURS_FP32, "ours", {"precision": "fp32"}),
    Variant("hf max fp32", "peer", {"precision": "fp32"}),
    Variant("hf max bf16", "peer", {"precision": "bf16"}),
    Variant("hf longest fp32", "peer", {"precision": "fp32", "padding": "longest"}),
    Variant("hf grouped fp32", "peer", {"precision": "fp32", **GROUPED}, updates_factor=5),
    Variant("hf grouped bf16", "peer", {"precision": "bf16", **GROUPED}, updates_factor=5),
    Variant("hf grouped bf16 malloc", "peer", {"precision": "bf16", **GROUPED}, TUNED_MALLOC, updates_factor=5),
)
REAL_TOKENS = "real tokens"


def make_cases(rows: dict[str, str]) -> tuple[Case, ...]:
    """All cases over the row folders `rows` (name -> path: phase1, squad-train, squad-dev)."""
    tiny = Training("pretrain", "tiny", rows["phase1"], 32)
    return (
        Case("pretrain-tiny", "pre-training, tiny, 32 x 128", REAL_TOKENS, PRETRAIN_TINY, tiny, updates=4, rounds=5),
        Case("pretrain-base", "pre-training, base, 8 x 128", REAL_TOKENS, PRETRAIN_BASE,
             replace(tiny, size="base", sequences=8), updates=2, rounds=5),
        Case("squad-tiny", "SQuAD, tiny, 16 x 384", REAL_TOKENS, SQUAD_TINY,
             Training("squad", "tiny", rows["squad-train"], 16), updates=10, rounds=5),
    )  # fmt: skip
