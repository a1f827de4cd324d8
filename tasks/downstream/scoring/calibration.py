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
    confidence: float | None
    """Mean probability; None for an empty bin, like the next three fields."""
    accuracy: float | None
    """Share of correct predictions."""
    accuracy_low: float | None
    """95% Wilson interval of that share."""
    accuracy_high: float | None


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
        probabilities: 0 to 1, one per prediction.
        right: 1.0 (correct) or 0.0 per prediction.

    Raises:
        ValueError: no prediction, unequal lengths, or a probability outside [0, 1].
    """
    stated, came_true = np.asarray(probabilities, dtype=np.float64), np.asarray(right, dtype=np.float64)
    if not len(stated) or stated.shape != came_true.shape:
        raise ValueError(
            f"found {len(stated)} probabilities and {len(came_true)} outcomes, equal numbers (at least 1) are required"
        )
    if not ((stated >= 0) & (stated <= 1)).all():  # also refuses NaN
        raise ValueError("probabilities must be between 0 and 1")
    numbers = np.clip(np.ceil(stated * bins).astype(int) - 1, 0, bins - 1)
    found = [_bin(number, bins, stated[numbers == number], came_true[numbers == number]) for number in range(bins)]
    gaps = [
        b.count * abs(b.accuracy - b.confidence) for b in found if b.accuracy is not None and b.confidence is not None
    ]
    return Calibration(sum(gaps) / len(stated), float(((stated - came_true) ** 2).mean()), tuple(found))


def _bin(number: int, bins: int, stated: np.ndarray, right: np.ndarray) -> Bin:
    low, high, count = number / bins, (number + 1) / bins, len(stated)
    if not count:
        return Bin(low, high, 0, None, None, None, None)
    from scipy.stats import binomtest  # takes 0.6 s to import

    interval = binomtest(int(right.sum()), count).proportion_ci(method="wilson")
    return Bin(low, high, count, float(stated.mean()), float(right.mean()), float(interval.low), float(interval.high))
