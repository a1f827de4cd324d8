"""Extractive question answering: what all stages know of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from tasks.downstream.task import DownstreamTask


class Task(DownstreamTask):
    """Questions on texts, each answered by a span of its text."""

    record: ClassVar[str] = "question"
    plots: ClassVar[Mapping[str, Mapping[str, str]]] = {
        "question-words": {"x": "f1", "y": "question_word", "template": "bar_horizontal"},
        "f1": {"x": "questions", "y": "f1", "template": "bar_horizontal"},
        "calibration": {"x": "confidence", "y": "accuracy"},
        "slices": {"x": "f1", "y": "slice", "template": "bar_horizontal"},
    }

    @property
    def title(self) -> str:
        return "questions"

    @property
    def head(self) -> str:
        return "question_answering"

    @property
    def row_kind(self) -> str:
        return "question_answering"
