"""Writer of packed rows in the format of `ipu_model.rows.format`.

Legend: N sequences, T tokens of all sequences, concatenated, R rows, L tokens per row, S sequences per row at most, P
masked positions per row at most.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ipu_model.core.files import read_json, write_json
from ipu_model.rows.format import ABSENT, MANIFEST, MAX_ROW_LENGTH, MAX_SEQUENCES, Manifest, row_schema, to_arrow
from ipu_model.rows.format import FEATURE_IDS as FEATURE_IDS
from ipu_model.rows.format import IGNORED as IGNORED
from ipu_model.rows.format import PREDICTIONS as PREDICTIONS
from ipu_model.rows.format import SEQUENCE_LABELS as SEQUENCE_LABELS
from ipu_model.rows.format import SEQUENCES as SEQUENCES
from ipu_model.rows.format import TOKENS as TOKENS
from ipu_model.rows.format import Column as Column
from ipu_model.rows.format import TeacherRecord as TeacherRecord
from ipu_model.rows.format import from_arrow as from_arrow
from ipu_model.rows.format import get_columns as get_columns
from tasks.stage.errors import InputError

ROWS_PER_FILE = 65536
Columns = Mapping[str, np.ndarray]
CUT_TEXTS, MAX_COUNTED_TOKENS, WHOLE_SHARE = "cut_texts.json", 1 << 16, 0.99
"""File of `CutTexts`, number of tokens from which on they are not told apart, and share of texts that advice keeps
whole."""
WARN_SHARE = 0.01
"""Share that causes a warning. With BERT's vocabulary, English text has less than 0.1 %, and tweets about 1 %."""


def row_file_name(number: int) -> str:
    """Return the name of file `number` of a row folder, from 0; names sort by number."""
    return f"rows-{number:05d}.arrow"


def check_geometry(row_length: int, max_sequences: int, max_predictions: int, section: str) -> None:
    """Refuse row sizes that the schema cannot represent, with all problems and their parameters of a section.

    P, `max_predictions`, is 0 except for pre-training.
    """
    problems = []
    if not 4 <= row_length <= MAX_ROW_LENGTH:
        problems.append(f"{section}.row_length={row_length} must be 4 to {MAX_ROW_LENGTH} (positions are int16)")
    if not 1 <= max_sequences <= MAX_SEQUENCES:
        problems.append(f"max_sequences_per_row={max_sequences} must be 1 to {MAX_SEQUENCES} (sequence_ids are uint8)")
    if max_predictions and not max_sequences <= max_predictions <= row_length:
        problems.append(
            f"{section}.max_predictions_per_row={max_predictions} must be between max_sequences_per_row="
            f"{max_sequences} (every sequence has a masked position) and row_length={row_length}"
        )
    if problems:
        raise InputError("; ".join(problems))


@dataclass(frozen=True)
class RowLayout:
    """Positions of sequences and tokens in rows. The sequences of a row follow each other from position 0."""

    packs: np.ndarray
    """int32[R, S], index of each sequence, -1 = none; from `packing.pack_sequences`."""
    lengths: np.ndarray
    """int64[N], number of tokens of every sequence."""
    row_length: int
    starts: np.ndarray
    """int64[R, S], position of each sequence's first token in its row, -1 = none."""
    row_of: np.ndarray
    """int64[N], row of each sequence."""
    slot_of: np.ndarray
    """int64[N], slot of each sequence in its row, 0..S-1."""
    start_of: np.ndarray
    """int64[N], position of each sequence's first token in its row."""

    @classmethod
    def from_packs(cls, packs: np.ndarray, lengths: np.ndarray, row_length: int) -> RowLayout:
        """Return the layout of sequences of these `lengths`, packed according to `packs`."""
        lengths = np.asarray(lengths, dtype=np.int64)
        present = packs >= 0
        sizes = np.where(present, lengths[packs], 0) if len(lengths) else np.zeros(packs.shape, np.int64)
        starts = np.where(present, np.cumsum(sizes, axis=1) - sizes, ABSENT)
        row_of, slot_of, start_of = (np.empty(len(lengths), dtype=np.int64) for _ in range(3))
        rows, slots = np.nonzero(present)
        sequences = packs[rows, slots]
        row_of[sequences], slot_of[sequences], start_of[sequences] = rows, slots, starts[rows, slots]
        return cls(packs, lengths, row_length, starts, row_of, slot_of, start_of)

    @functools.cached_property
    def targets(self) -> np.ndarray:
        """Return the index of every token in the flattened rows, row * L + position in the row, int64[T]."""
        return concatenate_ranges(self.row_of * self.row_length + self.start_of, self.lengths)

    def per_sequence(self, values: np.ndarray, absent: int) -> np.ndarray:
        """Return [R, S] with `values[n]` in the slot of sequence n, else `absent`; of values [N, C]: [R, S * C]."""
        if values.ndim == 1:
            return np.where(self.packs >= 0, values[self.packs], absent)
        return np.where(self.packs[..., None] >= 0, values[self.packs], absent).reshape(len(self.packs), -1)

    def columns(self, token_ids: np.ndarray, second_starts: np.ndarray) -> dict[str, np.ndarray]:
        """Return the columns that rows of every kind have, from unsigned int[T] tokens with the special ones.

        `second_starts` are int[N], the first position in the sequence with token_type_ids 1.
        """
        rows, slots = self.packs.shape
        # A row is two spans of tokens for each slot, its first and its second text, and one of padding.
        spans = np.zeros((rows, 2 * slots + 1), np.int64)
        spans[:, 0:-1:2] = self.per_sequence(np.minimum(second_starts, self.lengths), 0)
        spans[:, 1::2] = self.per_sequence(self.lengths, 0) - spans[:, 0:-1:2]
        spans[:, -1] = self.row_length - spans.sum(axis=1)

        def fill(values: np.ndarray) -> np.ndarray:
            """Return [R, L] with the value of its span [R, 2 * S + 1] at every position."""
            return np.repeat(np.broadcast_to(values, spans.shape), spans.reshape(-1)).reshape(rows, self.row_length)

        input_ids = np.zeros((rows, self.row_length), token_ids.dtype)
        input_ids.reshape(-1)[self.targets] = token_ids
        sequence_ids = fill(np.append(np.repeat(np.arange(1, slots + 1, dtype=np.uint8), 2), np.uint8(0)))
        starts = np.append(np.repeat(self.starts, 2, axis=1), np.full((rows, 1), 0), axis=1).astype(np.uint16)
        positions = np.arange(self.row_length, dtype=np.uint16) - fill(starts)
        return {
            "input_ids": input_ids,
            "token_type_ids": fill((np.arange(2 * slots + 1) % 2).astype(np.uint8)),
            "position_ids": positions * (sequence_ids > 0),
            "sequence_ids": sequence_ids,
            "cls_positions": self.starts.astype(np.int16),
        }


def concatenate_ranges(starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Concatenate the ranges starts[n], starts[n] + 1, ... of lengths[n] numbers.

    concatenate_ranges([5, 0], [2, 3]) == [5, 6, 0, 1, 2]
    """
    starts, lengths = np.asarray(starts, dtype=np.int64), np.asarray(lengths, dtype=np.int64)
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if len(ends) else 0
    ranges = np.repeat(starts - (ends - lengths), lengths)
    ranges += np.arange(total, dtype=np.int64)
    return ranges


class RowWriter(contextlib.AbstractContextManager["RowWriter"]):
    """Writer of row files of at most `rows_per_file` rows into an existing folder.

    Use it as a context manager. `finish()` writes the manifest; without it the folder is not a row folder.
    """

    def __init__(
        self,
        folder: Path,
        kind: str,
        row_length: int,
        max_sequences: int,
        max_predictions: int,
        vocab_size: int,
        rows_per_file: int = ROWS_PER_FILE,
        num_labels: int = 0,
        pad_id: int = 0,
        unit: int = 1,
    ) -> None:
        self.folder, self.rows_per_file, self.num_labels, self.pad_id = Path(folder), rows_per_file, num_labels, pad_id
        self.max_sequences, self.unit = max_sequences, unit
        self._shape = kind, row_length, max_sequences, max_predictions, vocab_size
        self.schema = row_schema(*self._shape, num_labels)
        self.files: dict[str, int] = {}
        self.sequences = self.real_tokens = 0
        self._file: pa.ipc.RecordBatchFileWriter | None = None

    def __exit__(self, *error: object) -> None:
        self._close()

    @property
    def rows(self) -> int:
        """Rows written so far."""
        return sum(self.files.values())

    def write(self, columns: Columns) -> None:
        """Append rows: one array [rows, width] per column of the schema, of the dtype of the column.

        Padding of `input_ids` is replaced by the pad id.
        """
        rows, done = len(columns["input_ids"]), 0
        if self.pad_id:
            ids = columns["input_ids"]
            columns = {**columns, "input_ids": np.where(columns["sequence_ids"] == 0, ids.dtype.type(self.pad_id), ids)}
        self.sequences += int((columns["cls_positions"] != ABSENT).sum())
        self.real_tokens += int((columns["sequence_ids"] != 0).sum())
        while done < rows:
            name = self._open()
            take = min(rows - done, self.rows_per_file - self.files[name])
            assert self._file is not None
            self._file.write_batch(self._batch(columns, done, done + take))
            self.files[name] += take
            done += take

    def _batch(self, columns: Columns, start: int, stop: int) -> pa.RecordBatch:
        arrays = []
        for field in self.schema:
            values = columns[field.name][start:stop]
            assert values.shape[1] == field.type.list_size, field.name
            # safe: a value that does not fit its column is a bug and must not wrap around
            flat = to_arrow(np.ascontiguousarray(values).reshape(-1)).cast(field.type.value_type, safe=True)
            arrays.append(pa.FixedSizeListArray.from_arrays(flat, type=field.type))
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _open(self) -> str:
        """Return the file to write to; opens a new one if the last is full."""
        if self._file is None or self.files[max(self.files)] == self.rows_per_file:
            self._close()
            name = row_file_name(len(self.files))
            self.files[name] = 0
            self._file = pa.ipc.new_file(str(self.folder / name), self.schema)
        return max(self.files)

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def finish(self, tokenizer_sha256: str, seed: int, **masking: Any) -> Manifest:
        """Close the last file; write and return the manifest, with the keys `masking` of rows with masked tokens."""
        self._close()
        manifest = Manifest(
            *self._shape,
            tokenizer_sha256=tokenizer_sha256,
            seed=seed,
            rows=self.rows,
            sequences=self.sequences,
            real_tokens=self.real_tokens,
            files=dict(self.files),
            num_labels=self.num_labels,
            pad_id=self.pad_id,
            unit=self.unit,
            **masking,
        )
        (self.folder / MANIFEST).write_text(manifest.to_json(), encoding="utf-8")
        return manifest


class CutTexts:
    """Counter of the examples of one sequence each that are longer than a row, and of the tokens that they lose."""

    def __init__(self, row_length: int, lengths: Sequence[int] = ()) -> None:
        """Start with these counts: number n is that of examples of n tokens."""
        self.row_length, self.lengths = row_length, np.array(lengths, dtype=np.int64)

    def add(self, lengths: np.ndarray) -> None:
        """Count examples by their tokens before they are cut. int64 [N]."""
        counted = np.bincount(np.minimum(lengths, MAX_COUNTED_TOKENS))
        counted[: len(self.lengths)] += self.lengths[: len(counted)]
        self.lengths = np.concatenate([counted, self.lengths[len(counted) :]])

    def write(self, folder: Path) -> None:
        """Write the counts next to the rows."""
        write_json(folder / CUT_TEXTS, {"row_length": self.row_length, "lengths": self.lengths.tolist()})

    @classmethod
    def read(cls, folder: Path) -> CutTexts | None:
        """Return the counts of a row folder; None for rows of windows, which lose no token."""
        path = folder / CUT_TEXTS
        return cls(**read_json(path)) if path.is_file() else None

    @property
    def share(self) -> float:
        """Share of the examples that are cut."""
        return float(self.lengths[self.row_length + 1 :].sum() / max(1, self.lengths.sum()))

    @property
    def token_share(self) -> float:
        """Share of the tokens that are lost."""
        numbers = np.arange(len(self.lengths))
        lost = (self.lengths * np.maximum(0, numbers - self.row_length)).sum()
        return float(lost / max(1, (self.lengths * numbers).sum()))

    def fit(self, share: float) -> int:
        """Return the length of rows, a multiple of 8, that leaves this share of the examples whole."""
        needed = int(np.searchsorted(np.cumsum(self.lengths), share * self.lengths.sum()))
        return -(-needed // 8) * 8

    def __str__(self) -> str:
        cut = int(self.lengths[self.row_length + 1 :].sum())
        return (
            f"{cut:,} of {int(self.lengths.sum()):,} texts ({self.share:.1%}) are longer than rows of "
            f"{self.row_length} tokens and are cut to them: {self.token_share:.1%} of all tokens are lost"
        )

    def warn(self, positions: int) -> str:
        """Return a warning if the share reaches WARN_SHARE, else ""; `positions` is the longest row of the model."""
        if self.share < WARN_SHARE:
            return ""
        whole = self.lengths[: (length := min(self.fit(WHOLE_SHARE), positions)) + 1].sum() / self.lengths.sum()
        return f"{self}. rows.row_length={length} leaves {whole:.0%} of the texts whole"


class UnknownTokens:
    """Counter of the text tokens in rows, and of [UNK] among them."""

    def __init__(self, unknown: int | None, special: Collection[int]) -> None:
        """Start at zero; `unknown` is the id of [UNK] if there is one, and `special` ids have no text."""
        self._unknown, self._special = unknown, sorted(set(special))
        self.tokens = self.unknown = 0

    def add(self, ids: np.ndarray, real: np.ndarray) -> None:
        """Count the ids where `real` is true, that is, not padding."""
        self.tokens += int(np.count_nonzero(real))
        for special in self._special:  # a fifth of the time of `np.isin`
            self.tokens -= int(np.count_nonzero(real & (ids == special)))
        if self._unknown is not None:
            self.unknown += int(np.count_nonzero(real & (ids == self._unknown)))

    @property
    def share(self) -> float:
        """Share of [UNK] among the text tokens."""
        return self.unknown / max(1, self.tokens)

    def __str__(self) -> str:
        return f"{self.unknown:,} of {self.tokens:,} tokens ({self.share:.2%}) are [UNK]"

    @property
    def warning(self) -> str:
        """Warning if the share reaches WARN_SHARE, else empty."""
        if self.share < WARN_SHARE:
            return ""
        return f"{self}; less than {WARN_SHARE:.0%} is normal. Check the language and size of the vocabulary"
