"""Evaluation report of texts: scores, classes or labels, confusion matrix, and the worst mistakes."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
import pyarrow as pa

from tasks.downstream.scoring import page_parts
from tasks.downstream.scoring.metrics import Array, Slice, label_ranges, slice_by, slice_groups
from tasks.downstream.scoring.report import WORST, EvaluationView, Report, page_values
from tasks.downstream.texts.answers import Prediction
from tasks.downstream.texts.metrics import LABEL, PREDICTION
from tasks.downstream.texts.schemas import join_texts
from tasks.downstream.texts.scores import (
    MIN_PROBABILITY,
    THRESHOLD,
    THRESHOLDS,
    TextsAnswers,
    TextsDevSet,
    TextsScores,
    name_answer,
)
from tasks.downstream.texts.task_table import TextTask
from tasks.pages.markup import csv_text
from tasks.pages.plots import Plot
from tasks.pages.render import render_html

OPTIONAL = ("text_pair", "probability", "margin")
"""Columns of mistakes.csv that some tasks lack."""
SHOWN_CLASSES = 20
"""With more classes, the most frequent confusions replace the confusion matrix."""
_WORDS = ((5, "up to 5 words"), (10, "6-10 words"), (20, "11-20 words"), (40, "21-40 words"))


TextsView = EvaluationView[TextsDevSet, TextsAnswers, Prediction]


class Mistake(NamedTuple):
    """Example with a wrong answer."""

    number: int
    name: str
    label: str | float
    answer: str | float
    probability: float | None
    text: str


@dataclass(frozen=True)
class TextsReport(Report[TextsDevSet, Array, TextsAnswers, Prediction]):
    """Report with scores by class or label and by text length, confusion matrix, and the worst mistakes."""

    scores: TextsScores
    compared_columns: ClassVar[tuple[str, ...]] = ("first", "second")

    @property
    def task(self) -> TextTask:
        return self.scores.task

    def compared_texts(self, batch: pa.RecordBatch) -> list[str]:
        return join_texts(batch)

    def slices(
        self, split: str, examples: TextsDevSet, logits: Array, answers: TextsAnswers, outcomes: Array
    ) -> Sequence[Slice]:
        names, order = label_ranges([len(text.split()) for text in examples.texts], _WORDS, "over 40 words")
        prefix = "" if len(self.scores.entry.development) == 1 else f"{split}, "
        found = slice_by(f"{prefix}length", names, order, self.scores.metrics, split, outcomes)
        if self.task.is_regression:
            return found
        classes, what = examples.classes, "label" if self.task.is_multilabel else "class"
        counts = [self.scores.form.count(outcomes, number) for number in range(len(classes))]
        gold, seen, correct = (np.stack(one, axis=1) for one in zip(*counts, strict=True))
        is_known = [number < examples.learned for number in range(len(classes))]
        groups = slice_groups(f"{prefix}{what}", classes, is_known, gold, seen, correct, both=False)
        return found + [one for one in groups if what == "label" or one.examples or one.counts["found"]]

    def more_figures(self, found: TextsView) -> dict[str, object]:
        figures, curve = self.scores.threshold_figures(), found.curve
        return figures | ({"risk_coverage_area": round(curve.area, 6)} if curve and MIN_PROBABILITY in figures else {})

    def more_files(self, found: TextsView) -> dict[str, str]:
        files = {}
        for path, (split, answers) in zip(self.scores.entry.decision_files, found.answers.items(), strict=False):
            names = found.examples[split].classes[: answers.logits.shape[1]]
            files[path.name] = csv_text(names, answers.form.probabilities(answers.logits).tolist())
        if self.scores.decision.min_probability is not None and found.curve is not None:
            points = ((coverage, risk, -doubt) for coverage, risk, doubt in found.curve.points)
            files["risk-coverage.csv"] = csv_text(("coverage", "risk", "probability"), points)
        return files

    def page(self, found: TextsView) -> str:
        least, sentence = self.scores.decision.min_probability, "The probability is that of the predicted class."
        if self.task.is_multilabel:
            sentence = "The probability that all labels of a text are right is the product of theirs."
        stated = self.scores.threshold_figures().get(THRESHOLDS, [])
        notes = {one["label"]: f"threshold {one[THRESHOLD]:.3f}" for one in stated}
        values = page_values(self.scores, found, sentence, bar_notes=notes)
        if found.curve is not None and least is not None:
            values |= {"curve_plot": page_parts.plot_risk_coverage(found.curve, -least), "curve_file": True}
        return render_html(
            __file__,
            "texts.html.j2",
            **values,
            heading="Largest errors" if self.task.is_regression else "Most confident mistakes",
            is_multilabel=self.task.is_multilabel,
            thresholds=self.scores.threshold_figures(),
            sets=[
                self._figures(split, examples, found.answers[split], found.outcomes[split])
                for split, examples in found.examples.items()
            ],
        )

    def _figures(self, split: str, examples: TextsDevSet, answers: TextsAnswers, outcomes: Array) -> dict[str, object]:
        names, single = examples.classes, not self.task.is_regression and not self.task.is_multilabel
        few, columns = len(names) <= SHOWN_CLASSES, outcomes[:, [LABEL, PREDICTION]].T

        def describe(number: int) -> tuple[str, str]:
            return examples.names[number], examples.texts[number]

        return {
            "split": split,
            "examples": len(examples.labels),
            "labels": names,
            "confusion": page_parts.count_confusions(names, *columns) if single and few else None,
            "cells": page_parts.sample_cells(columns, describe) if single and few else None,
            "confused": frequent_confusions(names, outcomes) if single and not few else None,
            "threshold_plot": self._plot_thresholds(examples, answers),
            "value_plots": page_parts.plot_values(examples.names, *columns) if self.task.is_regression else None,
            "mistakes": self._list_mistakes(examples, answers, outcomes)[:WORST],
        }

    def _plot_thresholds(self, examples: TextsDevSet, answers: TextsAnswers) -> Plot | None:
        """Plot F1 by threshold for the second of two classes, or for the labels with the most examples."""
        known, used = examples.learned, [one.value for one in answers.form.thresholds] or [0.5]
        if self.task.is_multilabel:
            counts = examples.labels[:, :known].sum(axis=0)
            chosen, truth = np.argsort(-counts, kind="stable")[: page_parts.MOST_LINES].tolist(), examples.labels
        elif not self.task.is_regression and known == 2:
            chosen, truth = [1], examples.labels[:, None] == [0, 1]
        else:
            return None
        shares, names = answers.form.probabilities(answers.logits), examples.classes
        items = {names[number]: (shares[:, number], truth[:, number]) for number in chosen}
        return page_parts.plot_thresholds(items, {names[number]: used[number % len(used)] for number in chosen})

    def mistakes(self, found: TextsView) -> tuple[Sequence[str], Iterable[Sequence[object]]]:
        rows = [
            (split, one.name, *_split_pair(one.text), one.label, one.answer, one.probability, margin)
            for split, examples in found.examples.items()
            for one in self._list_mistakes(examples, found.answers[split], found.outcomes[split])
            for margin in [self.scores.margin(found.answers[split], one.number)]
        ]
        columns = ("set", "id", "text", "text_pair", "label", "answer", "probability", "margin")
        empty = [number for number, name in enumerate(columns) if all(row[number] is None for row in rows)]
        kept = [number for number in range(len(columns)) if number not in empty or columns[number] not in OPTIONAL]
        kept = kept if len(found.examples) > 1 else kept[1:]
        return [columns[one] for one in kept], ([row[one] for one in kept] for row in rows)

    def _list_mistakes(self, examples: TextsDevSet, answers: TextsAnswers, outcomes: Array) -> list[Mistake]:
        """Return the mistakes: the most confident, or the largest error, first."""
        classes, predictions = examples.classes, self.scores.predictions(answers)
        if self.task.is_regression:
            badness = np.abs(outcomes[:, PREDICTION] - outcomes[:, LABEL])
            shown, truth = (outcomes[:, one].round(6).tolist() for one in (PREDICTION, LABEL))
            probabilities: list[float | None] = [None] * len(truth)
        else:
            sure = answers.form.confidences(answers.logits)
            badness = np.where(self.scores.form.is_correct(outcomes) == 1, 0.0, sure)
            shown = [name_answer(classes, one) for one in predictions]
            labels = examples.labels.astype(int)
            truth = [name_answer(classes, np.flatnonzero(one) if np.ndim(one) else one) for one in labels]
            probabilities = sure.round(6).tolist()
        return [
            Mistake(
                number,
                examples.names[number],
                truth[number],
                shown[number],
                probabilities[number],
                examples.texts[number],
            )
            for number in np.argsort(-badness, kind="stable").tolist()
            if badness[number] > 0
        ]


def _split_pair(text: str) -> tuple[str, str | None]:
    first, tab, second = text.partition("\t")
    return first, second if tab else None


def frequent_confusions(names: Sequence[str], outcomes: Array) -> list[tuple[str, str, int]]:
    """Return the most frequent confusions: label, predicted class, and count."""
    counts = Counter((one, other) for one, other in outcomes.astype(int).tolist() if one != other)
    return [(names[one], name_answer(names, other), count) for (one, other), count in counts.most_common(WORST)]
