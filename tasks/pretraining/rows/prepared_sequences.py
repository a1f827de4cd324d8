"""Prepared sequences, which were tokenized, paired and masked elsewhere: their validation and unpadding.

Legend: N sequences, W tokens of the longest one.
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
    """A batch of sequences as read from their source, padded with 0 to one width."""

    source: str
    """File or data set, for messages."""
    first: int
    """Number of the first sequence of the batch in its source."""
    input_ids: np.ndarray
    """int64[N, W], masked."""
    attention_mask: np.ndarray
    """int64[N, W]: 1 for tokens, 0 for padding."""
    token_type_ids: np.ndarray
    """int64[N, W]."""
    labels: np.ndarray
    """int64[N, W]: the original token, IGNORED where nothing is predicted."""
    next_sentence_labels: np.ndarray
    """int64[N]: 0 = real next, 1 = random."""


class RowLimits(NamedTuple):
    """Limits of the rows that the sequences must fit into."""

    vocabulary: TokenizerInfo
    row_length: int
    max_predictions: int
    section: str
    """Section of params.yaml, for messages."""


def validate_and_unpad(found: PreparedSequences, limits: RowLimits) -> pa.Table:
    """Validate sequences and return them without padding.

    Returns:
        One table row per sequence: `token_ids`; `second_start`, the position of the first token of the second segment,
        or the length if there is none; `places`, the ascending positions of the tokens to predict; `labels`, their
        original tokens; and `next_sentence_label`.

    Raises:
        InputError: invalid sequences; the message lists every problem with its first sequence and a count.
    """
    real = found.attention_mask == 1
    lengths = real.sum(axis=1)
    _raise_problems(found, _layout_problems(found, real, lengths, limits))
    _raise_problems(found, _content_problems(found, real, lengths, limits))
    masked = found.labels != IGNORED
    columns = {
        "token_ids": make_lists(lengths, found.input_ids[real].astype(limits.vocabulary.dtype)),
        "second_start": (real & (found.token_type_ids == 0)).sum(axis=1),
        "places": make_lists(masked.sum(axis=1), np.nonzero(masked)[1]),
        "labels": make_lists(masked.sum(axis=1), found.labels[masked]),
        "next_sentence_label": found.next_sentence_labels,
    }
    return pa.table(columns)


def make_lists(lengths: np.ndarray, values: np.ndarray) -> pa.ListArray:
    """Return lists of these lengths with concatenated values."""
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(values))


def get_masked_tokens(sequences: pa.Table) -> tuple[MaskedTokens, np.ndarray, np.ndarray]:
    """Return the concatenated tokens of all sequences, and int[N] the tokens and the masked tokens of each."""
    names = ("token_ids", "places", "labels")
    lists = [sequences[name].combine_chunks() for name in names]
    tokens, places, labels = (one.flatten().to_numpy() for one in lists)
    lengths, counts = (one.value_lengths().to_numpy() for one in lists[:2])
    return MaskedTokens(tokens, np.repeat(np.cumsum(lengths) - lengths, counts) + places, labels), lengths, counts


def restore_tokens(sequences: pa.Table) -> list[bytes]:
    """Return every sequence as it was before masking; different maskings of a text give equal results."""
    masked, lengths, _ = get_masked_tokens(sequences)
    restored = masked.token_ids.copy()
    restored[masked.places] = masked.labels
    return [part.tobytes() for part in np.split(restored, np.cumsum(lengths)[:-1])]


Problems = list[tuple[np.ndarray, str]]
"""(bool[N] sequences with the problem, description) of each problem."""


def _layout_problems(found: PreparedSequences, real: np.ndarray, lengths: np.ndarray, limits: RowLimits) -> Problems:
    """Return problems that prevent a check of the tokens."""
    mask = found.attention_mask
    return [
        (np.any((mask != 0) & (mask != 1), axis=1), "has an attention_mask with values other than 0 and 1"),
        (np.any(real[:, 1:] & ~real[:, :-1], axis=1), "has tokens after padding; padding must be at the end"),
        (lengths < SHORTEST, f"has fewer than {SHORTEST} tokens"),
        (
            lengths > limits.row_length,
            f"has more tokens than a row: raise {limits.section}.row_length={limits.row_length} to "
            f"{int(lengths.max(initial=0))}, or use data prepared for this length",
        ),
    ]


def _content_problems(found: PreparedSequences, real: np.ndarray, lengths: np.ndarray, limits: RowLimits) -> Problems:
    vocabulary = limits.vocabulary
    ids, types, labels = found.input_ids, found.token_type_ids, found.labels
    masked = labels != IGNORED
    size = vocabulary.size
    other = "set tokenizer.path or tokenizer.repository to the vocabulary of the data"
    return [
        (
            np.any(real & ((ids < 0) | (ids >= size)), axis=1),
            f"has the token id {int(ids[real].max(initial=0))} or a negative one, but the vocabulary has {size:,} "
            f"entries: {other}",
        ),
        (ids[:, 0] != vocabulary.cls, f"does not begin with [CLS], id {vocabulary.cls}: {other}"),
        (
            ids[np.arange(len(ids)), lengths - 1] != vocabulary.sep,
            f"does not end with [SEP], id {vocabulary.sep}: {other}",
        ),
        (np.any(~real & (ids != vocabulary.pad), axis=1), f"has token ids other than {vocabulary.pad} in its padding"),
        (
            np.any(real & (types != 0) & (types != 1), axis=1)
            | np.any(real[:, 1:] & (types[:, 1:] < types[:, :-1]), axis=1)
            | (types[:, 0] != 0),
            "has token_type_ids that are not 0, 0, ..., 1, 1",
        ),
        (
            np.any(masked & ((labels < 0) | (labels >= size)), axis=1),
            f"has a label outside the vocabulary of {size:,} entries: {other}",
        ),
        (np.any(masked & ~real, axis=1), "has a label on padding"),
        (
            masked.sum(axis=1) > limits.max_predictions,
            f"has more masked tokens than {limits.section}.max_predictions_per_row={limits.max_predictions}: raise it "
            f"to {int(masked.sum(axis=1).max(initial=0))}",
        ),
        (
            (found.next_sentence_labels != 0) & (found.next_sentence_labels != 1),
            "has a next_sentence_label other than 0 and 1",
        ),
    ]


def _raise_problems(found: PreparedSequences, problems: Problems) -> None:
    lines = []
    for wrong, what in problems:
        if wrong.any():
            more = f" (and {int(wrong.sum()) - 1} more of {len(wrong)})" if wrong.sum() > 1 else ""
            lines.append(f"\n  sequence {found.first + int(np.argmax(wrong))}{more} {what}")
    if lines:
        raise InputError(f"{found.source} cannot be used as pre-training rows:{''.join(lines)}")
