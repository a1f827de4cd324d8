"""Schemas of the examples and of the windows of named entity recognition."""

import pyarrow as pa

from tasks.records.parquet import define_schema

TEXTS = pa.list_(pa.field("item", pa.string(), nullable=False))
SCHEMA = define_schema(document=pa.int32(), tokens=TEXTS, tags=TEXTS, id=pa.string())
"""tags are IOB2; documents are numbered from 0."""
FEATURES_SCHEMA = define_schema(
    feature_id=pa.int32(), example_index=pa.int32(), n_tokens=pa.int32(), positions=pa.list_(pa.int32())
)
"""One line per window: its sentence, number of tokens, and the positions of the first tokens of its own words. The own
words of a sentence's windows are, in order, the words of the sentence."""
