"""Rows for sequence regression: one value per sequence.

| column         | type    | meaning                               |
|----------------|---------|---------------------------------------|
| feature_ids[S] | int32   | number of the example, -1 = none      |
| targets[S]     | float32 | value of a regression, -100 = none    |
"""

from __future__ import annotations

from ipu_model.rows.format import FEATURE_IDS, IGNORED, SEQUENCES, Column

COLUMNS = (
    FEATURE_IDS,
    Column("targets", "float32", SEQUENCES, IGNORED, float("inf")),
)
