"""Conversion of texts to rows: one text or a pair per sequence, with the special tokens of the tokenizer's template.

The classes of the training examples are stored in features.parquet. Sequences that are too long are truncated at the
end of the longer text first, as by `longest_first` of Hugging Face's tokenizers.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from tasks.downstream.packed_rows import EncodedSequences, Encoder
from tasks.downstream.texts.schemas import join_texts, make_flags
from tasks.records.labels import add_labels, read_parquet_labels
from tasks.rows.row_files import IGNORED, RowLayout, from_arrow, get_columns
from tasks.vocabulary.encoding import encode, join_sequences, read_tokenizer_info

if TYPE_CHECKING:
    from tokenizers import Tokenizer

TEXTS = ("first", "second")
FEATURES_SCHEMA = pa.schema([pa.field(name, pa.int32(), nullable=False) for name in ("feature_id", "example_index")])


class TextsEncoder(Encoder):
    """Rows of texts, one sequence per example, without the labels of dev examples that are not in train."""

    chunk = 65536
    columns = (*TEXTS, "label")
    hashed = TEXTS

    @property
    def labels(self) -> tuple[str, ...]:
        return self.entry.params.labels or read_parquet_labels(self.entry.examples_file(self.entry.development[0]))[0]

    @property
    def features(self) -> pa.Schema | None:
        return None if self.entry.params.labels else add_labels(FEATURES_SCHEMA, self.labels)

    def hashed_texts(self, examples: pa.RecordBatch) -> list[str]:
        return join_texts(examples)

    def sequences(self, tokenizer: Tokenizer, examples: pa.RecordBatch, *, labelled: bool) -> EncodedSequences:
        second = examples.column("second")
        seconds = None if second.null_count == len(second) else second.to_pylist()
        made = make_sequences(tokenizer, examples.column("first").to_pylist(), seconds, self.entry.rows.row_length)
        if pa.types.is_list(examples.schema.field("label").type):
            labels = make_flags(examples.column("label"), len(self.labels))
        else:
            labels = from_arrow(examples.column("label"))
            if not self.entry.params.labels:
                labels = np.where(labels < len(self.labels), labels, IGNORED).astype(np.int32)
        return replace(made, labels={"label": labels}, features={"example_index": np.arange(len(examples))})

    def label_columns(self, layout: RowLayout, sequences: EncodedSequences) -> dict[str, np.ndarray]:
        labels = sequences.labels["label"]
        name = get_columns(self.entry.params.row_kind, vocab_size=0)[-1].name
        return {name: layout.per_sequence(labels, IGNORED).astype(labels.dtype)}


def keep_longest_first(first: np.ndarray, second: np.ndarray, room: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the number of tokens to keep of both sentences, int64[N] each, truncating the longer one first.

    keep_longest_first([9], [3], 8) == ([5], [3]); of two long sentences the second keeps the odd token, as in Hugging
    Face's tokenizers (src/utils/truncation.rs).
    """
    short = np.minimum(np.minimum(first, second), room // 2)
    long = np.minimum(np.maximum(first, second), room - short)
    return np.where(first > second, long, short), np.where(first > second, short, long)


def make_sequences(
    tokenizer: Tokenizer, firsts: list[str], seconds: list[str] | None, row_length: int
) -> EncodedSequences:
    """Return sequences of single sentences or pairs of at most `row_length` tokens, without labels."""
    info, first = read_tokenizer_info(tokenizer), encode(tokenizer, firsts)
    if seconds is None:
        kept = np.minimum(first.lengths, row_length - info.special_per_text)
        pieces = [(first.token_ids, first.starts, kept)]
        whole = first.lengths + info.special_per_text
    else:
        second = encode(tokenizer, seconds)
        kept, others = keep_longest_first(first.lengths, second.lengths, row_length - info.special_per_pair)
        pieces = [(first.token_ids, first.starts, kept), (second.token_ids, second.starts, others)]
        whole = first.lengths + second.lengths + info.special_per_pair
    joined, counts = join_sequences(info, *pieces), {"truncated to fit": int((whole > row_length).sum())}
    return EncodedSequences(joined.token_ids, joined.lengths, joined.second_starts, counts=counts, whole_lengths=whole)
