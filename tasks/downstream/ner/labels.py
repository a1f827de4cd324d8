"""The classes of words, which come from the training sentences: O, then B- and I- of every type in order."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from tasks.downstream.ner.tags import BEGIN, INSIDE, OUTSIDE

FEATURES_SCHEMA = pa.schema(
    [
        pa.field("feature_id", pa.int32(), nullable=False),
        pa.field("example_index", pa.int32(), nullable=False),
        pa.field("n_tokens", pa.int32(), nullable=False),
        pa.field("positions", pa.list_(pa.int32()), nullable=False),
    ]
)
"""One line per window: its sentence, its tokens, and the positions of the first pieces of the words that belong to it.
The words of a sentence's windows, one after the other, are the sentence's."""


def labels_of_types(types: Iterable[str]) -> tuple[str, ...]:
    """The classes of these types: labels_of_types(["b", "a"]) == ("O", "B-a", "I-a", "B-b", "I-b")."""
    return (OUTSIDE, *(f"{prefix}-{name}" for name in sorted(set(types)) for prefix in (BEGIN, INSIDE)))
