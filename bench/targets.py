"""Speed targets of the project, in one table; measured values are elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from bench.results import Results
from bench.statistics import Summary, summarise

OURS, OURS_FP32, OURS_BF16, OURS_COMPILED = "podium", "podium fp32", "podium bf16", "podium compiled"
"""Variants. Unless a target says compiled, it is about the first: default settings of a job and precision auto."""

Measure = Callable[[Results], Summary | None]
"""Computes the value of a target; None until its configurations are measured."""


@dataclass(frozen=True)
class Target:
    """Speed target: a ratio to a peer, or a share in percent."""

    text: str
    bar: float
    stretch: float | None
    measure: Measure
    unit: str = "x"
    at_most: bool = False
    """True if the bar is an upper limit, not a lower one."""

    def meets(self, value: float, bar: float) -> bool:
        """Return whether a value meets `bar`."""
        return value <= bar if self.at_most else value >= bar


def _ratio(case: str, theirs: str, threads: int = 1, ours: str = OURS) -> Measure:
    return lambda results: results.ratio(case, ours, theirs, threads)


def _memory(case: str, theirs: str) -> Measure:
    """Return a measure of their peak memory over ours."""

    def measure(results: Results) -> Summary | None:
        ours, peer = (results.fact(case, name, "peak_memory_mb") for name in (OURS, theirs))
        return None if ours is None or peer is None else summarise([peer / ours])

    return measure


def _share_of_peak(case: str, threads: int, gemm: str) -> Measure:
    """Return a measure of model FLOPs per second over the matrix peak of the same run, in percent per round."""

    def measure(results: Results) -> Summary | None:
        ours, peak = results.find(case, OURS, threads), results.find(case, gemm, threads)
        if ours is None or peak is None:
            return None
        best = max(peak.wall_rates) * 1e9  # the round with the least other load
        return summarise([100 * rate / best for rate in ours.note_rates("flops")])

    return measure


def _share_of_reading(case: str) -> Measure:
    """Return a measure of the CPU time of reading rows over that of whole updates, in percent."""

    def measure(results: Results) -> Summary | None:
        ours = results.find(case, OURS, 1)
        if ours is None:
            return None
        return summarise([100 * sum(s.notes["read_cpu"] for s in r) / sum(s.cpu for s in r) for r in ours.rounds])

    return measure


TINY = ("pretrain-tiny", "squad-tiny", "predict-tiny")
COMPILED = _ratio("lamb-base", "per tensor", ours=OURS_COMPILED)
FILLED = _ratio("start", "empty cache", 2, ours="filled cache")
PEAK, READING = _share_of_peak("utilisation", 2, "gemm bf16"), _share_of_reading("pretrain-tiny")
TARGETS = (
    Target("pre-training tiny, against HF Trainer fp32 as is", 9.0, 12.0, _ratio("pretrain-tiny", "hf fp32")),
    Target("pre-training tiny, against HF bf16 with tuned malloc", 4.5, 6.0, _ratio("pretrain-tiny", "hf bf16 malloc")),
    Target("pre-training base, against HF bf16", 1.2, 1.5, _ratio("pretrain-base", "hf bf16")),
    Target("SQuAD tiny, against run_qa as is (pad to 384, fp32)", 4.0, 6.0, _ratio("squad-tiny", "hf max fp32")),
    Target("SQuAD tiny, against HF group_by_length bf16", 1.2, 1.6, _ratio("squad-tiny", "hf grouped bf16")),
    *(Target(f"{case}, precision auto against fp32", 0.95, None, _ratio(case, OURS_FP32)) for case in TINY),
    Target("LAMB step base, compiled, against LAMB per tensor", 2.5, 3.0, COMPILED),
    Target("base-size step, 2 threads: model FLOPs of the bf16 matrix peak", 45.0, 60.0, PEAK, "%"),
    Target("peak memory of tiny pre-training: HF fp32 over ours", 2.0, None, _memory("pretrain-tiny", "hf fp32")),
    Target(
        "SQuAD prediction tiny, against HF padded fp32, batch 8", 3.0, None, _ratio("predict-tiny", "hf max 8 fp32")
    ),
    Target("SQuAD features, against datasets.map of run_qa", 6.0, None, _ratio("prepare-squad", "hf map")),
    Target("start of a run with LAMB compiled, filled cache against empty", 8.0, None, FILLED),
    Target("reading rows, of the CPU time of a tiny pre-training step", 1.0, None, READING, "%", at_most=True),
)
