"""Extractive question answering: what all stages know of it."""

from __future__ import annotations

from typing import ClassVar

import pyarrow as pa

from tasks.plan.kinds import DownstreamTask
from tasks.stage.artifacts import HELD_OUT

ANSWER = pa.struct([pa.field("text", pa.string(), False), pa.field("answer_start", pa.int32(), False)])
SCHEMA = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("title", pa.string(), nullable=False),
        pa.field("context", pa.string(), nullable=False),
        pa.field("question", pa.string(), nullable=False),
        pa.field("answers", pa.list_(pa.field("item", ANSWER, nullable=False)), nullable=False),
    ]
)
"""answer_start counts characters (Unicode code points) of the context, from 0."""
FEATURES_SCHEMA = pa.schema(
    [
        pa.field("feature_id", pa.int32(), nullable=False),
        pa.field("example_id", pa.string(), nullable=False),
        pa.field("example_index", pa.int32(), nullable=False),
        pa.field("n_tokens", pa.int32(), nullable=False),
        pa.field("context_start", pa.int32(), nullable=False),
        pa.field("offsets", pa.list_(pa.int32()), nullable=False),
    ]
)
"""One line per feature: its example's id and line, its tokens, where the context begins among them, and
the characters (start, end, start, end, ...) of its context tokens."""


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
