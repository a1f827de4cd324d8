"""Calibration of a model's probabilities.

Reliability diagram and expected calibration error (ECE) over bins of equal width: Naeini, Cooper and Hauskrecht 2015,
"Obtaining Well Calibrated Probabilities Using Bayesian Binning"; Guo et al. 2017, arXiv 1706.04599, section 2. Brier
score: Brier 1950, "Verification of Forecasts Expressed in Terms of Probability". Intervals of shares: Wilson 1927,
"Probable Inference, the Law of Succession, and Statistical Inference"; they stay in [0, 1] and suit small samples.
Temperature: Guo et al. 2017, section 4.2.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np

BINS = 10
MIN_SCALED = 40
"""Minimum number of answers to fit a temperature on one half and measure it on the other."""
_Z = 1.959963984540054


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
    temperature: float | None = None
    """Temperature with the least log loss on all predictions; None: not fitted."""
    scaled: "Calibration | None" = None
    """Calibration with temperature: each half of the predictions with the temperature that fits the other half."""

    def record(self) -> dict[str, object]:
        """Return plain values for the metrics file."""
        bins = [{name: x if x is None else round(x, 6) for name, x in asdict(part).items()} for part in self.bins]
        figures = {"calibration_error": round(self.error, 6), "brier_score": round(self.brier, 6), "calibration": bins}
        if self.scaled is not None and self.temperature is not None:
            figures["temperature"] = round(self.temperature, 4)
            figures["calibration_error_with_temperature"] = round(self.scaled.error, 6)
            figures["brier_score_with_temperature"] = round(self.scaled.brier, 6)
        return figures


def compute_calibration(probabilities: Sequence[float], right: Sequence[float], bins: int = BINS) -> Calibration:
    """Compare predicted probabilities with outcomes.

    Args:
        probabilities: 0 to 1, one per prediction, at least one.
        right: 1.0 (correct) or 0.0 per prediction.
    """
    predicted, came_true = np.asarray(probabilities, dtype=np.float64), np.asarray(right, dtype=np.float64)
    numbers, parts, gap = np.clip(np.ceil(predicted * bins).astype(int) - 1, 0, bins - 1), [], 0.0
    for number in range(bins):
        members, hits = predicted[numbers == number], came_true[numbers == number]
        low, high, count = number / bins, (number + 1) / bins, len(members)
        if not count:
            parts.append(Bin(low, high, 0))
            continue
        confidence, accuracy = float(members.mean()), float(hits.mean())
        gap += count * abs(accuracy - confidence)
        parts.append(Bin(low, high, count, confidence, accuracy, *_wilson(int(hits.sum()), count)))
    return Calibration(gap / len(predicted), float(((predicted - came_true) ** 2).mean()), tuple(parts))


def _wilson(hits: int, count: int) -> tuple[float, float]:
    """Return the 95% interval of a share; scipy.stats has it as well, and takes 0.6 s to import."""
    middle = (hits + _Z**2 / 2) / (count + _Z**2)
    reach = _Z / (count + _Z**2) * math.sqrt(hits * (count - hits) / count + _Z**2 / 4)
    return (middle - reach if hits else 0.0), (middle + reach if hits < count else 1.0)


def calibrate(scaled: Callable[[float], np.ndarray], right: np.ndarray) -> Calibration:
    """Compare predicted probabilities with outcomes, also with a temperature if both halves have right and wrong ones.

    Args:
        scaled: returns the probability of each prediction [N] if all logits are divided by a temperature.
        right: 1.0 (correct) or 0.0 per prediction, [N].
    """
    plain = compute_calibration(scaled(1.0).tolist(), right.tolist())
    half = np.random.default_rng(0).permutation(len(right)) % 2 == 0
    if len(right) < MIN_SCALED or not all(0 < right[members].mean() < 1 for members in (half, ~half)):
        return plain
    crossed = np.where(half, *(scaled(_fit_temperature(scaled, right, other)) for other in (~half, half)))
    chosen = _fit_temperature(scaled, right, np.ones(len(right), bool))
    return replace(plain, temperature=chosen, scaled=compute_calibration(crossed.tolist(), right.tolist()))


def _fit_temperature(scaled: Callable[[float], np.ndarray], right: np.ndarray, members: np.ndarray) -> float:
    """Return the temperature with the least log loss over the members: a search on ever finer grids."""
    low, high, best = 0.05, 20.0, 1.0
    for _ in range(6):
        grid = np.geomspace(low, high, 9)
        shares = [np.clip(scaled(float(temperature))[members], 1e-12, 1 - 1e-12) for temperature in grid]
        gains = [np.log(np.where(right[members] == 1, share, 1 - share)).mean() for share in shares]
        index = int(np.argmax(gains))
        low, best, high = (float(grid[min(max(position, 0), 8)]) for position in (index - 1, index, index + 1))
    return best
