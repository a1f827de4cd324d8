"""Extractive question answering: schemas and task properties shared by all stages."""

from typing import ClassVar

import pyarrow as pa

from tasks.downstream.squad.params import SquadDataParams, SquadEvaluateParams
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
"""answer_start is a character (Unicode code point) of the context, from 0."""
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
"""One line per feature: id and line of its example, number of tokens, position of the first context token, and
the characters (start, end, start, end, ...) of its context tokens."""


class SquadSpec(DownstreamTask):
    """Questions answered by a span of a context."""

    record: ClassVar[str] = "question"
    title: ClassVar[str] = "question answering"
    head: ClassVar[str] = "question_answering"
    row_kind: ClassVar[str] = "question_answering"

    @property
    def data_params(self) -> SquadDataParams:
        """Section `data` of the entry."""
        assert isinstance(self.entry.params.data, SquadDataParams)
        return self.entry.params.data

    @property
    def evaluate_params(self) -> SquadEvaluateParams:
        """Section `evaluate` of the entry."""
        assert isinstance(self.entry.params.evaluate, SquadEvaluateParams)
        return self.entry.params.evaluate

    @property
    def nullable(self) -> bool:
        """True if a context may have no answer, as in SQuAD 2.0."""
        return self.entry.params.options.get("unanswerable") == "use"

    @property
    def predicted(self) -> tuple[str, ...]:
        """Splits to predict; includes held-out questions, which select the no-answer threshold."""
        held_out = self.nullable and self.entry.rows.held_out_fraction > 0
        return (*self.development, *([HELD_OUT] if held_out else []))
