"""Rows for token classification: one class per word, at its first token."""

from ipu_model.rows.format import FEATURE_IDS, IGNORED, TOKENS, Column

COLUMNS = (FEATURE_IDS, Column("token_labels", "int16", TOKENS, IGNORED, "num_labels"))
