"""Held-out loss of a pre-training next to that of the model it continues, on the same text with the same masks."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

CONFIDENCE = 0.95


def compare_with_original(before: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metrics of a comparison: figures of the original, and the change of the loss with its interval.

    Args:
        before: `before` of Evaluator.summary: figures, new_head, and (loss before, loss after, labels) of each group,
            sums over its masked tokens. Groups are of documents if it has their number, `documents`, else of rows.
    """
    documents = {"documents": before["documents"]} if "documents" in before else {}
    figures = {name: round(value, 6) for name, value in before["figures"].items()}
    return {**figures, "new_head": before["new_head"], **documents, **_change(before["groups"])}


def describe_change(before: Mapping[str, Any], after: Mapping[str, float], rows: int) -> str:
    """Return in words how the held-out loss changed on this number of rows.

    `before` is from `compare_with_original`; `after` has mlm_loss and perplexity of the pre-trained model.
    """
    bounds = ""
    if "change_low" in before:
        count, unit = (before["documents"], "documents") if "documents" in before else (rows, "rows")
        by = unit if before["groups"] == count else f"{before['groups']} groups of {unit}"
        bounds = f" ({before['change_low']:+.4f} to {before['change_high']:+.4f}, by {by})"
    new = ". The original has no masked LM head, so the loss before is that of random weights" * before["new_head"]
    loss = f"{before['mlm_loss']:,.4f} -> {after['mlm_loss']:,.4f}"
    perplexity = f"{before['perplexity']:,.2f} -> {after['perplexity']:,.2f}"
    return f"held-out loss {loss} (perplexity {perplexity}), change {before['change']:+.4f}{bounds}{new}"


def _change(groups: Sequence[Sequence[float]]) -> dict[str, Any]:
    """Return the change of the mean loss per masked token, and from two groups on its interval.

    The change is a ratio of sums over groups, which have different numbers of masked tokens. Its variance is that of
    the ratio estimator (Cochran 1977, "Sampling Techniques", section 6.4), its bounds are those of Student's t. Groups
    of rows are treated as independent, though rows of a document resemble each other.
    """
    import numpy as np

    old, new, labels = np.array(groups, dtype=np.float64).T
    change, count = float((new - old).sum() / max(1.0, labels.sum())), len(groups)
    change_figures = {"change": round(change, 6), "groups": count}
    if count < 2:
        return change_figures
    from scipy.stats import t  # takes 0.6 s to import

    rest = new - old - change * labels
    error = math.sqrt(count / (count - 1) * float((rest**2).sum())) / max(1.0, float(labels.sum()))
    half = float(t.ppf((1 + CONFIDENCE) / 2, count - 1)) * error
    return {**change_figures, "change_low": round(change - half, 6), "change_high": round(change + half, 6)}
