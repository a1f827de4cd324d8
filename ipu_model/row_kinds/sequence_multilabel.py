"""Rows for multi-label classification: any number of labels per sequence."""

from ipu_model.rows.format import FEATURE_IDS, IGNORED, SEQUENCE_LABELS, Column, teacher_column

COLUMNS = (FEATURE_IDS, Column("label_flags", "int8", SEQUENCE_LABELS, IGNORED, 2))
"""label_flags: of each sequence and label, 1 = has it, 0 = has it not."""
TEACHER = (teacher_column("logits", SEQUENCE_LABELS),)
