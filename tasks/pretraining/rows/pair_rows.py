"""One chunk of documents to packed, masked rows of sentence pairs: pure, whatever process runs it.

Legend: R rows, L tokens per row, S sequences per row at most, P masked positions per row at most, T
tokens of all sequences one after the other.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tasks.pretraining.rows.masking import MaskedTokens, count_maskable, mask_tokens, predictions_per_sequence
from tasks.pretraining.rows.pairs import Documents, Pairs, cut_long, make_pairs
from tasks.pretraining.rows.row_shards import Chunk, Counts
from tasks.pretraining.rows.sentences import split_sentences
from tasks.rows.packing import pack
from tasks.rows.row_files import IGNORED, Layout
from tasks.vocabulary.encoding import Vocabulary, encode, lay_out_sequences, load_tokenizer, read_vocabulary

if TYPE_CHECKING:
    from tokenizers import Tokenizer


@dataclass(frozen=True)
class RowSettings:
    """What decides the rows of one phase, besides the corpus."""

    tokenizer: Path
    """Folder of tokenizer.json."""
    seed: int
    phase: int
    """1 or 2: the phases draw different pairs and masks."""
    duplicates: int
    row_length: int
    max_sequences: int
    max_predictions: int
    masked_fraction: float
    short_sequence_probability: float


class ChunkRows(NamedTuple):
    """Rows made of one chunk."""

    shard: int
    part: str
    columns: list[dict[str, np.ndarray]]
    """One set of columns per duplicate; none when no document of the chunk has tokens."""
    counts: Counts


def make_chunk_rows(settings: Mapping[str, RowSettings], chunk: Chunk) -> ChunkRows:
    """The rows of a chunk, by the settings of its part: pure, whatever process runs it."""
    own = settings[chunk.part]
    tokenizer = load_tokenizer(own.tokenizer)
    vocabulary = read_vocabulary(tokenizer)
    documents = tokenize_documents(tokenizer, chunk.texts, own.row_length, vocabulary.dtype)
    replacements = np.setdiff1d(np.arange(vocabulary.size), vocabulary.special)
    columns = []
    for duplicate in range(own.duplicates if len(documents) else 0):
        rng = np.random.default_rng([own.seed, own.phase, duplicate, chunk.number])
        pairs = make_pairs(documents, own.row_length, own.short_sequence_probability, rng)
        columns.append(make_rows(documents.token_ids, pairs, own, vocabulary, replacements, rng))
    skipped = len(chunk.texts) - len(documents)
    counts = Counts(documents=len(chunk.texts), skipped=skipped, tokens=len(documents.token_ids))
    return ChunkRows(chunk.shard, chunk.part, columns, counts)


def tokenize_documents(tokenizer: Tokenizer, texts: Sequence[str], row_length: int, dtype: Any) -> Documents:
    """Sentences of every text as token ids; texts without a token are left out."""
    by_text = [split_sentences(text) for text in texts]
    encoded = encode(tokenizer, list(itertools.chain.from_iterable(by_text)))
    sentence_starts, document_starts = [0], [0]
    lengths = iter(encoded.lengths.tolist())
    for sentences in by_text:
        for length in itertools.islice(lengths, len(sentences)):
            for piece in cut_long(length, row_length):
                sentence_starts.append(sentence_starts[-1] + piece)
        if len(sentence_starts) - 1 > document_starts[-1]:
            document_starts.append(len(sentence_starts) - 1)
    return Documents(encoded.token_ids.astype(dtype), sentence_starts, document_starts)


def make_rows(
    text_ids: np.ndarray,
    pairs: Pairs,
    settings: RowSettings,
    vocabulary: Vocabulary,
    replacements: np.ndarray,
    rng: np.random.Generator,
) -> dict[str, np.ndarray]:
    """The columns of `pretrain` rows that hold all `pairs`, masked and packed."""
    token_ids, lengths = lay_out_sequences(
        vocabulary,
        (text_ids, pairs.first_start, pairs.first_length),
        (text_ids, pairs.second_start, pairs.second_length),
    )
    layout = Layout.of(pack(lengths, settings.row_length, settings.max_sequences), lengths, settings.row_length)
    maskable = count_maskable(token_ids, lengths, vocabulary.special)
    counts = predictions_per_sequence(
        lengths, maskable, layout.packs, settings.masked_fraction, settings.max_predictions
    )
    masked = mask_tokens(token_ids, lengths, counts, vocabulary.special, vocabulary.mask, replacements, rng)
    return lay_out_rows(layout, masked, pairs.first_length + 2, pairs.labels, settings.max_predictions)


def lay_out_rows(
    layout: Layout, masked: MaskedTokens, second_starts: np.ndarray, next_sentence_labels: np.ndarray, most: int
) -> dict[str, np.ndarray]:
    """The columns of `pretrain` rows; of masked tokens there are `most` (P) a row, ascending by position in the row.

    Args:
        second_starts: int[N], see `Layout.columns`.
        next_sentence_labels: int[N].
    """
    targets = layout.targets()[masked.places]
    order = np.argsort(targets)
    rows, positions = np.divmod(targets[order], layout.row_length)
    per_row = np.bincount(rows, minlength=len(layout.packs))
    slots = np.arange(len(rows)) - np.repeat(np.cumsum(per_row) - per_row, per_row)
    shape = (len(layout.packs), most)
    masked_positions, masked_labels = np.zeros(shape, np.int16), np.full(shape, IGNORED, np.int32)
    masked_positions[rows, slots] = positions
    masked_labels[rows, slots] = masked.labels[order]
    return {
        **layout.columns(masked.token_ids, second_starts),
        "masked_positions": masked_positions,
        "masked_labels": masked_labels,
        "next_sentence_labels": layout.per_sequence(next_sentence_labels, IGNORED).astype(np.int8),
    }
