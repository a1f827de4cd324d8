"""glue/<task>/evaluation/report.html: scores, how classes were confused, and the worst mistakes; one file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tasks.downstream.glue.answers import Examples, predictions_of
from tasks.downstream.glue.scores import Values
from tasks.downstream.glue.tasks import GlueTask
from tasks.pages.render import html_page

WORST = 25


def page(task: GlueTask, metrics: Mapping[str, Any], sets: Mapping[str, tuple[Examples, Values]]) -> str:
    """The evaluation as an HTML page.

    Args:
        metrics: the content of metrics/glue-<task>.json.
        sets: examples and logits [examples, classes] of each development set.
    """
    return html_page(
        __file__,
        "glue.html.j2",
        title=task.title,
        labels=task.labels,
        heading="Farthest off" if task.is_regression else "Wrong, and sure of it",
        metrics=metrics,
        sets=[_figures(task, split, examples, logits) for split, (examples, logits) in sets.items()],
    )


def _figures(task: GlueTask, split: str, examples: Examples, logits: Values) -> dict[str, Any]:
    predictions = predictions_of(task, logits)
    return {
        "split": split,
        "examples": len(examples.labels),
        "confusion": None if task.is_regression else _confusion(task, examples.labels, predictions),
        "mistakes": _mistakes(task, examples, logits, predictions),
    }


def _confusion(task: GlueTask, labels: Values, predictions: Values) -> list[tuple[str, list[int]]]:
    """Each class with how often each class was predicted for it."""
    from sklearn.metrics import confusion_matrix

    counts = confusion_matrix(labels, predictions, labels=range(len(task.labels)))
    return list(zip(task.labels, counts.tolist(), strict=True))


def _mistakes(task: GlueTask, examples: Examples, logits: Values, predictions: Values) -> list[dict[str, Any]]:
    """Wrong classes the model was surest of, or values that are farthest off."""
    if task.is_regression:
        badness = np.abs(predictions - examples.labels)
        shown = [f"{value:.2f}" for value in predictions]
        truth = [f"{value:.2f}" for value in examples.labels]
    else:
        odds = np.exp(logits - logits.max(axis=1, keepdims=True))
        sure = (odds / odds.sum(axis=1, keepdims=True)).max(axis=1)
        badness = np.where(predictions == examples.labels, 0.0, sure)
        shown = [f"{task.labels[int(p)]} ({s:.3f})" for p, s in zip(predictions, sure, strict=True)]
        truth = [task.labels[int(label)] for label in examples.labels]
    return [
        {"number": number, "label": truth[number], "predicted": shown[number], "text": examples.texts[number]}
        for number in np.argsort(-badness, kind="stable")[:WORST].tolist()
        if badness[number] > 0
    ]
