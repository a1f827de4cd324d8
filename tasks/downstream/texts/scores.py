"""Decoding of classes or values, and their metrics: GLUE's official metrics, or those for your own texts."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from tasks.downstream.scoring.logits import FeatureFiles
from tasks.downstream.scoring.metrics import Array, Metrics, Outcomes
from tasks.downstream.scoring.scores import Limit, ScoresTask, hash_texts
from tasks.downstream.texts.metrics import LABEL, PREDICTION, metric
from tasks.downstream.texts.spec import TextsSpec
from tasks.downstream.texts.task_table import TextTask
from tasks.records.labels import read_parquet_labels
from tasks.records.parquet import read_batches
from tasks.rows.row_files import from_arrow
from tasks.stage import artifacts
from tasks.stage.errors import InputError

TITLES = {"accuracy": "accuracy", "macro_f1": "macro F1", "pearson": "Pearson", "spearman": "Spearman"}
"""Names of the metrics for your own texts."""


@dataclass(frozen=True)
class TextsDevSet:
    """Examples of a development set."""

    texts: list[str]
    """The two texts of a pair are separated by a tab."""
    labels: Array
    """[examples] class numbers, or values."""
    names: Sequence[str] = ()
    """Names of the examples; empty: their numbers."""
    classes: tuple[str, ...] = ()
    """Class names by number, if the data defines them: classes in train, then classes only in this set."""
    learned: int = 0
    """Number of classes in train."""


class TextsScores(TextsSpec, ScoresTask[TextsDevSet, Array, Array]):
    """Classes or values; outcomes are the label and the prediction of each example."""

    quantities: ClassVar[tuple[str, ...]] = ("label", "prediction")
    known_quantities: ClassVar[int] = 1
    _constant = ""
    """Class of the best constant prediction."""

    def read_examples(self, path: Path) -> TextsDevSet:
        made_by = self.entry.stage("examples")
        batches = list(read_batches(path, self.schema.names, 65536, made_by))
        texts = [
            "\t".join(part for part in pair if part is not None)
            for batch in batches
            for pair in zip(batch.column("first").to_pylist(), batch.column("second").to_pylist(), strict=True)
        ]
        if not texts:
            raise InputError(f"{path} contains no examples. Run the stage {made_by} again")
        labels = np.concatenate([from_arrow(batch.column("label")).astype(np.float64) for batch in batches])
        if self.spec.name:
            return TextsDevSet(texts, labels)
        ids = [one for batch in batches for one in batch.column("id").to_pylist()]
        names = [str(number) if one is None else one for number, one in enumerate(ids)]
        if self.is_regression:
            return TextsDevSet(texts, labels, names)
        known, others = read_parquet_labels(path)
        return TextsDevSet(texts, labels, names, (*known, *others), len(known))

    def classes(self, examples: TextsDevSet) -> tuple[str, ...]:
        """Return the names of all classes of the labels, by number."""
        return examples.classes or self.labels

    def learned(self, examples: TextsDevSet) -> int:
        """Return the number of classes that the model can predict; 1 for a regression."""
        return examples.learned or len(self.labels)

    def names(self, examples: TextsDevSet) -> Sequence[str]:
        return examples.names or [str(number) for number in range(len(examples.texts))]

    def keys(self, examples: TextsDevSet) -> list[str]:
        """Return hashes of the texts; for your own texts with the class names, which define the numbers."""
        if self.spec.name:
            return hash_texts(examples.texts)
        classes = json.dumps(examples.classes[: examples.learned])
        return hash_texts(f"{text}\n{classes}" for text in examples.texts)

    def read_logits(self, examples: TextsDevSet, rows: Path, logits: Path) -> Array:
        """Read logits [examples, classes]; [examples, 1] for a regression."""
        count, classes = len(examples.labels), self.learned(examples)
        files = FeatureFiles(rows / artifacts.FEATURES, logits, self.entry.stage)
        [[flat]] = files.read_logits(("logits",), np.full(count, classes), [count])
        found: Array = flat.reshape(count, classes).astype(np.float64)
        return found

    def flat_logits(self, logits: Array) -> tuple[Array, np.ndarray]:
        return logits.reshape(-1), np.repeat(np.arange(len(logits)), logits.shape[1])

    def answer(self, examples: TextsDevSet, logits: Array) -> Array:
        return logits

    def predictions(self, answers: Array) -> Sequence[Any]:
        """Return class numbers, or values clipped to the range of the task."""
        if not self.is_regression:
            found: list[int] = answers.argmax(axis=1).tolist()
            return found
        low, high = self.spec.answers
        return [round(x, 6) for x in np.clip(answers[:, 0], low, high).tolist()]

    def margin(self, answers: Array, number: int) -> float | None:
        if self.is_regression:
            return None
        second, first = np.sort(answers[number])[-2:]
        return round(float(first - second), 4)

    def confidences(self, answers: Array) -> Sequence[float] | None:
        if self.is_regression:
            return None
        found: list[float] = probabilities(answers).max(axis=1).tolist()
        return found

    def correctness(self, outcomes: Array) -> Array:
        found: Array = (outcomes[:, LABEL] == outcomes[:, PREDICTION]).astype(np.float64)
        return found

    def check_predictions(self, path: Path, split: str, examples: TextsDevSet, values: Any) -> list[Any]:
        """Check class numbers or values."""
        found, (low, high) = np.array(values, dtype=np.float64), self.spec.answers
        if found.ndim != 1 or not len(found) or not all(map(self._is_answer, found)):
            raise InputError(f"{path}: {split} must be a list of numbers from {low:g} to {high:g}")
        count = len(examples.labels)
        if len(found) != count:
            raise InputError(f"{path} has {len(found)} predictions for {split}, which has {count} examples")
        numbers: list[float] = found.tolist()
        return numbers

    def outcomes(self, examples: TextsDevSet, predictions: Sequence[Any]) -> Array:
        """Return labels and predictions; a missing prediction is -1, which is always wrong."""
        answers = [-1.0 if one is None else float(one) for one in predictions]
        return np.stack([examples.labels, np.array(answers, dtype=np.float64)], axis=1)

    @property
    def metrics(self) -> Metrics:
        titles = {} if self.spec.name else TITLES
        parts = [
            metric(one, title=titles.get(one, ""), called=name, split=split)
            for split in self.development
            for one, name in metric_names(self.spec, split).items()
        ]
        return Metrics(tuple(parts), self.spec.mean)

    @property
    def limits(self) -> tuple[Limit, ...]:
        return tuple(self.make_limit(floor.removeprefix("min_"), floor, "max_drop") for floor in self.spec.floors)

    def is_possible(self, quantities: Sequence[float]) -> bool:
        return all(map(self._is_answer, quantities))

    def _is_answer(self, number: float) -> bool:
        low, high = self.spec.answers
        return bool(np.isfinite(number) and low <= number <= high and (self.is_regression or number == int(number)))

    @property
    def baseline(self) -> str:
        return f'always answering "{self._constant}"' if self._constant else "the best constant answer"

    def baseline_outcomes(self, examples: Mapping[str, TextsDevSet]) -> Outcomes | None:
        """Return outcomes of the best constant prediction: the class with the best score, or any value."""
        most = max(map(self.learned, examples.values()))
        found = [
            self.outcomes_of(examples, {s: [c] * len(one.labels) for s, one in examples.items()}) for c in range(most)
        ]
        best = max(range(most), key=lambda number: self.metrics.compute(found[number])[self.limits[0].metric])
        self._constant = "" if self.is_regression else self.classes(next(iter(examples.values())))[best]
        return found[best]


def metric_names(task: TextTask, split: str) -> dict[str, str]:
    """Return metric -> name in the metrics file, with the development set if there are several."""
    if len(task.dev) == 1:
        return {name: name for name in task.metrics}
    return {name: f"{name}_{split.removeprefix('dev_')}" for name in task.metrics}


def probabilities(logits: Array) -> Array:
    """Return the softmax of logits [examples, classes]."""
    odds = np.exp(logits - logits.max(axis=1, keepdims=True))
    found: Array = odds / odds.sum(axis=1, keepdims=True)
    return found
