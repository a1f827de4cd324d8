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


class TextsMistake(NamedTuple):
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
        slices = slice_by(f"{prefix}length", names, order, self.scores.metrics, split, outcomes)
        if self.task.is_regression:
            return slices
        classes, what = examples.classes, "label" if self.task.is_multilabel else "class"
        counts = [self.scores.form.count(outcomes, number) for number in range(len(classes))]
        gold, seen, correct = (np.stack(columns, axis=1) for columns in zip(*counts, strict=True))
        is_known = [number < examples.learned for number in range(len(classes))]
        groups = slice_groups(f"{prefix}{what}", classes, is_known, gold, seen, correct, both=False)
        return slices + [group for group in groups if what == "label" or group.examples or group.counts["found"]]

    def more_figures(self, view: TextsView) -> dict[str, object]:
        figures, curve = self.scores.threshold_figures(), view.curve
        return figures | ({"risk_coverage_area": round(curve.area, 6)} if curve and MIN_PROBABILITY in figures else {})

    def more_files(self, view: TextsView) -> dict[str, str]:
        files = {}
        for path, (split, answers) in zip(self.scores.entry.decision_files, view.answers.items(), strict=False):
            names = view.examples[split].classes[: answers.logits.shape[1]]
            files[path.name] = csv_text(names, answers.form.probabilities(answers.logits).tolist())
        if self.scores.decision.min_probability is not None and view.curve is not None:
            points = ((coverage, risk, -doubt) for coverage, risk, doubt in view.curve.points)
            files["risk-coverage.csv"] = csv_text(("coverage", "risk", "probability"), points)
        return files

    def page(self, view: TextsView) -> str:
        least, sentence = self.scores.decision.min_probability, "The probability is that of the predicted class."
        if self.task.is_multilabel:
            sentence = "The probability that all labels of a text are right is the product of theirs."
        thresholds = self.scores.threshold_figures().get(THRESHOLDS, [])
        notes = {row["label"]: f"threshold {row[THRESHOLD]:.3f}" for row in thresholds}
        values = page_values(self.scores, view, sentence, bar_notes=notes)
        if view.curve is not None and least is not None:
            values |= {"curve_plot": page_parts.plot_risk_coverage(view.curve, -least), "curve_file": True}
        return render_html(
            __file__,
            "texts.html.j2",
            **values,
            heading="Largest errors" if self.task.is_regression else "Most confident mistakes",
            is_multilabel=self.task.is_multilabel,
            thresholds=self.scores.threshold_figures(),
            sets=[
                self._figures(split, examples, view.answers[split], view.outcomes[split])
                for split, examples in view.examples.items()
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
        known, used = examples.learned, [threshold.value for threshold in answers.form.thresholds] or [0.5]
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

    def mistakes(self, view: TextsView) -> tuple[Sequence[str], Iterable[Sequence[object]]]:
        rows = [
            (
                split,
                mistake.name,
                *_split_pair(mistake.text),
                mistake.label,
                mistake.answer,
                mistake.probability,
                margin,
            )
            for split, examples in view.examples.items()
            for mistake in self._list_mistakes(examples, view.answers[split], view.outcomes[split])
            for margin in [self.scores.margin(view.answers[split], mistake.number)]
        ]
        columns = ("set", "id", "text", "text_pair", "label", "answer", "probability", "margin")
        empty = [number for number, name in enumerate(columns) if all(row[number] is None for row in rows)]
        kept = [number for number in range(len(columns)) if number not in empty or columns[number] not in OPTIONAL]
        kept = kept if len(view.examples) > 1 else kept[1:]
        return [columns[index] for index in kept], ([row[index] for index in kept] for row in rows)

    def _list_mistakes(self, examples: TextsDevSet, answers: TextsAnswers, outcomes: Array) -> list[TextsMistake]:
        """Return the mistakes: the most confident, or the largest error, first."""
        classes, predictions = examples.classes, self.scores.predictions(answers)
        if self.task.is_regression:
            badness = np.abs(outcomes[:, PREDICTION] - outcomes[:, LABEL])
            shown, truth = (outcomes[:, column].round(6).tolist() for column in (PREDICTION, LABEL))
            probabilities: list[float | None] = [None] * len(truth)
        else:
            sure = answers.form.confidences(answers.logits)
            badness = np.where(self.scores.form.is_correct(outcomes) == 1, 0.0, sure)
            shown = [name_answer(classes, prediction) for prediction in predictions]
            labels = examples.labels.astype(int)
            truth = [name_answer(classes, np.flatnonzero(label) if np.ndim(label) else label) for label in labels]
            probabilities = sure.round(6).tolist()
        return [
            TextsMistake(
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
    counts = Counter((label, other) for label, other in outcomes.astype(int).tolist() if label != other)
    return [(names[label], name_answer(names, other), count) for (label, other), count in counts.most_common(WORST)]
