"""Decoding of classes, labels or values, and their metrics: GLUE's official metrics, or those for your own texts."""

import functools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tasks.downstream.scoring.logits import FeatureFiles
from tasks.downstream.scoring.metrics import Array, Metrics, Outcomes
from tasks.downstream.scoring.scores import Limit, ScoresTask, hash_texts
from tasks.downstream.scoring.thresholds import ChosenThreshold
from tasks.downstream.texts.answers import make_form
from tasks.downstream.texts.metrics import class_f1
from tasks.downstream.texts.params import SELECTIVE_FLOORS
from tasks.downstream.texts.spec import TextsSpec
from tasks.downstream.texts.task_table import TextTask
from tasks.params.entries import Entry
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
    names: Sequence[str] = ()
    """Names of the examples; empty: their numbers."""
    classes: tuple[str, ...] = ()
    """Class names by number, if the data defines them: classes in train, then classes only in this set."""
    learned: int = 0
    """Number of classes in train."""


class TextsScores(TextsSpec, ScoresTask[TextsDevSet, Array, Array]):
    """Classes, labels or values; outcomes are what is true and what is predicted for each example."""

    _constant = ""
    """Class or labels of the best constant prediction."""
    _classes: tuple[str, ...] = ()
    """Class names of the examples that were read last."""

    def __init__(self, entry: Entry) -> None:
        super().__init__(entry)
        self.form = make_form(self.spec, self.decision)

    @property
    def quantities(self) -> tuple[str, ...]:
        if not self.is_multilabel:
            return ("label", "prediction")
        return tuple(f"{what}_{number}" for what in ("label", "prediction") for number in range(len(self._classes)))

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
        self._require_two_classes(logits)
        self.form.choose_thresholds(logits, examples.labels)

    def read_examples(self, path: Path) -> TextsDevSet:
        return self._read(path, lambda text: True)

    def _read(self, path: Path, is_wanted: Callable[[str], bool]) -> TextsDevSet:
        """Read the examples of a file whose texts are wanted."""
        made_by = self.entry.stage("examples")
        known, others = ((), ()) if self.labels else read_parquet_labels(path)
        texts: list[str] = []
        ids: list[str | None] = []
        labels: list[pa.Array] = []
        for batch in read_batches(path, self.schema.names, 65536, made_by):
            pairs = zip(batch.column("first").to_pylist(), batch.column("second").to_pylist(), strict=True)
            found = ["\t".join(part for part in pair if part is not None) for pair in pairs]
            mask = [is_wanted(text) for text in found]
            texts += [text for text, wanted in zip(found, mask, strict=True) if wanted]
            kept = batch.filter(pa.array(mask, pa.bool_()))
            labels.append(kept.column("label"))
            ids += [] if self.spec.name else kept.column("id").to_pylist()
        if not texts:
            raise InputError(f"{path} contains no examples. Run the stage {made_by} again")
        self._classes = (*known, *others) or self.labels
        numbers = self.form.read_labels(labels, len(self._classes))
        names = [str(number) if one is None else one for number, one in enumerate(ids)]
        self._set_thresholds(len(known))
        return TextsDevSet(texts, numbers, names, (*known, *others), len(known))

    def _set_thresholds(self, learned: int) -> None:
        """Apply the thresholds of the parameters to the classes of the examples."""
        stated = self.decision.threshold
        if isinstance(stated, dict):
            names = self._classes[:learned]
            if set(stated) != set(names):
                key = self.entry.key("evaluate", THRESHOLD)
                differing = ", ".join(sorted(set(stated) ^ set(names))[:5])
                raise InputError(f"{key} must have a number for each label of the model; these differ: {differing}")
            self.form.thresholds = [ChosenThreshold(stated[name]) for name in names]
        elif not isinstance(stated, str) and (stated is not None or self.is_multilabel):
            self.form.thresholds = [ChosenThreshold(0.5 if stated is None else stated)]

    def _require_two_classes(self, logits: Array) -> None:
        if self.decision.threshold is None or self.is_multilabel:
            return
        if logits.shape[1] != 2:
            key = self.entry.key("evaluate", THRESHOLD)
            raise InputError(f"{key} needs two classes; the model has {logits.shape[1]}. Set it to null")

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
        """Return the logits, which `form` decodes.

        Raises:
            InputError: thresholds are missing, or do not fit the classes.
        """
        self._require_two_classes(logits)
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

    def confidences(self, answers: Array) -> Sequence[float] | None:
        return self.form.confidences(answers)

    def correctness(self, outcomes: Array) -> Array:
        return self.form.correctness(outcomes)

    def check_predictions(self, path: Path, split: str, examples: TextsDevSet, values: Any) -> list[Any]:
        """Check class numbers, lists of label numbers, or values."""
        low, high = self.spec.answers
        if not isinstance(values, list) or not all(self.form.is_answer(one, self.learned(examples)) for one in values):
            what = "lists of label numbers" if self.is_multilabel else f"numbers from {low:g} to {high:g}"
            raise InputError(f"{path}: {split} must be a list of {what}")
        count = len(examples.labels)
        if len(values) != count:
            raise InputError(f"{path} has {len(values)} predictions for {split}, which has {count} examples")
        return values

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
    def metrics(self) -> Metrics:
        parts = [one for split in self.development for one in self.form.metrics(split, metric_names(self.spec, split))]
        floors = getattr(self.entry.params.gate, "min_f1_by_class", None) or {}
        parts += [class_f1(name, functools.partial(self._number, name), self.is_multilabel) for name in floors]
        return Metrics(tuple(parts), self.spec.mean)

    def _number(self, name: str) -> int:
        if name not in self._classes:
            key = self.entry.key("gate", f"min_f1_by_class.{name}")
            raise InputError(f"{key}: there is no such class; classes are {', '.join(self._classes)}")
        return self._classes.index(name)

    @property
    def limits(self) -> tuple[Limit, ...]:
        floors = (*self.spec.floors, *(SELECTIVE_FLOORS if self.decision.min_probability is not None else ()))
        by_class = getattr(self.entry.params.gate, "min_f1_by_class", None) or {}
        return (
            *(self.make_limit(floor.removeprefix("min_"), floor, "max_drop") for floor in floors),
            *(Limit(f"f1_of_{one}", floor, f"min_f1_by_class.{one}", None, "") for one, floor in by_class.items()),
        )

    def is_possible(self, quantities: Sequence[float]) -> bool:
        if self.is_multilabel:
            return set(quantities) <= {0, 1}
        return all(self.form.is_answer(one, 0) for one in quantities)

    @property
    def baseline(self) -> str:
        return f'always answering "{self._constant}"' if self._constant else "the best constant answer"

    def baseline_outcomes(self, examples: Mapping[str, TextsDevSet]) -> Outcomes | None:
        """Return outcomes of the best constant prediction: the class or labels with the best score, or any value."""
        known = max(map(self.learned, examples.values()))
        constants = self.form.constants(next(iter(examples.values())).labels, known)
        found = [
            self.outcomes_of(examples, {s: [one] * len(some.labels) for s, some in examples.items()})
            for one in constants
        ]
        scores = [self.metrics.compute(one)[self.limits[0].metric] for one in found] if len(found) > 1 else [0.0]
        best = scores.index(max(scores))
        names, chosen = self.classes(next(iter(examples.values()))), constants[best]
        if not self.is_regression:
            self._constant = ", ".join(names[one] for one in (chosen if isinstance(chosen, list) else [chosen]))
        return found[best]

    def threshold_figures(self) -> dict[str, Any]:
        """Return the thresholds and the limit of the decision for the metrics file; empty without any."""
        found: dict[str, Any] = {}
        least = self.decision.min_probability
        if least is not None:
            found[MIN_PROBABILITY] = least
        chosen = self.form.thresholds
        if len(chosen) > 1:
            found[THRESHOLDS] = [
                {"label": name, **_record(one)} for name, one in zip(self._classes, chosen, strict=False)
            ]
        elif chosen:
            found |= _record(chosen[0])
        return found


def _record(chosen: ChosenThreshold) -> dict[str, float | int]:
    interval = {"lower": chosen.low, "upper": chosen.high, "examples": chosen.examples or None}
    return {THRESHOLD: chosen.value, **{f"{THRESHOLD}_{name}": x for name, x in interval.items() if x is not None}}


def metric_names(task: TextTask, split: str) -> dict[str, str]:
    """Return metric -> name in the metrics file, with the development set if there are several."""
    if len(task.dev) == 1:
        return {name: name for name in task.metrics}
    return {name: f"{name}_{split.removeprefix('dev_')}" for name in task.metrics}
