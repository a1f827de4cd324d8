"""glue/<task>/evaluation/report.html: scores, how classes were confused, and the worst mistakes; one file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tasks.downstream.evaluate import Evaluation, PageTask, Sliced
from tasks.downstream.glue import scores
from tasks.downstream.glue.scores import PREDICTION, Examples, sureness
from tasks.downstream.glue.tasks import GlueTask
from tasks.downstream.scoring.metrics import Array
from tasks.downstream.scoring.slices import by_name, sized
from tasks.pages.render import html_page

WORST = 25


_WORDS = ((5, "up to 5 words"), (10, "6-10 words"), (20, "11-20 words"), (40, "21-40 words"))


class Task(scores.Task, PageTask[Examples, Array, Array]):
    """Scores by class and length of the texts; how classes were confused; the worst mistakes."""

    def slices(self, split: str, examples: Examples, logits: Array, outcomes: Array) -> Sequence[Sliced]:
        names, order = sized([len(text.split()) for text in examples.texts], _WORDS, "over 40 words")
        prefix = "" if len(self.development) == 1 else f"{split}, "
        found = by_name(f"{prefix}length", names, order, self.metrics, split, outcomes)
        if not self.glue.is_regression:
            classes = [self.labels[int(label)] for label in examples.labels]
            found += by_name(f"{prefix}class", classes, self.labels, self.metrics, split, outcomes)
        return found

    def page(self, found: Evaluation[Examples, Array]) -> str:
        return html_page(
            __file__,
            "glue.html.j2",
            title=self.title,
            labels=self.labels,
            heading="Farthest off" if self.glue.is_regression else "Wrong, and sure of it",
            metrics=found.metrics,
            slices=found.slices,
            sliced=[name for name in self.metrics.titles if any(name in part.record() for part in found.slices)],
            sets=[
                _figures(self.glue, split, examples, found.answers[split], found.outcomes[split][:, PREDICTION])
                for split, examples in found.examples.items()
            ],
        )


def _figures(task: GlueTask, split: str, examples: Examples, logits: Array, predictions: Array) -> dict[str, Any]:
    return {
        "split": split,
        "examples": len(examples.labels),
        "confusion": None if task.is_regression else _confusion(task, examples.labels, predictions),
        "mistakes": _mistakes(task, examples, logits, predictions),
    }


def _confusion(task: GlueTask, labels: Array, predictions: Array) -> list[tuple[str, list[int]]]:
    """Each class with how often each class was predicted for it."""
    from sklearn.metrics import confusion_matrix

    counts = confusion_matrix(labels, predictions, labels=range(len(task.labels)))
    return list(zip(task.labels, counts.tolist(), strict=True))


def _mistakes(task: GlueTask, examples: Examples, logits: Array, predictions: Array) -> list[dict[str, Any]]:
    """Wrong classes the model was surest of, or values that are farthest off."""
    if task.is_regression:
        badness = np.abs(predictions - examples.labels)
        shown = [f"{value:.2f}" for value in predictions]
        truth = [f"{value:.2f}" for value in examples.labels]
    else:
        sure = sureness(logits)
        badness = np.where(predictions == examples.labels, 0.0, sure)
        shown = [f"{task.labels[int(p)]} ({s:.3f})" for p, s in zip(predictions, sure, strict=True)]
        truth = [task.labels[int(label)] for label in examples.labels]
    return [
        {"number": number, "label": truth[number], "predicted": shown[number], "text": examples.texts[number]}
        for number in np.argsort(-badness, kind="stable")[:WORST].tolist()
        if badness[number] > 0
    ]
