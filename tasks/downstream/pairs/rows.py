"""Conversion of pairs to rows: the two or three texts of an example share a row, one sequence each."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from tasks.downstream.packed_rows import EncodedSequences, Encoder
from tasks.downstream.pairs.schemas import SCORE, TEXTS, present_texts
from tasks.rows.row_files import ABSENT, IGNORED, RowLayout
from tasks.vocabulary.encoding import encode, join_sequences, read_tokenizer_info

if TYPE_CHECKING:
    from tokenizers import Tokenizer


class PairsEncoder(Encoder):
    """Rows of pairs, each text cut to rows.row_length tokens; texts alone are packed."""

    chunk = 8192
    columns = (*TEXTS, SCORE)
    hashed = ("positive",)  # a passage is on one side

    def sequences(self, tokenizer: Tokenizer, examples: pa.RecordBatch, *, labelled: bool) -> EncodedSequences:
        columns = [examples.column(name).to_pylist() for name in present_texts(examples)]
        texts = [text for example in zip(*columns, strict=True) for text in example]
        info, encoded, unit = read_tokenizer_info(tokenizer), encode(tokenizer, texts), len(columns)
        kept = np.minimum(encoded.lengths, self.entry.rows.row_length - info.special_per_text)
        joined = join_sequences(info, (encoded.token_ids, encoded.starts, kept))
        whole = encoded.lengths + info.special_per_text
        scores = examples.column(SCORE).fill_null(IGNORED).to_numpy(zero_copy_only=False).astype(np.float32)
        return EncodedSequences(
            joined.token_ids,
            joined.lengths,
            joined.second_starts,
            labels={"roles": np.arange(len(texts)) % unit, "targets": np.repeat(scores, unit)},
            counts={"texts cut to fit": int((whole > self.entry.rows.row_length).sum())},
            unit=unit,
            whole_lengths=whole,
        )

    def label_columns(self, layout: RowLayout, sequences: EncodedSequences) -> dict[str, np.ndarray]:
        return {
            "roles": layout.per_sequence(sequences.labels["roles"], ABSENT).astype(np.int8),
            "targets": layout.per_sequence(sequences.labels["targets"], IGNORED).astype(np.float32),
        }
