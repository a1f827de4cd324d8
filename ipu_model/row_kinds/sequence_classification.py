"""Rows for sequence classification: one class per sequence.

| column          | type  | meaning                                  |
|-----------------|-------|------------------------------------------|
| feature_ids[S]  | int32 | number of the example, -1 = none         |
| class_labels[S] | int32 | class, 0..num_labels - 1, -100 = none    |
"""

from __future__ import annotations

from ipu_model.rows.format import FEATURE_IDS, IGNORED, SEQUENCES, Column

COLUMNS = (
    FEATURE_IDS,
    Column("class_labels", "int32", SEQUENCES, IGNORED, "num_labels"),
)
