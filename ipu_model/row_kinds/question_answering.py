"""Rows for question answering: windows of question and context, with the position of the answer.

| column             | type  | meaning                                     |
|--------------------|-------|---------------------------------------------|
| start_positions[S] | int16 | absolute in the row, -100 = none            |
| end_positions[S]   | int16 | absolute in the row, inclusive, -100 = none |
| feature_ids[S]     | int32 | row of features.parquet, -1 = none          |
"""

from __future__ import annotations

from ipu_model.rows.format import FEATURE_IDS, IGNORED, SEQUENCES, Column

COLUMNS = (
    Column("start_positions", "int16", SEQUENCES, IGNORED, "row_length"),
    Column("end_positions", "int16", SEQUENCES, IGNORED, "row_length"),
    FEATURE_IDS,
)
