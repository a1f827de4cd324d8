"""Rows for sequence classification: one class per sequence."""

from ipu_model.rows.format import FEATURE_IDS, IGNORED, SEQUENCES, Column

COLUMNS = (FEATURE_IDS, Column("class_labels", "int32", SEQUENCES, IGNORED, "num_labels"))
