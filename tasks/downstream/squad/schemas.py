"""Schemas of the examples and of the windows of question answering."""

import pyarrow as pa

from tasks.records.parquet import define_schema

ANSWER = pa.struct(define_schema(text=pa.string(), answer_start=pa.int32()))
ANSWERS = pa.list_(pa.field("item", ANSWER, nullable=False))
SCHEMA = define_schema(id=pa.string(), title=pa.string(), context=pa.string(), question=pa.string(), answers=ANSWERS)
"""answer_start is a character (Unicode code point) of the context, from 0."""
FEATURES_SCHEMA = define_schema(
    feature_id=pa.int32(),
    example_id=pa.string(),
    example_index=pa.int32(),
    n_tokens=pa.int32(),
    context_start=pa.int32(),
    offsets=pa.list_(pa.int32()),
)
"""One line per feature: id and line of its example, number of tokens, position of the first context token, and
the characters (start, end, start, end, ...) of its context tokens."""
