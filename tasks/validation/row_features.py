"""Scalar features of packed rows, vectorised over a record batch. Legend: n rows of L tokens, S slots, P masks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tasks.rows.row_files import ABSENT, IGNORED

Columns = dict[str, np.ndarray]
"""Column name -> [n, width] array as stored."""
TOKEN_LABELS = "token_labels"


@dataclass(frozen=True)
class Sequences:
    """Where the sequences of some rows are, found from sequence_ids alone."""

    row: np.ndarray
    """Row of every sequence, in order of row and position. int64 [sequences]."""
    slot: np.ndarray
    """Its number within the row, from 0. int64 [sequences]."""
    start: np.ndarray
    """Its first token. int64 [sequences]."""
    length: np.ndarray
    """Its tokens, up to the next sequence or the last real token. int64 [sequences]."""
    per_row: np.ndarray
    """Sequences of every row. int64 [n]."""
    real: np.ndarray
    """True where a token is no padding. [n, L]."""
    start_of_token: np.ndarray
    """First token of the sequence that a token is in. int16 [n, L]."""

    def table(self, values: np.ndarray, slots: int, absent: int) -> np.ndarray:
        """One value per sequence as [n, slots]; `absent` where there is no sequence."""
        table = np.full((len(self.per_row), slots), absent, np.int64)
        fits = self.slot < slots
        table[self.row[fits], self.slot[fits]] = values[fits]
        return table


def find_sequences(sequence_ids: np.ndarray) -> tuple[Sequences, Columns]:
    """Sequences of rows, and what is wrong with their order.

    Args:
        sequence_ids: uint8 [n, L], 1.. in order, 0 = padding.

    Returns:
        The sequences; features [n] `sequences` (how many), `padding_at_end` (padding before the last real
        token), `sequences_in_order` (tokens that break 1, 1, 2, 2, 3 ...).
    """
    n, length = sequence_ids.shape
    real = sequence_ids > 0
    end_of_row = np.where(real.any(axis=1), length - np.argmax(real[:, ::-1], axis=1), 0)
    holes = end_of_row - real.sum(axis=1)
    columns = np.arange(length, dtype=np.int16)
    before = np.zeros_like(sequence_ids)
    before[:, 1:] = sequence_ids[:, :-1]
    if holes.any():  # a sequence goes on after padding inside it
        last_real = np.maximum.accumulate(np.where(real, columns, np.int16(0)), axis=1)
        before[:, 1:] = np.take_along_axis(sequence_ids, last_real.astype(np.int64), axis=1)[:, :-1]
    is_start = real & (sequence_ids != before)
    row, start = np.nonzero(is_start)
    per_row = np.bincount(row, minlength=n)
    slot = np.arange(len(row)) - (np.cumsum(per_row) - per_row)[row]
    end = end_of_row[row]
    same_row = row[1:] == row[:-1]
    end[:-1][same_row] = start[1:][same_row]
    start_of_token = np.maximum.accumulate(np.where(is_start, columns, np.int16(0)), axis=1)
    jumps = is_start & (sequence_ids.astype(np.int16) != before.astype(np.int16) + 1)
    features = {
        "sequences": per_row,
        "padding_at_end": holes,
        "sequences_in_order": jumps.sum(axis=1),
    }
    return Sequences(row, slot, start, end - start, per_row, real, start_of_token), features


def token_features(rows: Columns, found: Sequences, cls_id: int) -> Columns:
    """Features [n] of the columns that both kinds of rows have."""
    ids, types, positions = rows["input_ids"], rows["token_type_ids"], rows["position_ids"]
    padding = ~found.real
    expected = np.arange(ids.shape[1], dtype=np.int16) - found.start_of_token
    first = found.row, found.start
    slots = rows["cls_positions"].shape[1]
    wrong_slots = rows["cls_positions"] != found.table(found.start, slots, ABSENT)
    return {
        "token_ids": ids.max(axis=1),
        "token_types": ((types > 1) & found.real).sum(axis=1) + _per_row(found, types[first] != 0),
        "positions_restart": (found.real & (positions != expected)).sum(axis=1),
        "positions_in_model": positions.max(axis=1),
        "padding_is_zero": (padding & ((ids != 0) | (types != 0) | (positions != 0))).sum(axis=1),
        "first_token_is_cls": _per_row(found, ids[first] != cls_id),
        "cls_positions": wrong_slots.sum(axis=1) + np.maximum(found.per_row - slots, 0),
    }


def mask_features(rows: Columns, found: Sequences, vocab_size: int) -> Columns:
    """Features [n] of masked_positions and masked_labels."""
    positions, labels = rows["masked_positions"].astype(np.int64), rows["masked_labels"]
    length = found.real.shape[1]
    used = labels != IGNORED
    inside = (positions >= 0) & (positions < length)
    is_real = np.take_along_axis(found.real, np.clip(positions, 0, length - 1), axis=1)
    # Unused slots get values of their own, so that equal neighbours are positions masked twice.
    own = np.sort(np.where(used, positions, -1 - length - np.arange(positions.shape[1])), axis=1)
    return {
        "masked": used.sum(axis=1),
        "masked_in_row": (used & ~inside).sum(axis=1) + (~used & (positions != 0)).sum(axis=1),
        "masked_in_sequence": (used & inside & ~is_real).sum(axis=1),
        "masked_once": (own[:, 1:] == own[:, :-1]).sum(axis=1),
        "masked_labels": (used & ((labels < 0) | (labels >= vocab_size))).sum(axis=1),
    }


def next_sentence_features(rows: Columns, found: Sequences) -> Columns:
    """Features [n] of next_sentence_labels."""
    labels = rows["next_sentence_labels"]
    present = np.arange(labels.shape[1]) < found.per_row[:, None]
    right = np.where(present, (labels == 0) | (labels == 1), labels == IGNORED)
    return {
        "next_sentence_labels": (~right).sum(axis=1),
        "random_next": (present & (labels == 1)).sum(axis=1),
    }


def answer_features(rows: Columns, found: Sequences, features: Columns) -> Columns:
    """Features [n] of start_positions, end_positions and feature_ids.

    Args:
        features: `n_tokens` and `context_start` of features.parquet, int64 [number of windows].
    """
    start, end = (rows[name].astype(np.int64) for name in ("start_positions", "end_positions"))
    ids = rows["feature_ids"].astype(np.int64)
    slots, length, windows = ids.shape[1], found.real.shape[1], len(features["n_tokens"])
    present = np.arange(slots) < found.per_row[:, None]
    first = found.table(found.start, slots, 0)
    tokens = found.table(found.length, slots, 0)
    known = present & (ids >= 0) & (ids < windows)
    # Without windows there is nothing to take from; `known` is false everywhere then.
    taken = np.clip(ids, 0, max(0, windows - 1))
    window = {name: column[taken] if windows else np.zeros_like(ids) for name, column in features.items()}
    labelled = (start != IGNORED) | (end != IGNORED)
    inside = (start >= 0) & (start < length) & (end >= 0) & (end < length)
    complete = labelled & present & inside
    in_sequence = (start >= first) & (start < first + tokens) & (end >= first) & (end < first + tokens)
    # Hugging Face and Google point a window without the answer at its [CLS].
    at_cls = (start == first) & (end == first)
    in_context = (start >= first + window["context_start"]) & (end < first + window["n_tokens"] - 1)
    right = complete & in_sequence
    return {
        "answer_slots": ((labelled & ~present) | ((start == IGNORED) != (end == IGNORED))).sum(axis=1),
        "answer_in_row": (labelled & present & ~inside & (start != IGNORED) & (end != IGNORED)).sum(axis=1),
        "start_before_end": (complete & (start > end)).sum(axis=1),
        "answer_in_sequence": (complete & ~in_sequence).sum(axis=1),
        "answer_in_context": (right & known & ~at_cls & ~in_context).sum(axis=1),
        "feature_slots": ((present & ~known) | (~present & (ids != ABSENT))).sum(axis=1),
        "feature_lengths": (known & (tokens != window["n_tokens"])).sum(axis=1),
        "answered": (right & ~at_cls).sum(axis=1),
        "labelled": (labelled & present).sum(axis=1),
    }


def label_features(rows: Columns, found: Sequences, labels: int) -> Columns:
    """Features [n] of class_labels, targets or token_labels, and of feature_ids.

    Args:
        labels: classes; 1 for the values of a regression.
    """
    ids = rows["feature_ids"]
    present = np.arange(ids.shape[1]) < found.per_row[:, None]
    name = next(name for name in (TOKEN_LABELS, "targets", "class_labels") if name in rows)
    values = rows[name]
    if name == "targets":
        known = np.isfinite(values) & (values != IGNORED)
    else:
        known = (values >= 0) & (values < labels)
    if name == TOKEN_LABELS:  # a token may have a label
        places, right = found.real, (found.real & known) | (values == IGNORED)
    else:  # a sequence must have one
        places, right = present, np.where(present, known, values == IGNORED)
    return {
        "label_slots": (~right).sum(axis=1),
        "labelled": (places & known).sum(axis=1),
        "feature_slots": np.where(present, ids < 0, ids != ABSENT).sum(axis=1),
    }


def _per_row(found: Sequences, wrong: np.ndarray) -> np.ndarray:
    """Count of wrong sequences in every row. int64 [n]."""
    return np.bincount(found.row[wrong], minlength=len(found.per_row))
