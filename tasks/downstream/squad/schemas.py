"""Schemas of the examples and of the windows of question answering."""

import pyarrow as pa

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
