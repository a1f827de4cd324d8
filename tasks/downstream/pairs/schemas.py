"""Parameters of an entry of pairs, and the schema of its examples."""

import pyarrow as pa

from tasks.downstream.pairs.params import PairsParams
from tasks.params.entries import Entry

TEXTS, SCORE = ("anchor", "positive", "negative"), "score"
SCHEMA = pa.schema(
    [pa.field("anchor", pa.string(), nullable=False)]
    + [pa.field(name, pa.string()) for name in ("positive", "negative")]
    + [pa.field(SCORE, pa.float32()), pa.field("id", pa.string(), nullable=False)]
)
"""Examples; `positive` is null for single texts, `negative` and `score` in files without them."""


def params_of(entry: Entry) -> PairsParams:
    """Return the parameters of an entry of pairs."""
    assert isinstance(entry.params, PairsParams)
    return entry.params


def present_texts(examples: pa.RecordBatch) -> list[str]:
    """Return the columns of texts that examples have; files have a column in all rows or in none."""
    return [name for name in TEXTS if examples.column(name).null_count < len(examples)]
