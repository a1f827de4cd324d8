"""Schema of the examples of an entry of pairs."""

import pyarrow as pa

TEXTS, SCORE = ("anchor", "positive", "negative"), "score"
SCHEMA = pa.schema(
    [pa.field("anchor", pa.string(), nullable=False)]
    + [pa.field(name, pa.string()) for name in ("positive", "negative")]
    + [pa.field(SCORE, pa.float32()), pa.field("id", pa.string(), nullable=False)]
)
"""Examples; `positive` is null for single texts, `negative` and `score` in files without them."""


def present_texts(examples: pa.RecordBatch) -> list[str]:
    """Return the columns of texts that examples have; files have a column in all rows or in none."""
    return [name for name in TEXTS if examples.column(name).null_count < len(examples)]
