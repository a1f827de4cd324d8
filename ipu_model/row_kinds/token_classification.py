"""Rows for token classification: one class per token, or none.

| column          | type  | meaning                                                         |
|-----------------|-------|-----------------------------------------------------------------|
| feature_ids[S]  | int32 | number of the example, -1 = none                                |
| token_labels[L] | int16 | class, 0..num_labels - 1; -100 = none: padding, special tokens, |
|                 |       | and all pieces of a word but the first                          |
"""

from __future__ import annotations

from ipu_model.rows.format import FEATURE_IDS, IGNORED, TOKENS, Column

COLUMNS = (
    FEATURE_IDS,
    Column("token_labels", "int16", TOKENS, IGNORED, "num_labels"),
)
