"""Decoding of classes, labels or values, and their metrics: GLUE's official metrics, or those for your own texts."""

import functools
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa

from tasks.downstream.scoring.logits import FeatureFiles
from tasks.downstream.scoring.metrics import Array, Metrics
from tasks.downstream.scoring.scores import Baseline, ClassCounts, Limit, Scores, hash_texts
from tasks.downstream.scoring.thresholds import ChosenThreshold
from tasks.downstream.texts.answers import AnswerForm, Prediction, make_form
from tasks.downstream.texts.params import SELECTIVE_FLOORS, ClassificationEvaluateParams, TextsParams
from tasks.downstream.texts.schemas import join_texts, make_schema
from tasks.downstream.texts.task_table import TextTask
from tasks.params.entries import TRAIN
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


@dataclass(frozen=True)
class TextsAnswers:
    """Logits of a development set, and the form that decodes them."""

    logits: Array
    """[examples, classes]; [examples, 1] for values."""
    form: AnswerForm


@dataclass(frozen=True)
class TextsScores(Scores[TextsDevSet, Array, TextsAnswers, Prediction]):
    """Classes, labels or values; outcomes are what is true and what is predicted for each example."""

    chosen: tuple[ChosenThreshold, ...] = ()
    """Thresholds that held-out examples chose."""
    known: tuple[str, ...] = ()
    """Classes that the model knows, of the examples of a checkout; see `know_labels`."""
    others: tuple[str, ...] = ()
    """Classes that only its development examples have."""

    @property
    def task(self) -> TextTask:
        return self.entry.params_as(TextsParams).text_task

    @property
    def decision(self) -> ClassificationEvaluateParams:
        return self.entry.params_as(TextsParams).decision

    @property
    def form(self) -> AnswerForm:
        """Form of the answers, without thresholds."""
        return make_form(self.task, self.decision)

    @property
    def quantities(self) -> tuple[str, ...]:
        return self.form.quantities(len(self.known) + len(self.others))

    @property
    def known_quantities(self) -> int:
        return len(self.quantities) // 2

    def know_labels(self, root: Path) -> Self:
        labels = self.task.labels
        known, others = (labels, ()) if labels else read_parquet_labels(self.entry.examples_file("dev", root))
        return replace(self, known=known, others=others)

    def prepare(self, root: Path) -> Self:
        """Choose the thresholds on held-out training examples, if the parameters ask for it."""
        prepared = self.know_labels(root)
        if not self.decision.is_chosen:
            return prepared
        fraction = self.entry.rows.held_out_fraction
        path, rows = self.entry.examples_file(TRAIN, root), self.entry.rows_folder(HELD_OUT, root)
        examples = self._read(path, lambda text: is_held_out(text, fraction, seed=0))
        logits = self.read_logits(examples, rows, root / artifacts.logits_file(self.entry.name, HELD_OUT))
        return replace(prepared, chosen=tuple(self.form.choose_thresholds(logits, examples.labels)))

    def read_examples(self, path: Path) -> TextsDevSet:
        return self._read(path, lambda text: True)

    def _read(self, path: Path, is_wanted: Callable[[str], bool]) -> TextsDevSet:
        """Read the examples of a file whose texts are wanted; the thresholds of the parameters must fit its classes."""
        made_by = self.entry.stage("examples")
        known, others = (self.task.labels, ()) if self.task.labels else read_parquet_labels(path)
        texts: list[str] = []
        names: list[str] = []
        labels: list[pa.Array] = []
        for batch in read_batches(path, make_schema(self.task).names, 65536, made_by):
            kept = batch.filter(pa.array(map(is_wanted, join_texts(batch)), pa.bool_()))
            texts += join_texts(kept)
            labels.append(kept.column("label"))
            names += kept.column("id").to_pylist()
        if not texts:
            raise InputError(f"{path} contains no examples. Run the stage {made_by} again")
        self._thresholds(known)
        classes = (*known, *others)
        numbers = self.form.read_labels(pa.concat_arrays(labels), len(classes))
        return TextsDevSet(texts, numbers, names, classes, len(known))

    def _thresholds(self, known: Sequence[str]) -> list[ChosenThreshold]:
        """Return the threshold of the decision, or one per label, for a model with these classes; [] if there is none.

        Raises:
            InputError: those of the parameters do not fit the classes.
        """
        setting, key, several = self.decision.threshold, self.entry.key("evaluate", THRESHOLD), self.task.is_multilabel
        if setting is not None and not several and len(known) != 2:
            raise InputError(f"{key} needs two classes; the model has {len(known)}. Set it to null")
        if isinstance(setting, dict):
            if set(setting) != set(known):
                differing = ", ".join(sorted(set(setting) ^ set(known))[:5])
                raise InputError(f"{key} must have a number for each label of the model; these differ: {differing}")
            return [ChosenThreshold(setting[name]) for name in known]
        if isinstance(setting, float | int) or (setting is None and several):
            return [ChosenThreshold(0.5 if setting is None else setting)]
        return list(self.chosen)

    def names(self, examples: TextsDevSet) -> Sequence[str]:
        return examples.names

    def keys(self, examples: TextsDevSet) -> list[str]:
        """Return hashes of the texts; for your own texts with the class names, which define the numbers."""
        if self.task.name:
            return hash_texts(examples.texts)
        classes = json.dumps([] if self.task.labels else examples.classes[: examples.learned])
        return hash_texts(f"{text}\n{classes}" for text in examples.texts)

    def read_logits(self, examples: TextsDevSet, rows: Path, logits: Path) -> Array:
        """Read logits [examples, classes]; [examples, 1] for a regression."""
        count, classes = len(examples.labels), examples.learned
        files = FeatureFiles(rows / artifacts.FEATURES, logits, self.entry.stage)
        [[flat]] = files.read_logits(("logits",), np.full(count, classes), [count])
        return flat.reshape(count, classes).astype(np.float64)

    def flat_logits(self, logits: Array) -> tuple[Array, np.ndarray]:
        return logits.reshape(-1), np.repeat(np.arange(len(logits)), logits.shape[1])

    def answer(self, examples: TextsDevSet, logits: Array) -> TextsAnswers:
        """Return the logits with the form that decodes them.

        Raises:
            InputError: thresholds are missing.
        """
        if self.decision.is_chosen and not self.chosen:
            raise InputError(
                "this model's thresholds are not recorded: podium.json of its release, or the metrics of its run, has "
                "them. Restore the file, or pass --threshold"
            )
        form = replace(self.form, thresholds=self._thresholds(examples.classes[: examples.learned]))
        return TextsAnswers(logits, form)

    def predictions(self, answers: TextsAnswers) -> Sequence[Prediction]:
        """Return class numbers, lists of label numbers, or values clipped to the range of the task."""
        return answers.form.decide(answers.form.probabilities(answers.logits))

    def margin(self, answers: TextsAnswers, number: int) -> float | None:
        return answers.form.margin(answers.logits, number)

    def scaled_confidences(self, answers: TextsAnswers) -> Callable[[float], Array] | None:
        return None if self.task.is_regression else functools.partial(answers.form.confidences, answers.logits)

    def correctness(self, examples: TextsDevSet, answers: TextsAnswers, outcomes: Array) -> Array:
        return answers.form.correctness(outcomes, answers.logits)

    def check_predictions(
        self, path: Path, split: str, examples: TextsDevSet, values: object
    ) -> list[Prediction | None]:
        """Check class numbers, lists of label numbers, or values; null for an example without prediction."""
        if not isinstance(values, list) or any(
            x is not None and not self.form.is_answer(x, examples.learned) for x in values
        ):
            low, high = self.task.answers
            what = "lists of label numbers" if self.task.is_multilabel else f"numbers from {low:g} to {high:g}"
            raise InputError(f"{path}: {split} must be a list of {what}")
        count = len(examples.labels)
        if len(values) != count:
            raise InputError(f"{path} has {len(values)} predictions for {split}, which has {count} examples")
        return values

    def count_classes(
        self, examples: Mapping[str, TextsDevSet], predictions: Mapping[str, Sequence[Prediction | None]], root: Path
    ) -> ClassCounts | None:
        path = self.entry.examples_file(TRAIN, root)
        if self.task.is_regression or self.task.is_multilabel or not path.is_file():
            return None
        first, *_ = examples.values()
        parts = read_batches(path, ["label"], 65536, self.entry.stage("examples"))
        numbers = (
            (number for part in parts for number in part.column("label").to_pylist()),
            (number for dev_set in examples.values() for number in dev_set.labels.astype(int).tolist()),
            (number for split in predictions.values() for number in split if number is not None),
        )
        counts = map(Counter, numbers)
        named = ({name: count[number] for number, name in enumerate(first.classes)} for count in counts)
        return ClassCounts(*named)

    def verify_decisions(
        self, metrics: Mapping[str, Any], predictions: Mapping[str, Sequence[Prediction | None]], root: Path
    ) -> None:
        """Check that the recorded thresholds are those of the parameters or chosen, and give these predictions."""
        for file in self.entry.decision_files:
            again = f"Run the stage {self.entry.stage('evaluate')} again"
            try:
                shares = np.loadtxt(root / file, delimiter=",", skiprows=1, ndmin=2)
                values = [float(row[THRESHOLD]) for row in metrics.get(THRESHOLDS, [metrics] * (THRESHOLD in metrics))]
            except (OSError, ValueError, KeyError, TypeError) as error:
                raise InputError(f"{root / file} or the recorded thresholds are damaged ({error}). {again}") from None
            thresholds = self._thresholds(self.known)
            if self.decision.is_chosen and len(values) in (1, shares.shape[1]):
                thresholds = [ChosenThreshold(value) for value in values]
            expected = [threshold.value for threshold in thresholds], self.decision.min_probability
            [saved] = predictions.values()
            decided = replace(self.form, thresholds=thresholds).decide(shares)
            if (values, metrics.get(MIN_PROBABILITY)) != expected or decided != list(saved):
                raise InputError(
                    f"the recorded thresholds of {self.entry.name} are not those of its parameters, or do not give its "
                    f"predictions from {root / file}. {again}"
                )

    def outcomes(self, examples: TextsDevSet, predictions: Sequence[Prediction | None]) -> Array:
        return self.form.outcomes(examples.labels, predictions)

    @property
    def _class_floors(self) -> Mapping[str, float]:
        return getattr(self.entry.params.gate, "min_f1_by_class", None) or {}

    @property
    def metrics(self) -> Metrics:
        parts = [
            metric
            for split in self.entry.development
            for metric in self.form.metrics(split, self.task.metric_names(split))
        ]
        parts += [self.form.class_f1(name, functools.partial(self._number, name)) for name in self._class_floors]
        return Metrics(tuple(parts), "score" if self.task.name else "")

    def _number(self, name: str) -> int:
        classes = (*self.known, *self.others)
        if name not in classes:
            key = self.entry.key("gate", f"min_f1_by_class.{name}")
            raise InputError(f"{key}: there is no such class; classes are {', '.join(classes)}")
        return classes.index(name)

    @property
    def limits(self) -> tuple[Limit, ...]:
        floors = (*self.task.floors, *(SELECTIVE_FLOORS if self.decision.min_probability is not None else ()))
        by_class = self._class_floors.items()
        return (
            *(self.make_limit(floor.removeprefix("min_"), floor, "max_drop") for floor in floors),
            *(Limit(f"f1_of_{name}", floor, f"min_f1_by_class.{name}", None, "") for name, floor in by_class),
        )

    def settings(self, metrics: Mapping[str, object]) -> dict[str, object]:
        return select_thresholds(metrics)

    def is_possible(self, quantities: Sequence[float]) -> bool:
        return self.form.is_possible(quantities)

    def baselines(self, examples: Mapping[str, TextsDevSet], rule: str = "") -> list[Baseline]:
        """Return the best constant prediction: the class or labels with the best score, or any value."""
        first, *_ = examples.values()
        constants = self.form.constants(first.labels, max(dev_set.learned for dev_set in examples.values()))
        constant_outcomes = [
            self.outcomes_of(examples, {split: [constant] * len(dev_set.labels) for split, dev_set in examples.items()})
            for constant in constants
        ]
        scores = (
            [self.metrics.compute(outcomes)[self.limits[0].metric] for outcomes in constant_outcomes]
            if len(constant_outcomes) > 1
            else [0.0]
        )
        best = scores.index(max(scores))
        if self.task.is_regression:
            return [Baseline("the best constant answer", constant_outcomes[best])]
        return [Baseline(f'always answering "{name_answer(first.classes, constants[best])}"', constant_outcomes[best])]

    def threshold_figures(self) -> dict[str, Any]:
        """Return the thresholds and the limit of the decision for the metrics file; empty without any."""
        least, chosen = (
            self.decision.min_probability,
            [threshold.record(THRESHOLD) for threshold in self._thresholds(self.known)],
        )
        figures: dict[str, object] = {} if least is None else {MIN_PROBABILITY: least}
        if len(chosen) > 1:
            by_label = zip(self.known, chosen, strict=False)
            return {**figures, THRESHOLDS: [{"label": name, **threshold} for name, threshold in by_label]}
        return {**figures, **(chosen[0] if chosen else {})}


def select_thresholds(recorded: Mapping[str, Any]) -> dict[str, object]:
    """Return the recorded thresholds of a decision as parameters: a number, or one per label."""
    thresholds = {key: recorded[key] for key in (THRESHOLD, MIN_PROBABILITY) if key in recorded}
    if THRESHOLDS in recorded:
        thresholds[THRESHOLD] = {row["label"]: row[THRESHOLD] for row in recorded[THRESHOLDS]}
    return thresholds


def name_answer(names: Sequence[str], answer: Any) -> str:
    """Return the class or the labels of an answer by name."""
    if np.ndim(answer) == 0:
        return names[answer] if answer >= 0 else "no answer"
    return ", ".join(names[number] for number in answer) or "none"
