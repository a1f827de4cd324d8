"""Rows for multi-label classification: any number of labels per sequence.

| column           | type  | meaning                                                                    |
|------------------|-------|----------------------------------------------------------------------------|
| feature_ids[S]   | int32 | number of the example, -1 = none                                           |
| label_flags[S*C] | int8  | of each sequence and label: 1 = has it, 0 = has it not, -100 = no sequence |
"""

from __future__ import annotations

from ipu_model.rows.format import FEATURE_IDS, IGNORED, SEQUENCE_LABELS, Column

COLUMNS = (
    FEATURE_IDS,
    Column("label_flags", "int8", SEQUENCE_LABELS, IGNORED, 2),
)
