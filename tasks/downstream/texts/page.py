"""Evaluation report of texts: scores, confusion matrix, and the worst mistakes."""

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from tasks.downstream.evaluate import EvaluationView, PageTask
from tasks.downstream.scoring.metrics import Array, Metrics, Slice, label_ranges, slice_by
from tasks.downstream.texts.metrics import PREDICTION
from tasks.downstream.texts.scores import TextsDevSet, TextsScores, probabilities
from tasks.pages.render import render_html

WORST = 25
SHOWN_CLASSES = 20
"""With more classes, the most frequent confusions replace the confusion matrix."""
_WORDS = ((5, "up to 5 words"), (10, "6-10 words"), (20, "11-20 words"), (40, "21-40 words"))


class ClassScores(NamedTuple):
    """Scores of one class, in percent."""

    name: str
    learned: bool
    precision: float
    recall: float
    f1: float
    examples: int


class TextsPage(TextsScores, PageTask[TextsDevSet, Array, Array]):
    """Report with scores by class and text length, confusion matrix, and the worst mistakes."""

    def slices(self, split: str, examples: TextsDevSet, logits: Array, outcomes: Array) -> Sequence[Slice]:
        names, order = label_ranges([len(text.split()) for text in examples.texts], _WORDS, "over 40 words")
        prefix = "" if len(self.development) == 1 else f"{split}, "
        found = slice_by(f"{prefix}length", names, order, self.metrics, split, outcomes)
        if not self.is_regression:
            named = self.classes(examples)
            classes, order = [named[int(label)] for label in examples.labels], named[: self.learned(examples)]
            # For your own texts, only accuracy is meaningful within one class.
            metrics = self.metrics if self.spec.name else Metrics(self.metrics.parts[:1])
            found += slice_by(f"{prefix}class", classes, order, metrics, split, outcomes)
        return found

    def page(self, found: EvaluationView[TextsDevSet, Array]) -> str:
        return render_html(
            __file__,
            "texts.html.j2",
            title=f"Evaluation: {self.title}",
            note=found.note,
            near=found.near,
            heading="Largest errors" if self.is_regression else "Most confident mistakes",
            metrics=found.metrics,
            titles=self.metrics.titles,
            constant=found.metrics["constant_score"],
            slices=found.slices,
            sliced={
                name: title
                for name, title in self.metrics.titles.items()
                if any(name in part.figures for part in found.slices)
            },
            sets=[
                self._figures(split, examples, found.answers[split], found.outcomes[split][:, PREDICTION])
                for split, examples in found.examples.items()
            ],
        )

    def _figures(self, split: str, examples: TextsDevSet, logits: Array, predictions: Array) -> dict[str, Any]:
        labels = self.classes(examples)
        few, classes = len(labels) <= SHOWN_CLASSES, not self.is_regression
        return {
            "split": split,
            "examples": len(examples.labels),
            "labels": labels,
            "classes": class_scores(labels, self.learned(examples), examples.labels, predictions) if classes else None,
            "confusion": count_confusions(labels, examples.labels, predictions) if classes and few else None,
            "confused": None if few else frequent_confusions(labels, examples.labels, predictions),
            "mistakes": self._mistakes(examples, logits, predictions),
        }

    def _mistakes(self, examples: TextsDevSet, logits: Array, predictions: Array) -> list[dict[str, Any]]:
        if self.is_regression:
            badness = np.abs(predictions - examples.labels)
            shown = [f"{value:.2f}" for value in predictions]
            truth = [f"{value:.2f}" for value in examples.labels]
        else:
            sure, labels = probabilities(logits).max(axis=1), self.classes(examples)
            badness = np.where(predictions == examples.labels, 0.0, sure)
            shown = [f"{labels[int(p)]} ({s:.3f})" for p, s in zip(predictions, sure, strict=True)]
            truth = [labels[int(label)] for label in examples.labels]
        names = self.names(examples)
        return [
            {"name": names[number], "label": truth[number], "predicted": shown[number], "text": examples.texts[number]}
            for number in np.argsort(-badness, kind="stable")[:WORST].tolist()
            if badness[number] > 0
        ]


def class_scores(names: Sequence[str], learned: int, labels: Array, predictions: Array) -> list[ClassScores]:
    """Return precision, recall and F1 of every class that occurs or is predicted, by scikit-learn."""
    from sklearn.metrics import precision_recall_fscore_support

    numbers = range(len(names))
    columns = precision_recall_fscore_support(labels, predictions, labels=numbers, zero_division=0.0)
    predicted = set(predictions.tolist())
    return [
        ClassScores(name, number < learned, 100 * float(precision), 100 * float(recall), 100 * float(f1), int(count))
        for number, name, precision, recall, f1, count in zip(numbers, names, *columns, strict=True)
        if count or number in predicted
    ]


def count_confusions(names: Sequence[str], labels: Array, predictions: Array) -> list[tuple[str, list[int]]]:
    """Return the confusion matrix: each class with the number of predictions of each class."""
    from sklearn.metrics import confusion_matrix

    counts = confusion_matrix(labels, predictions, labels=range(len(names)))
    return list(zip(names, counts.tolist(), strict=True))


def frequent_confusions(names: Sequence[str], labels: Array, predictions: Array) -> list[tuple[str, str, int]]:
    """Return the most frequent confusions: label, predicted class, and count."""
    pairs = zip(labels.tolist(), predictions.tolist(), strict=True)
    counts = Counter((int(one), int(other)) for one, other in pairs if one != other)
    return [(names[one], names[other], count) for (one, other), count in counts.most_common(WORST)]
