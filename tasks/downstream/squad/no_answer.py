"""Unanswerable questions: null scores, and the no-answer threshold chosen on held-out questions.

The null score of a question is the score of [CLS] (start logit + end logit), the minimum over its windows. Its odds are
the null score minus the score of the best span. Questions with odds above the threshold get no answer: Devlin et al.
2019, section 4.3, and run_squad.py.

Legend: E examples (questions), R resamples.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ipu_model.files import read_json, sha256_of
from tasks.downstream.scoring.metrics import Array, draw_counts
from tasks.downstream.scoring.significance import RESAMPLES
from tasks.downstream.squad.answers import Answer, add_probabilities
from tasks.downstream.squad.windows import SquadWindows
from tasks.stage import artifacts
from tasks.stage.errors import InputError

WEIGHTS, SETTINGS, NULL_THRESHOLD = "model.safetensors", "podium.json", "null_threshold"


@dataclass(frozen=True)
class NullThreshold:
    """Odds above which no answer is returned."""

    value: float
    low: float | None = None
    """95% bootstrap interval over the questions that selected it; None if it was set."""
    high: float | None = None
    questions: int = 0
    """Number of questions that selected it."""


def null_scores(windows: SquadWindows, examples: int) -> Array:
    """Return the null score of each example, [E]."""
    found = np.full(examples, np.inf)
    np.minimum.at(found, windows.example_index, windows.cls_logits[:, 0] + windows.cls_logits[:, 1])
    return found


def rank_with_null(spans: Sequence[Answer], null_score: float, threshold: float) -> list[Answer]:
    """Return the chosen answer first, then the others by score, with probabilities; the null answer has no text.

    Args:
        spans: best spans of a question, best first; a single one without text means none.
        threshold: odds above which no answer is returned.
    """
    null = Answer("", 0, 0, null_score, 0.0)
    real = [span for span in spans if span.text]
    first = null if not real or null_score - real[0].score > threshold else real[0]
    others = sorted((one for one in (*real, null) if one is not first), key=lambda one: -one.score)
    return add_probabilities([first, *others])


def best_span(answers: Sequence[Answer]) -> Answer:
    """Return the best answer with text from a result of `rank_with_null`, or an empty answer with score 0."""
    return next((one for one in answers if one.text), Answer("", 0, 0, 0.0, 0.0))


def null_odds(answers: Sequence[Answer]) -> float:
    """Return the null score minus the score of the best span, from a result of `rank_with_null`."""
    null = next(one for one in answers if not one.text)
    return null.score - best_span(answers).score


def choose_threshold(odds: Sequence[float], f1: Sequence[float], has_answer: Sequence[bool]) -> NullThreshold:
    """Return the threshold with the best F1 over all questions, and the interval of this choice.

    It equals the odds of the last answered question; of equally good thresholds it is the lowest.

    Args:
        f1: F1 (0 to 1) of each best span.
    """
    order = np.argsort(odds, kind="stable")
    ascending = np.asarray(odds, np.float64)[order]
    # Gain over no answer: the score of the span, or minus one point for an unanswerable question.
    gains = np.where(has_answer, f1, -1.0)[order]
    ends = np.flatnonzero(np.append(np.diff(ascending) > 0, True))  # equal odds are on the same side
    places = np.concatenate([[math.nextafter(ascending[0], -math.inf)], ascending[ends]])

    def best(weights: Array) -> Array:
        """[R] of weights [R, E] in order of the odds."""
        reached = np.cumsum(weights * gains, axis=1)[:, ends]
        chosen: Array = places[np.argmax(np.pad(reached, ((0, 0), (1, 0))), axis=1)]
        return chosen

    counts = draw_counts(len(order), RESAMPLES, np.random.default_rng(0))
    drawn = np.concatenate([best(block[:, order]) for block in counts])
    low, high = (float(x) for x in np.quantile(drawn, (0.025, 0.975)))
    return NullThreshold(float(best(np.ones((1, len(order))))[0]), low, high, len(order))


@dataclass(frozen=True)
class RiskCoverage:
    """Risk-coverage curve: share of wrong answers by share of answered questions, lowest odds first."""

    points: tuple[tuple[float, float, float], ...]
    """Coverage (0 to 1, ascending), risk (0 to 1), and the threshold with that coverage."""

    @property
    def area(self) -> float:
        """Area under the curve, 0 to 1: the mean risk over all coverages (Geifman and El-Yaniv 2017)."""
        return sum(risk for _, risk, _ in self.points) / len(self.points)

    def sample(self, most: int = 200) -> list[tuple[float, float, float]]:
        """Return about `most` of the points, including the last."""
        step = max(1, len(self.points) // most)
        return list(self.points[::-step][::-1])

    def look_up(self, threshold: float) -> tuple[float, float]:
        """Return coverage and risk of a threshold; no risk if nothing is answered."""
        below = [point for point in self.points if point[2] <= threshold]
        return below[-1][:2] if below else (0.0, 0.0)


def risk_coverage(odds: Sequence[float], right: Sequence[float]) -> RiskCoverage:
    """Return the curve over all questions.

    Args:
        right: 1.0 if the best span is an exact match, else 0.0; every span of an unanswerable question is wrong.
    """
    order = np.argsort(odds, kind="stable")
    answered = np.arange(1, len(order) + 1)
    wrong = np.cumsum(1 - np.asarray(right, np.float64)[order]) / answered
    columns = (answered / len(order), wrong, np.asarray(odds, np.float64)[order])
    return RiskCoverage(tuple(zip(*(column.tolist() for column in columns), strict=True)))


def read_null_threshold(folder: Path) -> float | None:
    """Return the no-answer threshold of a model folder; None: the model always answers.

    A release records it in podium.json, a checkout in metrics/NAME.json for models/NAME if its weights are the same.

    Raises:
        InputError: the recorded value is not a number.
    """
    own = folder.resolve()
    for path in (folder / SETTINGS, own.parent.parent / artifacts.metrics_file(own.name)):
        try:
            values = read_json(path)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except ValueError:
            raise InputError(f"{path} is not JSON. Create or download it again") from None
        if not isinstance(values, dict) or NULL_THRESHOLD not in values:
            continue
        if type(values[NULL_THRESHOLD]) not in (int, float):
            raise InputError(f"{path}: {NULL_THRESHOLD} must be a number, found {values[NULL_THRESHOLD]!r:.40}")
        if path.name == SETTINGS or _is_about(values, folder / WEIGHTS):
            return float(values[NULL_THRESHOLD])
    return None


def _is_about(metrics: dict[str, Any], weights: Path) -> bool:
    files = metrics.get("files", [])
    stated = [one.get("sha256") for one in files if Path(str(one.get("path"))).name == weights.name]
    return weights.is_file() and stated == [sha256_of(weights)]
