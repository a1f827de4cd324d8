"""From logits to the answers of a GLUE task, and GLUE's official metrics of them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from tasks.downstream.glue import about
from tasks.downstream.glue.params import GateParams
from tasks.downstream.glue.tasks import GlueTask
from tasks.downstream.scoring.metrics import Array, Metric, Metrics, Outcomes
from tasks.downstream.scoring.scores import Limit, ScoresTask, keys_of
from tasks.project.errors import InputError
from tasks.project.files import read_json
from tasks.reading.parquet import read_batches
from tasks.rows.row_files import from_arrow

LABEL, PREDICTION = range(2)
SCORE = "score"
"""The mean of all metrics, over both development sets where there are two."""


@dataclass(frozen=True)
class Examples:
    """A development set."""

    texts: list[str]
    """The two texts of a pair stand on both sides of a tab."""
    labels: Array
    """[examples] class numbers, or values."""


class Task(about.Task, ScoresTask[Examples, Array, Array]):
    """Outcomes are each example's label beside what was predicted: numbers of classes, or values."""

    quantities: ClassVar[tuple[str, ...]] = ("label", "prediction")
    given: ClassVar[int] = 1

    def read_examples(self, path: Path) -> Examples:
        made_by = self.entry.stage("examples")
        batches = list(read_batches(path, ("first", "second", "label"), 65536, made_by))
        texts = [
            "\t".join(part for part in pair if part is not None)
            for batch in batches
            for pair in zip(batch.column("first").to_pylist(), batch.column("second").to_pylist(), strict=True)
        ]
        if not texts:
            raise InputError(f"{path} holds no example; run the stage {made_by} again")
        labels = np.concatenate([from_arrow(batch.column("label")).astype(np.float64) for batch in batches])
        return Examples(texts, labels)

    def names(self, examples: Examples) -> Sequence[str]:
        return [str(number) for number in range(len(examples.texts))]

    def keys(self, examples: Examples) -> list[str]:
        return keys_of(examples.texts)

    def read_logits(self, examples: Examples, rows: Path, logits: Path) -> Array:
        """[examples, classes]; [examples, 1] of a regression."""
        again, count = f"run the stage {self.entry.stage('predict')} again", len(examples.labels)
        try:
            with pa.memory_map(str(logits)) as source:
                table = pa.ipc.open_file(source).read_all().combine_chunks()
        except (pa.ArrowInvalid, OSError) as error:
            raise InputError(f"{logits} cannot be read ({error}); {again}") from None
        numbers = from_arrow(table.column("feature_id").combine_chunks())
        flat = from_arrow(table.column("logits").combine_chunks().flatten()).astype(np.float64)
        if len(numbers) != count or (numbers != np.arange(count)).any() or len(flat) != count * len(self.labels):
            raise InputError(
                f"{logits} holds {len(flat)} logits of {len(numbers)} examples, required are {len(self.labels)} for "
                f"each of {count}; {again}"
            )
        found: Array = flat.reshape(count, len(self.labels))
        return found

    def flat_logits(self, logits: Array) -> tuple[Array, np.ndarray]:
        return logits.reshape(-1), np.repeat(np.arange(len(logits)), logits.shape[1])

    def answer(self, examples: Examples, logits: Array) -> Array:
        return logits

    def predictions(self, answers: Array) -> Sequence[Any]:
        """Class numbers, or values cut to what the task allows."""
        if not self.glue.is_regression:
            found: list[int] = answers.argmax(axis=1).tolist()
            return found
        low, high = self.glue.limits or (-np.inf, np.inf)
        return [round(x, 6) for x in np.clip(answers[:, 0], low, high).tolist()]

    def margin(self, answers: Array, number: int) -> float | None:
        if self.glue.is_regression:
            return None
        second, first = np.sort(answers[number])[-2:]
        return round(float(first - second), 4)

    def confidences(self, answers: Array) -> Sequence[float] | None:
        if self.glue.is_regression:
            return None
        found: list[float] = sureness(answers).tolist()
        return found

    def right(self, outcomes: Array) -> Array:
        found: Array = (outcomes[:, LABEL] == outcomes[:, PREDICTION]).astype(np.float64)
        return found

    def predictions_json(
        self, examples: Mapping[str, Examples], predictions: Mapping[str, Sequence[Any]]
    ) -> dict[str, list[Any]]:
        """By development set, in order of its examples, class numbers or values."""
        return {split: list(values) for split, values in predictions.items()}

    def read_predictions(self, path: Path, examples: Mapping[str, Examples]) -> dict[str, list[Any]]:
        try:
            values = read_json(path)
            found = {split: np.array(values[split], dtype=np.float64) for split in examples}
        except FileNotFoundError:
            raise InputError(f"{path} is not there; run the stage {self.entry.stage('evaluate')}") from None
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(f"{path} holds no predictions of {', '.join(examples)} ({error!r})") from None
        check_predictions(self.glue, path, found)
        for split, one in examples.items():
            if len(found[split]) != len(one.labels):
                raise InputError(
                    f"{path} holds {len(found[split])} predictions of {split}, which has {len(one.labels)} examples"
                )
        return {split: one.tolist() for split, one in found.items()}

    def outcomes(self, examples: Examples, predictions: Sequence[Any]) -> Array:
        """A class that there is not stands for no answer: it is right nowhere."""
        answers = [-1.0 if one is None else float(one) for one in predictions]
        return np.stack([examples.labels, np.array(answers, dtype=np.float64)], axis=1)

    @property
    def metrics(self) -> Metrics:
        parts = [
            Metric(name, name.replace("_", " "), functools.partial(_official, metric), WEIGHTED[metric], split)
            for split in self.development
            for metric, name in metric_names(self.glue, split).items()
        ]
        return Metrics(tuple(parts), mean=SCORE)

    @property
    def limits(self) -> tuple[Limit, ...]:
        gate = self.entry.params.gate
        assert isinstance(gate, GateParams)
        return (Limit(SCORE, gate.min_score, "min_score", gate.max_drop, "max_drop"),)

    @property
    def confidence(self) -> float:
        assert isinstance(self.entry.params.gate, GateParams)
        return self.entry.params.gate.confidence

    def allows(self, quantities: Sequence[float]) -> bool:
        low, high = self.glue.limits or (0, len(self.labels) - 1)
        return all(low <= one <= high for one in quantities)

    def constant(self, examples: Mapping[str, Examples]) -> Outcomes | None:
        """What needs no model at all: the class that scores best, or any value."""
        candidates = [0] if self.glue.is_regression else range(len(self.labels))
        found = [
            self.outcomes_of(examples, {s: [c] * len(one.labels) for s, one in examples.items()}) for c in candidates
        ]
        return max(found, key=lambda outcomes: self.metrics.of(outcomes)[SCORE])


def sureness(logits: Array) -> Array:
    """[examples] probability of the most probable class."""
    found: Array = probabilities(logits).max(axis=1)
    return found


def probabilities(logits: Array) -> Array:
    """[examples, classes] softmax."""
    odds = np.exp(logits - logits.max(axis=1, keepdims=True))
    found: Array = odds / odds.sum(axis=1, keepdims=True)
    return found


def official(metric: str, labels: Array, predictions: Array) -> float:
    """A metric of GLUE in percent, by scikit-learn or scipy; 0 where a constant prediction leaves it undefined."""
    from scipy.stats import pearsonr, spearmanr
    from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef

    if metric in ("pearson", "spearman"):
        if len(np.unique(predictions)) < 2 or len(np.unique(labels)) < 2:
            return 0.0
        return 100 * float((pearsonr if metric == "pearson" else spearmanr)(labels, predictions).statistic)
    of_classes: dict[str, Callable[[], float]] = {
        "accuracy": lambda: accuracy_score(labels, predictions),
        "f1": lambda: f1_score(labels, predictions, pos_label=1, zero_division=0.0),
        "matthews_correlation": lambda: matthews_corrcoef(labels, predictions),
    }
    return 100 * float(of_classes[metric]())


def _official(metric: str, outcomes: Array) -> float:
    return official(metric, outcomes[:, LABEL], outcomes[:, PREDICTION])


def metric_names(task: GlueTask, split: str) -> dict[str, str]:
    """Metric -> its name in the metrics file: with the development set where the task has several."""
    if len(task.dev) == 1:
        return {metric: metric for metric in task.metrics}
    return {metric: f"{metric}_{split.removeprefix('dev_')}" for metric in task.metrics}


def _accuracy(outcomes: Array, weights: Array) -> Array:
    right = outcomes[:, LABEL] == outcomes[:, PREDICTION]
    found: Array = 100 * (weights @ right) / weights.sum(axis=1)
    return found


def _counts(outcomes: Array, weights: Array) -> tuple[Array, Array, Array, Array]:
    """Hits, false alarms, misses, and right noes, where class 1 is what is looked for; [resamples] each."""
    label, predicted = outcomes[:, LABEL] == 1, outcomes[:, PREDICTION] == 1
    hit, alarm, missed, no = (
        weights @ both for both in (label & predicted, ~label & predicted, label & ~predicted, ~label & ~predicted)
    )
    return hit, alarm, missed, no


def _f1(outcomes: Array, weights: Array) -> Array:
    hit, alarm, missed, _ = _counts(outcomes, weights)
    return 100 * _ratio(2 * hit, 2 * hit + alarm + missed)


def _matthews(outcomes: Array, weights: Array) -> Array:
    tp, fp, fn, tn = _counts(outcomes, weights)
    return 100 * _ratio(tp * tn - fp * fn, np.sqrt((tp + fp) * (tp + fn) * (tn + fp) * (tn + fn)))


def _pearson(outcomes: Array, weights: Array) -> Array:
    columns = [np.broadcast_to(outcomes[:, column], weights.shape) for column in (LABEL, PREDICTION)]
    return 100 * _correlation(columns[0], columns[1], weights)


def _spearman(outcomes: Array, weights: Array) -> Array:
    """Pearson's of the ranks that the examples have among those that were drawn."""
    one, other = (_ranks(outcomes[:, column], weights) for column in (LABEL, PREDICTION))
    return 100 * _correlation(one, other, weights)


def _ranks(values: Array, weights: Array) -> Array:
    """[resamples, examples] mean rank of each value, where example n is there weights[r, n] times."""
    different, place = np.unique(values, return_inverse=True)
    counts = np.zeros((len(different), len(weights)))
    np.add.at(counts, place, weights.T)
    ranks = np.cumsum(counts, axis=0) - (counts - 1) / 2
    found: Array = ranks[place].T
    return found


def _correlation(one: Array, other: Array, weights: Array) -> Array:
    """Pearson's of every resample; 0 where one of them is constant."""
    total = weights.sum(axis=1, keepdims=True)
    one, other = (x - (weights * x).sum(axis=1, keepdims=True) / total for x in (one, other))
    spread = (weights * one * one).sum(axis=1) * (weights * other * other).sum(axis=1)
    return _ratio((weights * one * other).sum(axis=1), np.sqrt(spread))


def _ratio(above: Array, below: Array) -> Array:
    return np.divide(above, below, out=np.zeros_like(above), where=below > 0)


WEIGHTED: dict[str, Callable[[Array, Array], Array]] = {
    "accuracy": _accuracy,
    "f1": _f1,
    "matthews_correlation": _matthews,
    "pearson": _pearson,
    "spearman": _spearman,
}
"""Metric -> how it is counted where examples have weights."""


def check_predictions(task: GlueTask, path: Path, found: Mapping[str, Array]) -> None:
    """Raises: InputError, where the file `path` holds no list of answers that the task allows."""
    for split, numbers in found.items():
        low, high = task.limits or (0, len(task.labels) - 1)
        if numbers.ndim != 1 or not len(numbers) or not ((numbers >= low) & (numbers <= high)).all():
            raise InputError(f"{path}: {split} must be a list of numbers from {low:g} to {high:g}")
