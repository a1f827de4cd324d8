"""Held-out loss of a pre-training next to that of the model it continues, on the same rows with the same masks."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

CONFIDENCE = 0.95


def compare_with_original(before: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metrics of a comparison: figures of the original, and the change of the loss with its interval.

    Args:
        before: `before` of Evaluator.summary: figures, new_head, and (loss before, loss after, labels) of each group of
            rows, sums over its masked tokens.
    """
    figures = {name: round(value, 6) for name, value in before["figures"].items()}
    return {**figures, "new_head": before["new_head"], **_change(before["groups"])}


def _change(groups: Sequence[Sequence[float]]) -> dict[str, Any]:
    """Return the change of the mean loss per masked token, and from two groups on its interval.

    The change is a ratio of sums over groups, which have different numbers of masked tokens. Its variance is that of
    the ratio estimator (Cochran 1977, "Sampling Techniques", section 6.4), its bounds are those of Student's t. Rows of
    a document resemble each other; the interval treats them as independent.
    """
    old, new, labels = np.array(groups, dtype=np.float64).T
    change, count = float((new - old).sum() / max(1.0, labels.sum())), len(groups)
    found = {"change": round(change, 6), "groups": count}
    if count < 2:
        return found
    from scipy.stats import t  # takes 0.6 s to import

    rest = new - old - change * labels
    error = math.sqrt(count / (count - 1) * float((rest**2).sum())) / max(1.0, float(labels.sum()))
    half = float(t.ppf((1 + CONFIDENCE) / 2, count - 1)) * error
    return {**found, "change_low": round(change - half, 6), "change_high": round(change + half, 6)}
