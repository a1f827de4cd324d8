"""Named entity recognition: schemas and task properties shared by all stages."""

from pathlib import Path
from typing import ClassVar

import pyarrow as pa

from tasks.downstream.ner.params import NerDataParams
from tasks.plan.kinds import DownstreamTask
from tasks.records.labels import read_row_labels

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


class NerSpec(DownstreamTask):
    """Sentences with a tag for each word."""

    record: ClassVar[str] = "sentence"
    title: ClassVar[str] = "named entities"
    head: ClassVar[str] = "token_classification"
    row_kind: ClassVar[str] = "token_classification"

    @property
    def data_params(self) -> NerDataParams:
        """Section `data` of the entry."""
        assert isinstance(self.entry.params.data, NerDataParams)
        return self.entry.params.data

    def labels_of(self, rows: Path) -> tuple[str, ...]:
        """Return O, then B- and I- of every type in the training sentences."""
        return read_row_labels(rows)
