"""Extractive question answering: what all stages know of it."""

from __future__ import annotations

from typing import ClassVar

from tasks.downstream.task import DownstreamTask


class Task(DownstreamTask):
    """Questions on texts, each answered by a span of its text."""

    record: ClassVar[str] = "question"

    @property
    def title(self) -> str:
        return "questions"

    @property
    def head(self) -> str:
        return "question_answering"

    @property
    def row_kind(self) -> str:
        return "question_answering"
