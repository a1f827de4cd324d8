"""Rows for pre-training with masked language modelling alone.

| column              | type  | meaning                                         |
|---------------------|-------|-------------------------------------------------|
| masked_positions[P] | int16 | absolute position in the row, 0 in unused slots |
| masked_labels[P]    | int32 | token id to predict, -100 = unused slot         |
"""

from __future__ import annotations

from ipu_model.rows.format import MASKED_TOKENS

COLUMNS = MASKED_TOKENS
