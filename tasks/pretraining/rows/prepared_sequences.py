"""Prepared sequences, which were tokenized, paired and masked elsewhere: their validation and unpadding.

Legend: N sequences, T tokens of all of them, padding included.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from ipu_model.rows.masking import MaskedTokens
from tasks.rows.row_files import IGNORED
from tasks.stage.errors import InputError
from tasks.vocabulary.encoding import TokenizerInfo

SHORTEST = 3
"""[CLS], a token and [SEP]."""


@dataclass(frozen=True)
class PreparedSequences:
    """A batch of sequences as read from their source, concatenated."""

    source: str
    """File or data set, for messages."""
    first: int
    """Number of the first sequence of the batch in its source."""
    lengths: np.ndarray
    """int64[N], with padding."""
    input_ids: np.ndarray
    """int64[T], masked."""
    attention_mask: np.ndarray
    """int64[T]: 1 for tokens, 0 for padding."""
    token_type_ids: np.ndarray
    """int64[T]."""
    labels: np.ndarray
    """int64[T]: the original token, IGNORED where nothing is predicted."""
    next_sentence_labels: np.ndarray
    """int64[N]: 0 = real next, 1 = random."""


class RowLimits(NamedTuple):
    """Limits of the rows that the sequences must fit into."""

    vocabulary: TokenizerInfo
    row_length: int
    max_predictions: int
    section: str
    """Section of params.yaml, for messages."""


def validate_and_unpad(prepared: PreparedSequences, limits: RowLimits) -> pa.Table:
    """Validate sequences and return them without padding.

    The table has one row per sequence: `token_ids`; `second_start`, the position of the first token of the second
    segment, or the length if there is none; `places`, the ascending positions of the tokens to predict; `labels`, their
    original tokens; and `next_sentence_label`.

    Raises:
        InputError: invalid sequences; the message lists every problem with its first sequence and a count.
    """
    tokens = _Tokens(prepared)
    _raise_problems(prepared, _find_problems(prepared, tokens, limits))
    masked = prepared.labels != IGNORED
    masked_counts = tokens.count(masked)
    columns = {
        "token_ids": make_lists(tokens.real_counts, prepared.input_ids[tokens.real].astype(limits.vocabulary.dtype)),
        "second_start": tokens.count(tokens.real & (prepared.token_type_ids == 0)),
        "places": make_lists(masked_counts, tokens.positions[masked]),
        "labels": make_lists(masked_counts, prepared.labels[masked]),
        "next_sentence_label": prepared.next_sentence_labels,
    }
    return pa.table(columns)


class _Tokens:
    """Places of the tokens in their sequences."""

    def __init__(self, prepared: PreparedSequences) -> None:
        self.owners = np.repeat(np.arange(len(prepared.lengths)), prepared.lengths)
        self.positions = np.arange(len(self.owners)) - (np.cumsum(prepared.lengths) - prepared.lengths)[self.owners]
        self.real = prepared.attention_mask == 1
        self._sequences = len(prepared.lengths)
        self.real_counts = self.count(self.real)

    def count(self, chosen: np.ndarray) -> np.ndarray:
        """Return how many tokens of each sequence are chosen, int64[N]."""
        return np.bincount(self.owners[chosen], minlength=self._sequences)


def _find_problems(prepared: PreparedSequences, tokens: _Tokens, limits: RowLimits) -> list[tuple[np.ndarray, str]]:
    """Return possible problems with their descriptions, each [N]: true or above 0 where a sequence has the problem."""
    vocabulary, section, size = limits.vocabulary, limits.section, limits.vocabulary.size
    ids, types, labels, real, count = (
        prepared.input_ids,
        prepared.token_type_ids,
        prepared.labels,
        tokens.real,
        tokens.count,
    )
    masked, last = labels != IGNORED, tokens.real_counts[tokens.owners] - 1
    masked_counts, is_first = count(masked), tokens.positions == 0
    wrong_types = ((types != 0) & (types != 1)) | np.where(is_first, types != 0, types < np.roll(types, 1))
    other = "set tokenizer.path or tokenizer.repository to the vocabulary of the data"
    return [
        (count((prepared.attention_mask != 0) & ~real), "has an attention_mask with values other than 0 and 1"),
        (count(real & (tokens.positions > last)), "has tokens after padding; padding must be at the end"),
        (tokens.real_counts < SHORTEST, f"has fewer than {SHORTEST} tokens"),
        (
            tokens.real_counts > limits.row_length,
            f"has more tokens than a row: raise {section}.row_length={limits.row_length} to "
            f"{int(tokens.real_counts.max(initial=0))}, or use data prepared for this length",
        ),
        (
            count(real & ((ids < 0) | (ids >= size))),
            f"has the token id {int(ids[real].max(initial=0))} or a negative one, but the vocabulary has {size:,} "
            f"entries: {other}",
        ),
        (count(is_first & (ids != vocabulary.cls)), f"does not begin with [CLS], id {vocabulary.cls}: {other}"),
        (
            count((tokens.positions == last) & (ids != vocabulary.sep)),
            f"does not end with [SEP], id {vocabulary.sep}: {other}",
        ),
        (count(~real & (ids != vocabulary.pad)), f"has token ids other than {vocabulary.pad} in its padding"),
        (count(real & wrong_types), "has token_type_ids that are not 0, 0, ..., 1, 1"),
        (
            count(masked & ((labels < 0) | (labels >= size))),
            f"has a label outside the vocabulary of {size:,} entries: {other}",
        ),
        (count(masked & ~real), "has a label on padding"),
        (
            masked_counts > limits.max_predictions,
            f"has more masked tokens than {section}.max_predictions_per_row={limits.max_predictions}: raise it "
            f"to {int(masked_counts.max(initial=0))}",
        ),
        (~np.isin(prepared.next_sentence_labels, (0, 1)), "has a next_sentence_label other than 0 and 1"),
    ]


def _raise_problems(prepared: PreparedSequences, problems: list[tuple[np.ndarray, str]]) -> None:
    lines = []
    for wrong, what in problems:
        if count := np.count_nonzero(wrong):
            more = f" (and {count - 1} more of {len(wrong)})" if count > 1 else ""
            lines.append(f"\n  sequence {prepared.first + int(np.argmax(wrong > 0))}{more} {what}")
    if lines:
        raise InputError(f"{prepared.source} cannot be used as pre-training rows:{''.join(lines)}")


def make_lists(lengths: np.ndarray, values: np.ndarray) -> pa.ListArray:
    """Return lists of these lengths with concatenated values."""
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(values))


def get_masked_tokens(sequences: pa.Table) -> tuple[MaskedTokens, np.ndarray, np.ndarray]:
    """Return the concatenated tokens of all sequences, and int[N] the tokens and the masked tokens of each."""
    names = ("token_ids", "places", "labels")
    lists = [sequences[name].combine_chunks() for name in names]
    tokens, places, labels = (column.flatten().to_numpy() for column in lists)
    lengths, counts = (column.value_lengths().to_numpy() for column in lists[:2])
    return MaskedTokens(tokens, np.repeat(np.cumsum(lengths) - lengths, counts) + places, labels), lengths, counts


def restore_tokens(sequences: pa.Table) -> list[bytes]:
    """Return every sequence as it was before masking; different maskings of a text give equal results."""
    masked, lengths, _ = get_masked_tokens(sequences)
    restored = masked.token_ids.copy()
    restored[masked.places] = masked.labels
    return [part.tobytes() for part in np.split(restored, np.cumsum(lengths)[:-1])]
