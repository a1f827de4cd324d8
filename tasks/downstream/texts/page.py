"""Evaluation report of texts: scores, classes or labels, confusion matrix, and the worst mistakes."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tasks.downstream.evaluate import EvaluationView, PageTask, plot_risk_coverage
from tasks.downstream.scoring.metrics import RATES, Array, Metrics, Slice, label_ranges, slice_by, slice_groups
from tasks.downstream.scoring.thresholds import RiskCoverage, risk_coverage
from tasks.downstream.texts.answers import ClassAnswers, LabelAnswers
from tasks.downstream.texts.metrics import LABEL, PREDICTION
from tasks.downstream.texts.scores import TextsDevSet, TextsScores, name_answer
from tasks.pages.markup import csv_text
from tasks.pages.render import render_html

WORST = 25
SHOWN_CLASSES = 20
"""With more classes, the most frequent confusions replace the confusion matrix."""
_WORDS = ((5, "up to 5 words"), (10, "6-10 words"), (20, "11-20 words"), (40, "21-40 words"))


class TextsPage(TextsScores, PageTask[TextsDevSet, Array, Array]):
    """Report with scores by class or label and by text length, confusion matrix, and the worst mistakes."""

    _curve: RiskCoverage | None = None
    """Curve over all development sets if the least probable answers are not given; computed by `more_figures`."""

    def slices(self, split: str, examples: TextsDevSet, logits: Array, outcomes: Array) -> Sequence[Slice]:
        names, order = label_ranges([len(text.split()) for text in examples.texts], _WORDS, "over 40 words")
        prefix = "" if len(self.development) == 1 else f"{split}, "
        found = slice_by(f"{prefix}length", names, order, self.metrics, split, outcomes)
        classes, known = examples.classes, examples.learned
        if isinstance(self.form, LabelAnswers):
            is_known = [number < known for number in range(len(classes))]
            return found + slice_groups("label", classes, is_known, *self.form.count_all(outcomes), both=False)
        if self.spec.is_regression:
            return found
        # For your own texts, only accuracy is meaningful within one class.
        metrics = self.metrics if self.spec.name else Metrics(self.metrics.parts[:1])
        true = [classes[int(label)] for label in examples.labels]
        return found + slice_by(f"{prefix}class", true, classes[:known], metrics, split, outcomes)

    def more_figures(self, examples: Mapping[str, TextsDevSet], answers: Mapping[str, Array]) -> dict[str, Any]:
        figures = self.threshold_figures()
        if self.decision.min_probability is None:
            return figures
        assert isinstance(self.form, ClassAnswers)
        chosen = {split: self.form.choose(self.form.probabilities(logits)) for split, logits in answers.items()}
        right = [numbers == examples[split].labels for split, (numbers, _) in chosen.items()]
        doubts = np.concatenate([-sure for _, sure in chosen.values()])
        self._curve = risk_coverage(doubts.tolist(), np.concatenate(right).astype(np.float64).tolist())
        return {**figures, "risk_coverage_area": round(self._curve.area, 6)}

    def more_files(self, found: EvaluationView[TextsDevSet, Array]) -> dict[str, str]:
        files = {}
        for path, (split, logits) in zip(self.decision_files, found.answers.items(), strict=False):
            names = found.examples[split].classes[: logits.shape[1]]
            files[path.name] = csv_text(names, self.form.probabilities(logits).tolist())
        if self._curve is not None:
            points = ((coverage, risk, -doubt) for coverage, risk, doubt in self._curve.points)
            files["risk-coverage.csv"] = csv_text(("coverage", "risk", "probability"), points)
        return files

    def page(self, found: EvaluationView[TextsDevSet, Array]) -> str:
        curve, least = self._curve, self.decision.min_probability
        slices, titles = [part for part in found.slices if part.by != "label"], self.metrics.titles
        return render_html(
            __file__,
            "texts.html.j2",
            title=f"Evaluation: {self.title}",
            note=found.note,
            near=found.near,
            heading="Largest errors" if self.spec.is_regression else "Most confident mistakes",
            metrics=found.metrics,
            titles=titles,
            constant=found.metrics["constant_score"],
            slices=slices,
            sliced={name: title for name, title in titles.items() if any(name in part.figures for part in slices)},
            is_multilabel=self.spec.is_multilabel,
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
        names, single = examples.classes, not self.spec.is_regression and not self.spec.is_multilabel
        few = len(names) <= SHOWN_CLASSES
        return {
            "split": split,
            "examples": len(examples.labels),
            "labels": names,
            "classes": None if self.spec.is_regression else self._class_scores(examples, outcomes),
            "confusion": count_confusions(names, outcomes) if single and few else None,
            "confused": frequent_confusions(names, outcomes) if single and not few else None,
            "mistakes": self._mistakes(examples, logits, outcomes),
        }

    def _class_scores(self, examples: TextsDevSet, outcomes: Array) -> list[dict[str, Any]]:
        """Return the scores, in percent, of every label, or of every class that occurs or is predicted."""
        limits, found, several = [one.value for one in self.form.thresholds], [], self.spec.is_multilabel
        for number, name in enumerate(examples.classes):
            learned = number < examples.learned
            gold, seen, correct = (float(one.sum()) for one in self.form.count(outcomes, number))
            if gold or seen or several:
                limit = limits[number % len(limits)] if several and learned else None
                one = {"name": name, "learned": learned, "examples": int(gold), "threshold": limit}
                for rate, (_, times, of_gold, of_found) in RATES.items():
                    total = of_gold * gold + of_found * seen
                    one[rate] = 100 * times * correct / total if total else 0.0
                found.append(one)
        return found

    def _mistakes(self, examples: TextsDevSet, logits: Array, outcomes: Array) -> list[dict[str, Any]]:
        classes, predictions = examples.classes, self.predictions(logits)
        if self.spec.is_regression:
            badness = np.abs(outcomes[:, PREDICTION] - outcomes[:, LABEL])
            shown, truth = ([f"{value:.2f}" for value in outcomes[:, one]] for one in (PREDICTION, LABEL))
        else:
            sure = np.array(self.form.confidences(logits))
            badness = np.where(self.form.correctness(outcomes) == 1, 0.0, sure)
            shown = [f"{name_answer(classes, one)} ({s:.3f})" for one, s in zip(predictions, sure, strict=True)]
            labels = examples.labels.astype(int)
            truth = [name_answer(classes, np.flatnonzero(one) if np.ndim(one) else one) for one in labels]
        return [
            {
                "name": examples.names[number],
                "label": truth[number],
                "predicted": shown[number],
                "text": examples.texts[number],
            }
            for number in np.argsort(-badness, kind="stable")[:WORST].tolist()
            if badness[number] > 0
        ]


def count_confusions(names: Sequence[str], outcomes: Array) -> list[tuple[str, list[int]]]:
    """Return the confusion matrix: each class with the number of predictions of each class."""
    size, pairs = len(names), outcomes[outcomes[:, PREDICTION] >= 0].astype(int)
    counts = np.bincount(pairs[:, LABEL] * size + pairs[:, PREDICTION], minlength=size**2).reshape(size, size)
    return list(zip(names, counts.tolist(), strict=True))


def frequent_confusions(names: Sequence[str], outcomes: Array) -> list[tuple[str, str, int]]:
    """Return the most frequent confusions: label, predicted class, and count."""
    counts = Counter((one, other) for one, other in outcomes.astype(int).tolist() if one != other)
    return [(names[one], name_answer(names, other), count) for (one, other), count in counts.most_common(WORST)]
