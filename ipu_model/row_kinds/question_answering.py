"""Rows for question answering: windows of question and context, with the position of the answer."""

from ipu_model.rows.format import FEATURE_IDS, IGNORED, SEQUENCES, TOKENS, Column, teacher_column

COLUMNS = (
    Column("start_positions", "int16", SEQUENCES, IGNORED, "row_length"),
    Column("end_positions", "int16", SEQUENCES, IGNORED, "row_length"),
    FEATURE_IDS,
)
"""Positions are absolute in the row, the end inclusive."""
TEACHER = (teacher_column("start_logits", TOKENS), teacher_column("end_logits", TOKENS))
