"""Whether a probability that a model states is the share of times it is right.

Reliability diagram and expected calibration error (ECE) over bins of equal width: Naeini, Cooper and Hauskrecht 2015,
"Obtaining Well Calibrated Probabilities Using Bayesian Binning"; Guo et al. 2017, arXiv 1706.04599, section 2. Brier
score: Brier 1950, "Verification of Forecasts Expressed in Terms of Probability". Intervals of shares: Wilson 1927,
"Probable Inference, the Law of Succession, and Statistical Inference", which do not leave [0, 1] and exist for few.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

BINS = 10


@dataclass(frozen=True)
class Bin:
    """Predictions whose stated probability lies in (low, high]; the first bin holds 0, too."""

    low: float
    high: float
    count: int
    confidence: float | None
    """Mean stated probability; None of an empty bin, as the three below."""
    accuracy: float | None
    """Share that is right."""
    accuracy_low: float | None
    """95% Wilson interval of that share."""
    accuracy_high: float | None


@dataclass(frozen=True)
class Calibration:
    """How far stated probabilities are from shares, all from 0 (best) to 1."""

    error: float
    """ECE: mean over the predictions of |accuracy - confidence| of their bin."""
    brier: float
    """Mean squared difference of the probability and 1 (right) or 0 (wrong)."""
    bins: tuple[Bin, ...]

    def record(self) -> dict[str, Any]:
        """For metrics/squad.json; four decimals are beyond what the bins resolve."""
        bins = [{name: x if x is None else round(x, 6) for name, x in asdict(one).items()} for one in self.bins]
        return {"calibration_error": round(self.error, 6), "brier_score": round(self.brier, 6), "calibration": bins}


def calibration(probabilities: Sequence[float], right: Sequence[float], bins: int = BINS) -> Calibration:
    """Compare stated probabilities with what came true.

    Args:
        probabilities: 0 to 1, one per prediction.
        right: 1.0 or 0.0 per prediction.

    Raises:
        ValueError: no prediction, unequal lengths, or a probability outside [0, 1].
    """
    stated, came_true = np.asarray(probabilities, dtype=np.float64), np.asarray(right, dtype=np.float64)
    if not len(stated) or stated.shape != came_true.shape:
        raise ValueError(
            f"{len(stated)} probabilities and {len(came_true)} outcomes: one each, at least one, is needed"
        )
    if not ((stated >= 0) & (stated <= 1)).all():  # NaN too
        raise ValueError("probabilities must lie between 0 and 1")
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
