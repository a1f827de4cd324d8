"""Rows for pre-training with masked language modelling alone."""

from ipu_model.rows.format import MASKED_TOKENS

COLUMNS = MASKED_TOKENS
