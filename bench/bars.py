"""What the project promises of its speed. The one table of it; nothing measured stands here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from bench.results import Results
from bench.statistics import Summary, summarise

OURS, OURS_FP32 = "podium", "podium fp32"
"""The variant that bars speak of: default settings of a job, precision auto."""


@dataclass(frozen=True)
class Bar:
    """One promise."""

    text: str
    at_least: float
    stretch: float | None
    measure: Callable[[Results], Summary | None]
    """None while the configurations it needs were not measured."""
    unit: str = "x"


def _ratio(case: str, theirs: str, threads: int = 1) -> Callable[[Results], Summary | None]:
    return lambda results: results.ratio(case, OURS, theirs, threads)


def _memory(case: str, theirs: str) -> Callable[[Results], Summary | None]:
    def measure(results: Results) -> Summary | None:
        ours, peer = (results.fact(case, name, "peak_memory_mb") for name in (OURS, theirs))
        return None if ours is None or peer is None else summarise([peer / ours])

    return measure


BARS = (
    Bar("pre-training tiny, against HF Trainer fp32 as is", 9.0, 12.0, _ratio("pretrain-tiny", "hf fp32")),
    Bar("pre-training tiny, against HF bf16 with tuned malloc", 4.5, 6.0, _ratio("pretrain-tiny", "hf bf16 malloc")),
    Bar("pre-training base, against HF bf16", 1.2, 1.5, _ratio("pretrain-base", "hf bf16")),
    Bar("SQuAD tiny, against run_qa as is (pad to 384, fp32)", 4.0, 6.0, _ratio("squad-tiny", "hf max fp32")),
    Bar("SQuAD tiny, against HF group_by_length bf16", 1.2, 1.6, _ratio("squad-tiny", "hf grouped bf16")),
    Bar("peak memory of tiny pre-training: HF fp32 over ours", 2.0, None, _memory("pretrain-tiny", "hf fp32")),
)
