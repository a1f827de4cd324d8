"""Rows for pre-training: masked language modelling and next sentence prediction.

| column                  | type  | meaning                                          |
|-------------------------|-------|--------------------------------------------------|
| masked_positions[P]     | int16 | absolute position in the row, 0 in unused slots  |
| masked_labels[P]        | int32 | token id to predict, -100 = unused slot          |
| next_sentence_labels[S] | int8  | 0 = actual next, 1 = random, -100 = none         |
"""

from __future__ import annotations

from ipu_model.rows.format import IGNORED, MASKED_TOKENS, SEQUENCES, Column

COLUMNS = (*MASKED_TOKENS, Column("next_sentence_labels", "int8", SEQUENCES, IGNORED, 2))
