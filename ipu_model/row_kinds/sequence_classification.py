"""Rows for sequence classification: one class per sequence."""

from ipu_model.rows.format import FEATURE_IDS, IGNORED, SEQUENCE_LABELS, SEQUENCES, Column, teacher_column

COLUMNS = (FEATURE_IDS, Column("class_labels", "int32", SEQUENCES, IGNORED, "num_labels"))
TEACHER = (teacher_column("logits", SEQUENCE_LABELS),)
