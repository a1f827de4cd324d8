"""Extractive question answering: what all stages know of it."""

from __future__ import annotations

from typing import ClassVar

from tasks.downstream.task import DownstreamTask
from tasks.project.artifacts import HELD_OUT


class Task(DownstreamTask):
    """Questions on texts, each answered by a span of its text."""

    record: ClassVar[str] = "question"
    title: ClassVar[str] = "questions"
    head: ClassVar[str] = "question_answering"
    row_kind: ClassVar[str] = "question_answering"

    @property
    def nullable(self) -> bool:
        """Whether a text may hold no answer, as in SQuAD 2.0."""
        return self.entry.params.options.get("unanswerable") == "use"

    @property
    def predicted(self) -> tuple[str, ...]:
        """The threshold for giving no answer is chosen on what was held out."""
        held_out = self.nullable and self.entry.rows.held_out_fraction > 0
        return (*self.development, *([HELD_OUT] if held_out else []))
