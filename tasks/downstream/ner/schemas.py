"""Schemas of the examples and of the windows of named entity recognition."""

import pyarrow as pa

SCHEMA = pa.schema(
    [
        pa.field("document", pa.int32(), nullable=False),
        pa.field("tokens", pa.list_(pa.field("item", pa.string(), nullable=False)), nullable=False),
        pa.field("tags", pa.list_(pa.field("item", pa.string(), nullable=False)), nullable=False),
        pa.field("id", pa.string(), nullable=False),
    ]
)
"""tags are IOB2; documents are numbered from 0."""
FEATURES_SCHEMA = pa.schema(
    [
        pa.field("feature_id", pa.int32(), nullable=False),
        pa.field("example_index", pa.int32(), nullable=False),
        pa.field("n_tokens", pa.int32(), nullable=False),
        pa.field("positions", pa.list_(pa.int32()), nullable=False),
    ]
)
"""One line per window: its sentence, number of tokens, and the positions of the first tokens of its own words. The own
words of a sentence's windows are, in order, the words of the sentence."""
