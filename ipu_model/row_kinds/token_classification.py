"""Rows for token classification: one class per word, at its first token."""

from ipu_model.rows.format import FEATURE_IDS, IGNORED, TOKEN_LABELS, TOKENS, Column, teacher_column

COLUMNS = (FEATURE_IDS, Column("token_labels", "int16", TOKENS, IGNORED, "num_labels"))
TEACHER = (teacher_column("logits", TOKEN_LABELS),)
