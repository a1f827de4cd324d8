"""Calibration of a model's probabilities.

Reliability diagram and expected calibration error (ECE) over bins of equal width: Naeini, Cooper and Hauskrecht 2015,
"Obtaining Well Calibrated Probabilities Using Bayesian Binning"; Guo et al. 2017, arXiv 1706.04599, section 2. Brier
score: Brier 1950, "Verification of Forecasts Expressed in Terms of Probability". Intervals of shares: Wilson 1927,
"Probable Inference, the Law of Succession, and Statistical Inference"; they stay in [0, 1] and suit small samples.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

BINS = 10


@dataclass(frozen=True)
class Bin:
    """Predictions with a probability in (low, high]; the first bin includes 0."""

    low: float
    high: float
    count: int
    confidence: float | None = None
    """Mean probability; None for an empty bin, like the next three fields."""
    accuracy: float | None = None
    """Share of correct predictions."""
    accuracy_low: float | None = None
    """95% Wilson interval of that share."""
    accuracy_high: float | None = None


@dataclass(frozen=True)
class Calibration:
    """Calibration figures, from 0 (best) to 1."""

    error: float
    """ECE: mean of |accuracy - confidence| of the bin over all predictions."""
    brier: float
    """Mean squared difference of probability and 1 (correct) or 0 (wrong)."""
    bins: tuple[Bin, ...]

    def record(self) -> dict[str, Any]:
        """Return plain values for the metrics file."""
        bins = [{name: x if x is None else round(x, 6) for name, x in asdict(one).items()} for one in self.bins]
        return {"calibration_error": round(self.error, 6), "brier_score": round(self.brier, 6), "calibration": bins}


def compute_calibration(probabilities: Sequence[float], right: Sequence[float], bins: int = BINS) -> Calibration:
    """Compare predicted probabilities with outcomes.

    Args:
        probabilities: 0 to 1, one per prediction, at least one.
        right: 1.0 (correct) or 0.0 per prediction.
    """
    from scipy.stats import binomtest  # takes 0.6 s to import

    stated, came_true = np.asarray(probabilities, dtype=np.float64), np.asarray(right, dtype=np.float64)
    numbers, found, gap = np.clip(np.ceil(stated * bins).astype(int) - 1, 0, bins - 1), [], 0.0
    for number in range(bins):
        here, hits = stated[numbers == number], came_true[numbers == number]
        low, high, count = number / bins, (number + 1) / bins, len(here)
        if not count:
            found.append(Bin(low, high, 0))
            continue
        interval = binomtest(int(hits.sum()), count).proportion_ci(method="wilson")
        confidence, accuracy = float(here.mean()), float(hits.mean())
        gap += count * abs(accuracy - confidence)
        found.append(Bin(low, high, count, confidence, accuracy, float(interval.low), float(interval.high)))
    return Calibration(gap / len(stated), float(((stated - came_true) ** 2).mean()), tuple(found))
