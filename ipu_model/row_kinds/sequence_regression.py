"""Rows for sequence regression: one value per sequence."""

from ipu_model.rows.format import FEATURE_IDS, IGNORED, SEQUENCES, Column

COLUMNS = (FEATURE_IDS, Column("targets", "float32", SEQUENCES, IGNORED, float("inf")))
