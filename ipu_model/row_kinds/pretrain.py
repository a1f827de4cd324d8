"""Rows for pre-training: masked language modelling and next sentence prediction."""

from ipu_model.rows.format import IGNORED, MASKED_TOKENS, SEQUENCES, Column

COLUMNS = (*MASKED_TOKENS, Column("next_sentence_labels", "int8", SEQUENCES, IGNORED, 2))
"""next_sentence_labels: 0 = actual next, 1 = random."""
