"""Decoding of classes, labels or values, and their metrics: GLUE's official metrics, or those for your own texts."""

import functools
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tasks.downstream.scoring.logits import FeatureFiles
from tasks.downstream.scoring.metrics import Array, Metrics, Outcomes
from tasks.downstream.scoring.scores import ClassCounts, Limit, ScoresTask, hash_texts
from tasks.downstream.scoring.thresholds import ChosenThreshold
from tasks.downstream.texts.params import SELECTIVE_FLOORS
from tasks.downstream.texts.spec import TextsSpec, join_texts
from tasks.plan.kinds import TRAIN
from tasks.records.labels import read_parquet_labels
from tasks.records.parquet import read_batches
from tasks.rows.held_out import is_held_out
from tasks.stage import artifacts
from tasks.stage.artifacts import HELD_OUT
from tasks.stage.errors import InputError

THRESHOLD, THRESHOLDS, MIN_PROBABILITY = "threshold", "thresholds", "min_probability"
"""Keys of the metrics file: one threshold, a list with one per label, and the limit below which no class is given."""


@dataclass(frozen=True)
class TextsDevSet:
    """Examples of a development set."""

    texts: list[str]
    """The two texts of a pair are separated by a tab."""
    labels: Array
    """[examples] class numbers or values, or [examples, labels] with 1 for each label of an example, else 0."""
    names: Sequence[str]
    """Names of the examples."""
    classes: tuple[str, ...]
    """Class names by number: those that the model knows, then those that only this set has; one name for values."""
    learned: int
    """Number of classes that the model knows."""


class TextsScores(TextsSpec, ScoresTask[TextsDevSet, Array, Array]):
    """Classes, labels or values; outcomes are what is true and what is predicted for each example."""

    _constant = ""
    """Class or labels of the best constant prediction."""
    _classes: tuple[str, ...] = ()
    """Class names of the examples that were read last."""

    @property
    def quantities(self) -> tuple[str, ...]:
        return self.form.quantities(len(self._classes))

    @property
    def known_quantities(self) -> int:
        return len(self.quantities) // 2

    def prepare(self, root: Path) -> None:
        """Choose the thresholds on held-out training examples, if the parameters ask for it."""
        if not self.decision.is_chosen:
            return
        fraction = self.entry.rows.held_out_fraction
        path, rows = self.examples_file(TRAIN, root), self.rows_folder(HELD_OUT, root)
        examples = self._read(path, lambda text: is_held_out(text, fraction, seed=0))
        logits = self.read_logits(examples, rows, root / artifacts.logits_file(self.entry.name, HELD_OUT))
        self.form.choose_thresholds(logits, examples.labels)

    def read_examples(self, path: Path) -> TextsDevSet:
        return self._read(path, lambda text: True)

    def _read(self, path: Path, is_wanted: Callable[[str], bool]) -> TextsDevSet:
        """Read the examples of a file whose texts are wanted; apply the thresholds of the parameters to its classes."""
        made_by = self.entry.stage("examples")
        known, others = (self.labels, ()) if self.labels else read_parquet_labels(path)
        texts: list[str] = []
        names: list[str] = []
        labels: list[pa.Array] = []
        for batch in read_batches(path, self.schema.names, 65536, made_by):
            kept = batch.filter(pa.array(map(is_wanted, join_texts(batch)), pa.bool_()))
            texts += join_texts(kept)
            labels.append(kept.column("label"))
            names += kept.column("id").to_pylist()
        if not texts:
            raise InputError(f"{path} contains no examples. Run the stage {made_by} again")
        self._classes = (*known, *others)
        self._set_thresholds(known)
        numbers = self.form.read_labels(pa.concat_arrays(labels), len(self._classes))
        return TextsDevSet(texts, numbers, names, self._classes, len(known))

    def _set_thresholds(self, known: Sequence[str]) -> None:
        stated, key, several = self.decision.threshold, self.entry.key("evaluate", THRESHOLD), self.spec.is_multilabel
        if stated is not None and not several and len(known) != 2:
            raise InputError(f"{key} needs two classes; the model has {len(known)}. Set it to null")
        if isinstance(stated, dict):
            if set(stated) != set(known):
                differing = ", ".join(sorted(set(stated) ^ set(known))[:5])
                raise InputError(f"{key} must have a number for each label of the model; these differ: {differing}")
            self.form.thresholds = [ChosenThreshold(stated[name]) for name in known]
        elif isinstance(stated, float | int) or (stated is None and several):
            self.form.thresholds = [ChosenThreshold(0.5 if stated is None else stated)]

    def names(self, examples: TextsDevSet) -> Sequence[str]:
        return examples.names

    def keys(self, examples: TextsDevSet) -> list[str]:
        """Return hashes of the texts; for your own texts with the class names, which define the numbers."""
        if self.spec.name:
            return hash_texts(examples.texts)
        classes = json.dumps([] if self.labels else examples.classes[: examples.learned])
        return hash_texts(f"{text}\n{classes}" for text in examples.texts)

    def read_logits(self, examples: TextsDevSet, rows: Path, logits: Path) -> Array:
        """Read logits [examples, classes]; [examples, 1] for a regression."""
        count, classes = len(examples.labels), examples.learned
        files = FeatureFiles(rows / artifacts.FEATURES, logits, self.entry.stage)
        [[flat]] = files.read_logits(("logits",), np.full(count, classes), [count])
        return flat.reshape(count, classes).astype(np.float64)

    def flat_logits(self, logits: Array) -> tuple[Array, np.ndarray]:
        return logits.reshape(-1), np.repeat(np.arange(len(logits)), logits.shape[1])

    def answer(self, examples: TextsDevSet, logits: Array) -> Array:
        """Return the logits, which `form` decodes.

        Raises:
            InputError: thresholds are missing.
        """
        if self.decision.is_chosen and not self.form.thresholds:
            raise InputError(
                "this model's thresholds are not recorded: podium.json of its release, or the metrics of its run, has "
                "them. Restore the file, or pass --threshold"
            )
        return logits

    def predictions(self, answers: Array) -> Sequence[Any]:
        """Return class numbers, lists of label numbers, or values clipped to the range of the task."""
        return self.form.decide(self.form.probabilities(answers))

    def margin(self, answers: Array, number: int) -> float | None:
        return self.form.margin(answers, number)

    def scaled_confidences(self, answers: Array) -> Callable[[float], Array] | None:
        return None if self.spec.is_regression else functools.partial(self.form.confidences, answers)

    def correctness(self, examples: TextsDevSet, answers: Array, outcomes: Array) -> Array:
        return self.form.correctness(outcomes, answers)

    def check_predictions(self, path: Path, split: str, examples: TextsDevSet, values: Any) -> list[Any]:
        """Check class numbers, lists of label numbers, or values; null for an example without prediction."""
        valid = isinstance(values, list) and all(x is None or self.form.is_answer(x, examples.learned) for x in values)
        if not valid:
            low, high = self.spec.answers
            what = "lists of label numbers" if self.spec.is_multilabel else f"numbers from {low:g} to {high:g}"
            raise InputError(f"{path}: {split} must be a list of {what}")
        count = len(examples.labels)
        if len(values) != count:
            raise InputError(f"{path} has {len(values)} predictions for {split}, which has {count} examples")
        return values

    def count_classes(
        self, examples: Mapping[str, TextsDevSet], predictions: Mapping[str, Sequence[Any]], root: Path
    ) -> ClassCounts | None:
        path = self.examples_file(TRAIN, root)
        if self.spec.is_regression or self.spec.is_multilabel or not path.is_file():
            return None
        first, *_ = examples.values()
        parts = read_batches(path, ["label"], 65536, self.entry.stage("examples"))
        numbers = (
            (number for part in parts for number in part.column("label").to_pylist()),
            (number for one in examples.values() for number in one.labels.astype(int).tolist()),
            (number for split in predictions.values() for number in split if number is not None),
        )
        counts = map(Counter, numbers)
        named = ({name: one[number] for number, name in enumerate(first.classes)} for one in counts)
        return ClassCounts(*named)

    def verify_decisions(
        self, metrics: Mapping[str, Any], predictions: Mapping[str, Sequence[Any]], root: Path
    ) -> None:
        """Check that the recorded thresholds are those of the parameters or chosen, and give these predictions."""
        for file in self.decision_files:
            again = f"Run the stage {self.entry.stage('evaluate')} again"
            try:
                shares = np.loadtxt(root / file, delimiter=",", skiprows=1, ndmin=2)
                values = [float(one[THRESHOLD]) for one in metrics.get(THRESHOLDS, [metrics] * (THRESHOLD in metrics))]
            except (OSError, ValueError, KeyError, TypeError) as error:
                raise InputError(f"{root / file} or the recorded thresholds are damaged ({error}). {again}") from None
            if self.decision.is_chosen and len(values) in (1, shares.shape[1]):
                self.form.thresholds = [ChosenThreshold(one) for one in values]
            stated = [one.value for one in self.form.thresholds], self.decision.min_probability
            [given] = predictions.values()
            if (values, metrics.get(MIN_PROBABILITY)) != stated or self.form.decide(shares) != list(given):
                raise InputError(
                    f"the recorded thresholds of {self.entry.name} are not those of its parameters, or do not give its "
                    f"predictions from {root / file}. {again}"
                )

    def outcomes(self, examples: TextsDevSet, predictions: Sequence[Any]) -> Array:
        return self.form.outcomes(examples.labels, predictions)

    @property
    def _class_floors(self) -> Mapping[str, float]:
        return getattr(self.entry.params.gate, "min_f1_by_class", None) or {}

    @property
    def metrics(self) -> Metrics:
        parts = [one for split in self.development for one in self.form.metrics(split, self.spec.metric_names(split))]
        parts += [self.form.class_f1(name, functools.partial(self._number, name)) for name in self._class_floors]
        return Metrics(tuple(parts), "score" if self.spec.name else "")

    def _number(self, name: str) -> int:
        if name not in self._classes:
            key = self.entry.key("gate", f"min_f1_by_class.{name}")
            raise InputError(f"{key}: there is no such class; classes are {', '.join(self._classes)}")
        return self._classes.index(name)

    @property
    def limits(self) -> tuple[Limit, ...]:
        floors = (*self.spec.floors, *(SELECTIVE_FLOORS if self.decision.min_probability is not None else ()))
        by_class = self._class_floors.items()
        return (
            *(self.make_limit(floor.removeprefix("min_"), floor, "max_drop") for floor in floors),
            *(Limit(f"f1_of_{one}", floor, f"min_f1_by_class.{one}", None, "") for one, floor in by_class),
        )

    def is_possible(self, quantities: Sequence[float]) -> bool:
        return self.form.is_possible(quantities)

    @property
    def baseline(self) -> str:
        return f'always answering "{self._constant}"' if self._constant else "the best constant answer"

    def baseline_outcomes(self, examples: Mapping[str, TextsDevSet]) -> Outcomes | None:
        """Return outcomes of the best constant prediction: the class or labels with the best score, or any value."""
        first, *_ = examples.values()
        constants = self.form.constants(first.labels, max(one.learned for one in examples.values()))
        found = [
            self.outcomes_of(examples, {split: [one] * len(some.labels) for split, some in examples.items()})
            for one in constants
        ]
        scores = [self.metrics.compute(one)[self.limits[0].metric] for one in found] if len(found) > 1 else [0.0]
        best = scores.index(max(scores))
        if not self.spec.is_regression:
            self._constant = name_answer(first.classes, constants[best])
        return found[best]

    def threshold_figures(self) -> dict[str, Any]:
        """Return the thresholds and the limit of the decision for the metrics file; empty without any."""
        least, chosen = self.decision.min_probability, [one.record(THRESHOLD) for one in self.form.thresholds]
        found: dict[str, Any] = {} if least is None else {MIN_PROBABILITY: least}
        if len(chosen) > 1:
            by_label = zip(self._classes, chosen, strict=False)
            return {**found, THRESHOLDS: [{"label": name, **one} for name, one in by_label]}
        return {**found, **(chosen[0] if chosen else {})}


def select_thresholds(recorded: Mapping[str, Any]) -> dict[str, Any]:
    """Return the recorded thresholds of a decision as parameters: a number, or one per label."""
    found = {key: recorded[key] for key in (THRESHOLD, MIN_PROBABILITY) if key in recorded}
    if THRESHOLDS in recorded:
        found[THRESHOLD] = {one["label"]: one[THRESHOLD] for one in recorded[THRESHOLDS]}
    return found


def name_answer(names: Sequence[str], answer: Any) -> str:
    """Return the class or the labels of an answer by name."""
    if np.ndim(answer) == 0:
        return names[answer] if answer >= 0 else "no answer"
    return ", ".join(names[one] for one in answer) or "none"
