"""The fit behind host_constants.py: least squares over what tensors do not explain of the measured peaks.

    peak - tensors = process + a table + b logits + c passes (bf16) + d logits of evaluations

in bytes, each configuration weighted by 1 / peak, so that ratios count. `python -m bench.host_estimates --fit` prints
it for the configurations that are there to fit.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ipu_model.estimates.host import HostJob, estimate_host, work_of
from ipu_model.estimates.host_memory import FP32, instants
from ipu_model.models.tiles import LOGITS_AT_ONCE

NOT_TENSORS = ("Python, torch and its libraries", "holes between tensors", "what the fit may miss")
NAMES = (
    "PROCESS_BYTES",
    "HOLES_OF_TABLE",
    "HOLES_OF_LOGITS",
    "HOLES_OF_PASSES (bf16)",
    "HOLES_OF_EVALUATION",
)
MB = 1 << 20


def fit(measured: Sequence[tuple[HostJob, float]]) -> dict[str, float]:
    """The constants, by name; PROCESS_BYTES in MB.

    Args:
        measured: Each job with its peak, MB.
    """
    factors, rests, weights = [], [], []
    for asked, peak in measured:
        memory = estimate_host(asked).memory[0]
        tensors = sum(term.amount for term in memory.terms if term.name not in NOT_TENSORS) / MB
        factors.append(_factors(asked, memory.where.partition(", ")[2]))
        rests.append(peak - tensors)
        weights.append(1 / peak)
    weight = np.array(weights)
    found, *_ = np.linalg.lstsq(np.array(factors) * weight[:, None], np.array(rests) * weight, rcond=None)
    return dict(zip(NAMES, found.tolist(), strict=True))


def _factors(asked: HostJob, instant: str) -> list[float]:
    """What each constant is multiplied with, MB."""
    work, vocabulary = work_of(asked), asked.config.vocab_size
    passing = sum(term.amount for term in instants(work).get(instant, []))
    masked = work.shape.masked if work.words_predicted else 0.0
    judged = min(masked, LOGITS_AT_ONCE // vocabulary) if work.evaluates else 0.0
    low = work.precision == "bf16"
    factors = (
        FP32 * work.counted.words,
        work.wide * masked * vocabulary,
        passing if low else 0.0,
        FP32 * judged * vocabulary,
    )
    return [1.0, *(factor / MB for factor in factors)]
