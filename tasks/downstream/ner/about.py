"""Named entities: what all stages know of them."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import pyarrow as pa

from tasks.plan.kinds import DownstreamTask
from tasks.records.labels import labels_of_rows

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


class Task(DownstreamTask):
    """Sentences, each word of which has a tag."""

    record: ClassVar[str] = "sentence"
    title: ClassVar[str] = "named entities"
    head: ClassVar[str] = "token_classification"
    row_kind: ClassVar[str] = "token_classification"

    def labels_of(self, rows: Path) -> tuple[str, ...]:
        """O, then B- and I- of every type of the training sentences."""
        return labels_of_rows(rows)
