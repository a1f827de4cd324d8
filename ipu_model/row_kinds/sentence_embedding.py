"""Rows for sentence embeddings: the two or three texts of an example, which share a row."""

from ipu_model.rows.format import ABSENT, FEATURE_IDS, IGNORED, SEQUENCES, Column

COLUMNS = (
    FEATURE_IDS,
    Column("roles", "int8", SEQUENCES, ABSENT, 3),
    Column("targets", "float32", SEQUENCES, IGNORED, float("inf")),
)
"""roles: 0 = anchor, 1 = positive, 2 = negative. targets: similarity of anchor and
positive, at both; -100 = not stated."""
