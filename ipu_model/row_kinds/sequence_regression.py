"""Rows for sequence regression: one value per sequence."""

from ipu_model.rows.format import FEATURE_IDS, IGNORED, SEQUENCE_LABELS, SEQUENCES, Column, teacher_column

COLUMNS = (FEATURE_IDS, Column("targets", "float32", SEQUENCES, IGNORED, float("inf")))
TEACHER = (teacher_column("logits", SEQUENCE_LABELS),)
