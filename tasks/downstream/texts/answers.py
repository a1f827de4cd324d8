"""Answers to texts: one class, several labels, or a value; decoded from logits and compared with the examples' labels.

Legend: N examples, C classes or labels that the model knows, L all of them, also those that only dev has.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pyarrow as pa

from tasks.downstream.scoring.metrics import RATES, Array, Metric, count_rates, ratio_metric
from tasks.downstream.scoring.thresholds import ChosenThreshold, choose_probability, score_both_classes
from tasks.downstream.texts.metrics import LABEL, PREDICTION, count_class, divide, find_extremes, is_right, metric
from tasks.downstream.texts.params import ClassificationEvaluateParams
from tasks.downstream.texts.schemas import make_flags
from tasks.downstream.texts.task_table import TextTask
from tasks.rows.row_files import from_arrow

TITLES = {"accuracy": "accuracy", "macro_f1": "macro F1", "pearson": "Pearson", "spearman": "Spearman"}
"""Names of the metrics for your own texts."""
NO_ANSWER = -1
"""Class number of an example without an answer."""
Prediction = float | list[int]
"""Number of a class, numbers of labels, or a value."""


@dataclass(frozen=True)
class AnswerForm:
    """Form of the answers of a task, here values; predictions are plain values, as in predictions.json."""

    task: TextTask
    decision: ClassificationEvaluateParams
    thresholds: Sequence[ChosenThreshold] = ()
    """Threshold of the decision, or one per label; empty: there is none."""

    def read_labels(self, column: pa.Array, classes: int) -> Array:
        """Return the labels of the examples, [N] or [N, L]."""
        return from_arrow(column).astype(np.float64)

    def probabilities(self, logits: Array) -> Array:
        """Return probabilities [N, C], or the values [N, 1]."""
        return logits

    def decide(self, shares: Array) -> list[Prediction]:
        """Return the predictions that probabilities or values decide; values are clipped to the range of the task."""
        return [round(x, 6) for x in np.clip(shares[:, 0], *self.task.answers).tolist()]

    def confidences(self, logits: Array, temperature: float = 1.0) -> Array:
        """Return the probability of each prediction, [N], if logits are divided by a temperature; the prediction stays
        the same."""
        raise NotImplementedError("values have no probabilities")

    def margin(self, logits: Array, number: int) -> float | None:
        """Return the lead of a prediction over the next best; None for values."""
        return None

    def is_answer(self, value: object, classes: int) -> bool:
        """Return True for a valid prediction."""
        low, high = self.task.answers
        return isinstance(value, int | float) and bool(np.isfinite(value) and low <= value <= high)

    def quantities(self, classes: int) -> tuple[str, ...]:
        """Return the names of the columns of outcomes: those of the label, then as many of the prediction."""
        return ("label", "prediction")

    def is_possible(self, quantities: Sequence[float]) -> bool:
        """Return True if a prediction can have these quantities."""
        return all(self.is_answer(value, 0) for value in quantities)

    def outcomes(self, labels: Array, predictions: Sequence[object]) -> Array:
        """Return label and prediction of each example, [N, 2]; a missing prediction is always wrong."""
        answers = [NO_ANSWER if prediction is None else prediction for prediction in predictions]
        return np.stack([labels, np.array(answers, dtype=np.float64)], axis=1)

    def correctness(self, outcomes: Array, logits: Array) -> Array:
        """Return 1 or 0 for each example: what `confidences` refers to is correct."""
        return self.is_correct(outcomes)

    def is_correct(self, outcomes: Array) -> Array:
        """Return 1 or 0 for each example: its label or all its labels are predicted."""
        return is_right(outcomes)

    def count(self, outcomes: Array, number: int) -> tuple[Array, Array, Array]:
        """Return 1 or 0 for each example: it is of this class, is predicted as such, and both; [N] each."""
        return count_class(outcomes, number)

    def class_extremes(self, outcomes: Array, number: int) -> tuple[Array, Array]:
        """Return an example of a class that is predicted as another one, and one that is predicted as itself."""
        return find_extremes("f1", outcomes, number)

    def class_f1(self, name: str, number: Callable[[], int]) -> Metric:
        """Return F1 of one class or label, whose number `number` returns."""
        f1, *_ = count_rates(lambda rows: self.count(rows, number()), lambda rows: self.class_extremes(rows, number()))
        return replace(f1, name=f"f1_of_{name}", title=f"F1 of {name}")

    def metrics(self, split: str, names: Mapping[str, str]) -> tuple[Metric, ...]:
        """Return the metrics of a development set; `names`: metric -> its name in the metrics file."""
        titles = {} if self.task.name else TITLES
        return tuple(metric(key, title=titles.get(key, ""), called=name, split=split) for key, name in names.items())

    def constants(self, labels: Array, classes: int) -> list[Prediction]:
        """Return the constant predictions of which the best is the baseline."""
        return [0.0]

    def choose_thresholds(self, logits: Array, labels: Array) -> Sequence[ChosenThreshold]:
        """Return the thresholds that held-out examples choose."""
        raise NotImplementedError("values have no thresholds")


class ClassAnswers(AnswerForm):
    """Numbers of classes: the most probable one, or the second of two above a threshold, or none."""

    def probabilities(self, logits: Array) -> Array:
        odds = np.exp(logits - logits.max(axis=1, keepdims=True))
        return odds / odds.sum(axis=1, keepdims=True)

    def choose(self, shares: Array) -> tuple[np.ndarray, Array]:
        """Return the number of a class for each example, whether it is given as an answer or not, and its probability,
        [N] each."""
        chosen = shares.argmax(axis=1)
        if self.thresholds:
            chosen = (shares[:, 1] > self.thresholds[0].value).astype(np.int64)
        return chosen, np.take_along_axis(shares, chosen[:, None], 1)[:, 0]

    def decide(self, shares: Array) -> list[Prediction]:
        chosen, sure = self.choose(shares)
        least = self.decision.min_probability
        return (chosen if least is None else np.where(sure < least, NO_ANSWER, chosen)).tolist()

    def confidences(self, logits: Array, temperature: float = 1.0) -> Array:
        """Return the probability of the chosen class, whether it is given or not."""
        chosen, _ = self.choose(self.probabilities(logits))
        return np.take_along_axis(self.probabilities(logits / temperature), chosen[:, None], 1)[:, 0]

    def correctness(self, outcomes: Array, logits: Array) -> Array:
        """Return 1 for each example whose chosen class is its label, whether it is given or not, else 0."""
        chosen, _ = self.choose(self.probabilities(logits))
        return is_right(np.stack([outcomes[:, LABEL], chosen], axis=1))

    def margin(self, logits: Array, number: int) -> float | None:
        second, first = np.sort(logits[number])[-2:]
        return round(float(first - second), 4)

    def is_answer(self, value: object, classes: int) -> bool:
        if not isinstance(value, int | float):
            return False
        rejected = value == NO_ANSWER and self.decision.min_probability is not None
        return rejected or (super().is_answer(value, classes) and value == int(value))

    def metrics(self, split: str, names: Mapping[str, str]) -> tuple[Metric, ...]:
        """Return also coverage and accuracy of the answered examples, if a minimum probability is set."""

        def answered(outcomes: Array) -> Array:
            return (outcomes[:, PREDICTION] >= 0).astype(np.float64)

        parts = super().metrics(split, names)
        if self.decision.min_probability is None:
            return parts
        extremes, silent = partial(find_extremes, "accuracy"), (np.array([0.0, -1.0]), np.array([0.0, 0.0]))
        return (
            *parts,
            ratio_metric("coverage", "coverage", answered, extremes=lambda _: silent),
            ratio_metric("answered_accuracy", "accuracy of answers", is_right, answered, empty=0.0, extremes=extremes),
        )

    def constants(self, labels: Array, classes: int) -> list[Prediction]:
        return list(range(classes))

    def choose_thresholds(self, logits: Array, labels: Array) -> Sequence[ChosenThreshold]:
        return [choose_probability(self.probabilities(logits)[:, 1], labels == 1, score_both_classes)]


class LabelAnswers(AnswerForm):
    """Lists of the numbers of all labels whose probability is above their threshold."""

    def read_labels(self, column: pa.Array, classes: int) -> Array:
        return make_flags(column, classes).astype(np.float64)

    def probabilities(self, logits: Array) -> Array:
        return 1 / (1 + np.exp(-np.clip(logits, -500, 500)))

    def choose(self, shares: Array) -> np.ndarray:
        """Return True for each label that is predicted, [N, C]."""
        return shares > np.array([threshold.value for threshold in self.thresholds])

    def decide(self, shares: Array) -> list[Prediction]:
        return [np.flatnonzero(row).tolist() for row in self.choose(shares)]

    def confidences(self, logits: Array, temperature: float = 1.0) -> Array:
        """Return the probability that all labels are right, as if they were independent."""
        shares, chosen = self.probabilities(logits / temperature), self.choose(self.probabilities(logits))
        return np.where(chosen, shares, 1 - shares).prod(axis=1)

    def margin(self, logits: Array, number: int) -> float | None:
        """Return the least distance of a logit from its threshold."""
        limits = np.clip([threshold.value for threshold in self.thresholds], 1e-12, 1 - 1e-12)
        return round(float(np.abs(logits[number] - np.log(limits / (1 - limits))).min()), 4)

    def is_answer(self, value: object, classes: int) -> bool:
        if not isinstance(value, list) or not all(type(number) is int and 0 <= number < classes for number in value):
            return False
        return len({*value}) == len(value)

    def quantities(self, classes: int) -> tuple[str, ...]:
        return tuple(f"{what}_{number}" for what in ("label", "prediction") for number in range(classes))

    def is_possible(self, quantities: Sequence[float]) -> bool:
        return set(quantities) <= {0, 1}

    def outcomes(self, labels: Array, predictions: Sequence[object]) -> Array:
        """Return 1 or 0 for each true and each predicted label, [N, 2 * L]."""
        answers = pa.array([prediction or [] for prediction in predictions], pa.list_(pa.int32()))
        predicted = make_flags(answers, labels.shape[1]).astype(np.float64)
        missing = [number for number, prediction in enumerate(predictions) if prediction is None]
        predicted[missing] = 1 - labels[missing]
        return np.concatenate([labels, predicted], axis=1)

    def is_correct(self, outcomes: Array) -> Array:
        gold, predicted, _ = self.count_all(outcomes)
        return (gold == predicted).all(axis=1).astype(np.float64)

    @staticmethod
    def count_all(outcomes: Array) -> tuple[Array, Array, Array]:
        """Return 1 or 0 for each true, each predicted, and each correct label, [N, L] each."""
        gold, predicted = np.hsplit(outcomes, 2)
        return gold, predicted, gold * predicted

    def count(self, outcomes: Array, number: int) -> tuple[Array, Array, Array]:
        gold, predicted, correct = (flags[:, number] for flags in self.count_all(outcomes))
        return gold, predicted, correct

    def extremes(self, outcomes: Array) -> tuple[Array, Array]:
        """Return the worst and the best example: the rarest labels, as many as an example with labels has on average,
        predicted as the most frequent others and as themselves."""
        gold, _, _ = self.count_all(outcomes)
        counts, labelled = gold.sum(axis=0), max(1, int((gold.sum(axis=1) > 0).sum()))
        size = max(1, round(float(counts.sum()) / labelled))
        true, wrong = np.zeros(len(counts)), np.zeros(len(counts))
        true[np.argsort(np.where(counts > 0, counts, np.inf), kind="stable")[:size]] = 1
        wrong[[number for number in np.argsort(-counts, kind="stable") if not true[number]][:size]] = 1
        return np.concatenate([true, wrong]), np.concatenate([true, true])

    def class_extremes(self, outcomes: Array, number: int) -> tuple[Array, Array]:
        missed, right = np.zeros((2, outcomes.shape[1]))
        missed[number] = right[number] = right[number + len(right) // 2] = 1
        return missed, right

    def metrics(self, split: str, names: Mapping[str, str]) -> tuple[Metric, ...]:
        """Return the metrics of several labels, micro F1 and macro F1 first; macro metrics are means over all labels, 0
        for a label without the counts that a rate needs."""

        def count(outcomes: Array) -> tuple[Array, Array, Array]:
            gold, predicted, correct = (flags.sum(axis=1) for flags in self.count_all(outcomes))
            return gold, predicted, correct

        def macro(rate: str, outcomes: Array, weights: Array) -> Array:
            gold, predicted, correct = (weights @ flags for flags in self.count_all(outcomes))
            _, times, of_gold, of_found = RATES[rate]
            return 100 * divide(times * correct, of_gold * gold + of_found * predicted).mean(axis=1)

        f1, *others = count_rates(count, self.extremes, "micro")
        macro_f1, *macros = [
            Metric(f"macro_{rate}", f"macro {title}", partial(macro, rate), extremes=self.extremes)
            for rate, (title, *_) in RATES.items()
        ]
        exact = ratio_metric(
            "exact_match", "exact match", self.is_correct, extremes=self.extremes, right=self.is_correct
        )
        return f1, macro_f1, *others, *macros, exact

    def constants(self, labels: Array, classes: int) -> list[Prediction]:
        """Return the most frequent labels, as many as give the best micro F1."""
        counts = labels[:, :classes].sum(axis=0)
        order, sizes = np.argsort(-counts, kind="stable"), np.arange(1, classes + 1)
        scores = 2 * np.cumsum(counts[order]) / (labels.sum() + sizes * len(labels))
        return [sorted(order[: int(scores.argmax()) + 1].tolist())]

    def choose_thresholds(self, logits: Array, labels: Array) -> Sequence[ChosenThreshold]:
        shares, (count, classes) = self.probabilities(logits), logits.shape
        truth = labels[:, :classes]
        if self.decision.threshold == "per_label":
            return [choose_probability(*column) for column in zip(shares.T, truth.T, strict=True)]
        owners = np.repeat(np.arange(count), classes)
        return [choose_probability(shares.reshape(-1), truth.reshape(-1), owners=owners)]


def make_form(task: TextTask, decision: ClassificationEvaluateParams) -> AnswerForm:
    """Return the form of the answers of a task."""
    if task.is_regression:
        return AnswerForm(task, decision)
    return LabelAnswers(task, decision) if task.is_multilabel else ClassAnswers(task, decision)
