"""Evaluation report of texts: scores, classes or labels, confusion matrix, and the worst mistakes."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tasks.downstream.evaluate import EvaluationView, PageTask, plot_risk_coverage
from tasks.downstream.scoring.metrics import Array, Metrics, Slice, label_ranges, slice_by, slice_groups
from tasks.downstream.scoring.thresholds import RiskCoverage, risk_coverage
from tasks.downstream.texts.metrics import LABEL, PREDICTION, count_class, count_labels
from tasks.downstream.texts.scores import TextsDevSet, TextsScores
from tasks.pages.markup import csv_text
from tasks.pages.render import render_html

WORST = 25
SHOWN_CLASSES = 20
"""With more classes, the most frequent confusions replace the confusion matrix."""
_WORDS = ((5, "up to 5 words"), (10, "6-10 words"), (20, "11-20 words"), (40, "21-40 words"))


class TextsPage(TextsScores, PageTask[TextsDevSet, Array, Array]):
    """Report with scores by class or label and by text length, confusion matrix, and the worst mistakes."""

    def slices(self, split: str, examples: TextsDevSet, logits: Array, outcomes: Array) -> Sequence[Slice]:
        names, order = label_ranges([len(text.split()) for text in examples.texts], _WORDS, "over 40 words")
        prefix = "" if len(self.development) == 1 else f"{split}, "
        found = slice_by(f"{prefix}length", names, order, self.metrics, split, outcomes)
        named, known = self.classes(examples), self.learned(examples)
        if self.is_multilabel:
            is_known = [number < known for number in range(len(named))]
            found += slice_groups("label", named, is_known, *count_labels(outcomes), both=False)
        elif not self.is_regression:
            classes, order = [named[int(label)] for label in examples.labels], named[:known]
            # For your own texts, only accuracy is meaningful within one class.
            metrics = self.metrics if self.spec.name else Metrics(self.metrics.parts[:1])
            found += slice_by(f"{prefix}class", classes, order, metrics, split, outcomes)
        return found

    def more_figures(self, examples: Mapping[str, TextsDevSet], answers: Mapping[str, Array]) -> dict[str, Any]:
        found, curve = self.threshold_figures(), self._curve(examples, answers)
        return found if curve is None else {**found, "risk_coverage_area": round(curve.area, 6)}

    def more_files(self, found: EvaluationView[TextsDevSet, Array]) -> dict[str, str]:
        files = {}
        for path, (split, logits) in zip(self.decision_files, found.answers.items(), strict=False):
            names = self.classes(found.examples[split])[: logits.shape[1]]
            files[path.name] = csv_text(names, self.form.probabilities(logits).tolist())
        if (curve := self._curve(found.examples, found.answers)) is None:
            return files
        points = ((coverage, risk, -doubt) for coverage, risk, doubt in curve.points)
        return {**files, "risk-coverage.csv": csv_text(("coverage", "risk", "probability"), points)}

    def _curve(self, examples: Mapping[str, TextsDevSet], answers: Mapping[str, Array]) -> RiskCoverage | None:
        """Return the curve over all development sets if the least probable answers are not given, else None."""
        if self.decision.min_probability is None:
            return None
        doubts = [-one for logits in answers.values() for one in self.form.confidences(logits) or ()]
        choices = ((split, self.form.choose(self.form.probabilities(logits))) for split, logits in answers.items())
        right = [choice == examples[split].labels for split, choice in choices]
        return risk_coverage(doubts, np.concatenate(right).astype(np.float64).tolist())

    def page(self, found: EvaluationView[TextsDevSet, Array]) -> str:
        curve, least = self._curve(found.examples, found.answers), self.decision.min_probability
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
            slices=[part for part in found.slices if part.by != "label"],
            sliced={
                name: title
                for name, title in self.metrics.titles.items()
                if any(name in part.figures for part in found.slices if part.by != "label")
            },
            is_multilabel=self.is_multilabel,
            thresholds=self.threshold_figures(),
            curve=curve,
            record=self.record,
            curve_plot=curve and plot_risk_coverage(curve, -(least or 0), f"{least:g}", self.record),
            sets=[
                self._figures(split, examples, found.answers[split], found.outcomes[split])
                for split, examples in found.examples.items()
            ],
        )

    def _figures(self, split: str, examples: TextsDevSet, logits: Array, outcomes: Array) -> dict[str, Any]:
        labels = self.classes(examples)
        few, single = len(labels) <= SHOWN_CLASSES, not self.is_regression and not self.is_multilabel
        return {
            "split": split,
            "examples": len(examples.labels),
            "labels": labels,
            "classes": None if self.is_regression else self._class_scores(labels, self.learned(examples), outcomes),
            "confusion": count_confusions(labels, outcomes) if single and few else None,
            "confused": frequent_confusions(labels, outcomes) if single and not few else None,
            "mistakes": self._mistakes(examples, logits, outcomes),
        }

    def _class_scores(self, names: Sequence[str], learned: int, outcomes: Array) -> list[dict[str, Any]]:
        """Return the scores, in percent, of every label, or of every class that occurs or is predicted."""
        limits, found = [one.value for one in self.form.thresholds], []
        for number, name in enumerate(names):
            columns = [one[:, number] for one in count_labels(outcomes)] if self.is_multilabel else []
            gold, seen, correct = (float(one.sum()) for one in columns or count_class(outcomes, number))
            if gold or seen or columns:
                rates = {"precision": (correct, seen), "recall": (correct, gold), "f1": (2 * correct, gold + seen)}
                figures = {rate: 100 * above / below if below else 0.0 for rate, (above, below) in rates.items()}
                limit = limits[number % len(limits)] if columns and number < learned else None
                more = {"name": name, "learned": number < learned, "examples": int(gold), "threshold": limit}
                found.append({**more, **figures})
        return found

    def _mistakes(self, examples: TextsDevSet, logits: Array, outcomes: Array) -> list[dict[str, Any]]:
        right, predictions = self.form.correctness(outcomes), self.predictions(logits)
        if self.is_regression:
            badness = np.abs(outcomes[:, PREDICTION] - outcomes[:, LABEL])
            shown, truth = ([f"{value:.2f}" for value in outcomes[:, one]] for one in (PREDICTION, LABEL))
        else:
            labels, sure = self.classes(examples), np.array(self.form.confidences(logits))
            badness = np.where(right == 1, 0.0, sure)
            shown = [f"{_name(labels, one)} ({s:.3f})" for one, s in zip(predictions, sure, strict=True)]
            true = map(np.flatnonzero, examples.labels) if self.is_multilabel else examples.labels.astype(int)
            truth = [_name(labels, one) for one in true]
        names = self.names(examples)
        return [
            {"name": names[number], "label": truth[number], "predicted": shown[number], "text": examples.texts[number]}
            for number in np.argsort(-badness, kind="stable")[:WORST].tolist()
            if badness[number] > 0
        ]


def _name(names: Sequence[str], answer: Any) -> str:
    """Return the class or the labels of an answer by name."""
    if np.ndim(answer) == 0:
        return names[answer] if answer >= 0 else "no answer"
    return ", ".join(names[one] for one in answer) or "none"


def count_confusions(names: Sequence[str], outcomes: Array) -> list[tuple[str, list[int]]]:
    """Return the confusion matrix: each class with the number of predictions of each class."""
    size, pairs = len(names), outcomes[outcomes[:, PREDICTION] >= 0].astype(int)
    counts = np.bincount(pairs[:, LABEL] * size + pairs[:, PREDICTION], minlength=size**2).reshape(size, size)
    return list(zip(names, counts.tolist(), strict=True))


def frequent_confusions(names: Sequence[str], outcomes: Array) -> list[tuple[str, str, int]]:
    """Return the most frequent confusions: label, predicted class, and count."""
    counts = Counter((one, other) for one, other in outcomes.astype(int).tolist() if one != other)
    return [(names[one], _name(names, other), count) for (one, other), count in counts.most_common(WORST)]
