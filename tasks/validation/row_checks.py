"""Checks of packed rows in a folder of data/rows: rules for all rows, and limits from their declared columns.

Kinds add checks that columns cannot declare: pre-training in pretraining_checks.py, downstream kinds in
tasks/downstream/<kind>/checks.py. Legend: n rows of L tokens and S slots.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ipu_model.core.files import complete_path, sha256_of
from ipu_model.core.units import shorten
from tasks.records.interpretation import read_reading
from tasks.records.parquet import read_batches
from tasks.rows.row_files import (
    ABSENT,
    FEATURE_IDS,
    IGNORED,
    PREDICTIONS,
    SEQUENCE_LABELS,
    SEQUENCES,
    TOKENS,
    WHOLE_SHARE,
    CutTexts,
    UnknownTokens,
    from_arrow,
)
from tasks.stage import artifacts
from tasks.stage.errors import InputError
from tasks.stage.row_folders import read_manifest
from tasks.validation import text_features
from tasks.validation.checks import DataCheck, DataSet, Frame, Label, Tally, TotalFeature, Totals
from tasks.vocabulary.encoding import TokenizerInfo, find_tokenizer_file, load_tokenizer, read_tokenizer_info

BATCH_TOKENS = 1 << 20
"""Tokens checked at a time: temporary arrays stay in the processor's cache."""

SAMPLES, SAMPLE_TOKENS = 3, 100
"""Sequences on the page, and tokens of each at most."""
STRUCTURE = ("sequence_ids", "cls_positions")
"""Columns that define where sequences are; the checks of sequences compare them with each other."""
UNUSED = {
    TOKENS: "in padding",
    SEQUENCES: "where no sequence is",
    SEQUENCE_LABELS: "where no sequence is",
    PREDICTIONS: "where nothing is masked",
}
TOKEN_TYPES = 2
FEATURE_ID, N_TOKENS = "feature_id", "n_tokens"
Columns = dict[str, np.ndarray]
"""Column name -> [n, width] array as stored."""


@dataclass(frozen=True)
class RowSequences:
    """Positions of the sequences in rows, derived from sequence_ids alone."""

    row: np.ndarray
    """Row of every sequence, in order of row and position. int64 [sequences]."""
    slot: np.ndarray
    """Number of every sequence within its row, from 0. int64 [sequences]."""
    start: np.ndarray
    length: np.ndarray
    """Tokens of every sequence, up to the next sequence or the last real token. int64 [sequences]."""
    per_row: np.ndarray
    real: np.ndarray
    """True for tokens that are not padding. [n, L]."""
    start_of_token: np.ndarray
    """First token of the sequence of every token. int16 [n, L]."""
    tokens: np.ndarray
    """Number of tokens of every row that are not padding. int64 [n]."""

    def present(self, slots: int) -> np.ndarray:
        """Return the slots with a sequence. bool [n, slots]."""
        return np.arange(slots) < self.per_row[:, None]

    def table(self, values: np.ndarray, slots: int, absent: int) -> np.ndarray:
        """Arrange one value per sequence as [n, slots], with `absent` in unused slots."""
        table = np.full((len(self.per_row), slots), absent, np.int64)
        fits = self.slot < slots
        table[self.row[fits], self.slot[fits]] = values[fits]
        return table


def find_sequences(sequence_ids: np.ndarray) -> tuple[RowSequences, Columns]:
    """Locate the sequences of rows, and check their order: uint8 [n, L], 1.. in order, 0 = padding.

    Return also the features [n] `sequences` (their number), `padding_at_end` (padding before the last real token) and
    `sequences_in_order` (tokens that break 1, 1, 2, 2, 3 ...).
    """
    n, length = sequence_ids.shape
    real = sequence_ids > 0
    last = length - 1 - np.argmax(real[:, ::-1], axis=1)
    end_of_row = np.where(real[np.arange(n), last], last + 1, 0)
    has_holes = not real[end_of_row > 0, 0].all() or np.greater(real[:, 1:], real[:, :-1]).any()
    tokens = real.sum(axis=1) if has_holes else end_of_row
    holes = end_of_row - tokens
    columns = np.arange(length, dtype=np.int16)
    before = np.zeros_like(sequence_ids)
    before[:, 1:] = sequence_ids[:, :-1]
    if has_holes:  # a sequence continues after padding inside it
        last_real = np.maximum.accumulate(np.where(real, columns, np.int16(0)), axis=1)
        before[:, 1:] = np.take_along_axis(sequence_ids, last_real.astype(np.int64), axis=1)[:, :-1]
    is_start = real & (sequence_ids != before)
    row, start = np.divmod(np.flatnonzero(is_start), length)
    per_row = np.bincount(row, minlength=n)
    slot = np.arange(len(row)) - (np.cumsum(per_row) - per_row)[row]
    end = end_of_row[row]
    same_row = row[1:] == row[:-1]
    end[:-1][same_row] = start[1:][same_row]
    start_of_token = np.maximum.accumulate(np.where(is_start, columns, np.int16(0)), axis=1)
    jumps = sequence_ids[row, start] != before[row, start] + np.int16(1)
    features = {
        "sequences": per_row,
        "padding_at_end": holes,
        "sequences_in_order": np.bincount(row[jumps], minlength=n),
    }
    return RowSequences(row, slot, start, end - start, per_row, real, start_of_token, tokens), features


def count_per_row(flags: np.ndarray) -> np.ndarray:
    """Count the true values of every row; valid rows have none, which takes a tenth of the time. [n]."""
    return flags.sum(axis=1) if flags.any() else np.zeros(len(flags), np.int64)


ExampleFilter = Callable[[pa.RecordBatch], pa.Array]
"""Filter of the examples in a batch; returns booleans."""


@dataclass(frozen=True)
class SourceExamples:
    """Examples that the rows of a folder were made from."""

    path: Path
    stage: str
    """Stage that writes the examples, for messages."""
    choose: Callable[[], tuple[ExampleFilter, Sequence[str]]] | None = None
    """Returns a filter of the examples that rows were made from, and the columns it needs; None: all examples."""

    def read(self, columns: Sequence[str], at_once: int = 8192) -> Iterator[pa.RecordBatch]:
        """Yield the examples in order, with at least these columns; for errors see `read_batches`."""
        side, others = self.choose() if self.choose is not None else (None, ())
        for batch in read_batches(self.path, tuple(dict.fromkeys((*columns, *others))), at_once, self.stage):
            yield batch if side is None else batch.filter(side(batch))


@dataclass(frozen=True)
class RowSource:
    """A folder of rows, and what they are compared with."""

    name: str
    folder: Path
    tokenizer: Path
    """Folder of tokenizer.json."""
    section: str
    """Section of params.yaml for the rows."""
    max_positions: int
    """Positions of the model."""
    max_unknown_share: float = 1.0
    """Share of [UNK] among the tokens at most."""
    max_cut_share: float = 1.0
    """Share of the texts at most that are longer than a row."""
    training: bool = True
    """The rows are for training; otherwise they are held out."""
    examples: SourceExamples | None = None
    """Examples that the rows were made from; None: labels are not compared with examples."""

    @property
    def advice(self) -> str:
        """Advice for invalid rows."""
        return f"make the rows again (section {self.section} of params.yaml)"


class RowFiles(NamedTuple):
    """Consecutive files of a row folder."""

    paths: Sequence[Path]
    first: int
    """Number of the first row in the folder."""
    bytes: int


class RowData(DataSet):
    """Rows of one folder. Kinds add checks and features to those of all rows."""

    record, is_user_data = "row", False
    kinds: ClassVar[tuple[str, ...]]

    def __init__(self, source: RowSource) -> None:
        """Open the rows.

        Raises:
            InputError: there is no manifest, or no usable tokenizer.
        """
        self.name, self.folder, self.section = source.name, source.folder, source.section
        self._tokenizer = source.tokenizer
        self._made_from = source.examples.path.parent if source.examples is not None else None
        self.advice, self.tally = source.advice, Tally()
        self.manifest = read_manifest(self.folder)
        self.schema = self.manifest.schema
        vocabulary = read_tokenizer_info(load_tokenizer(source.tokenizer))
        self.tokenizer_sha256, self._cls_id = sha256_of(find_tokenizer_file(source.tokenizer)), vocabulary.cls
        self._special = vocabulary.unk, (vocabulary.cls, *vocabulary.between, vocabulary.sep)
        sizes = self.manifest.sizes(vocabulary.size, TOKEN_TYPES, source.max_positions)
        self._ends = {column: column.end(sizes) for column in self.manifest.columns if column.name not in STRUCTURE}
        self.prerequisites = self._prerequisites(vocabulary)
        self._cut, self._longest = CutTexts.read(self.folder), source.max_positions
        self.total_checks = self._total_checks(source)
        self.record_checks = (*self._sequence_checks(), *self._column_checks())

    def _prerequisites(self, vocabulary: TokenizerInfo) -> tuple[DataCheck, ...]:
        changed = f"{complete_path(self.folder)} was changed or half-written: delete it; {self.advice}"
        columns = f"the columns and types of a {self.manifest.kind} row, {self.manifest.row_length} tokens long"
        tokenizer = f"the tokenizer of data/tokenizer: SHA-256 of tokenizer.json {self.tokenizer_sha256}"
        later = f"the tokenizer changed after the rows were made: {self.advice}"
        size = f"the {vocabulary.size:,} tokens of the tokenizer"
        return (
            DataCheck("schema", "all", columns, changed),
            DataCheck("manifest_files", "manifest.json", "the files and rows that manifest.json lists", changed),
            DataCheck("tokenizer", "manifest.json", tokenizer, later),
            DataCheck(
                "vocab_size", "manifest.json", size, self.advice, minimum=vocabulary.size, maximum=vocabulary.size
            ),
        )

    def _total_checks(self, source: RowSource) -> tuple[DataCheck, ...]:
        no_text = "there was no text to make rows from: check the corpus or the examples"
        counts = {"sequences": self.manifest.sequences, "real tokens": self.manifest.real_tokens}
        once = DataCheck("features_once", FEATURE_IDS.name, "every feature from 0 on, exactly once", self.advice)
        return (
            DataCheck("rows", "all", "at least one row", no_text, minimum=1),
            DataCheck("nulls", "all", "no nulls", self.advice),
            *(
                DataCheck(
                    f"manifest_{name.replace(' ', '_')}",
                    "sequence_ids",
                    f"{count:,} {name}, as in manifest.json",
                    self.advice,
                    minimum=count,
                    maximum=count,
                )
                for name, count in counts.items()
            ),
            DataCheck(
                "unknown_share",
                "input_ids",
                f"at most {source.max_unknown_share:.4g} of the tokens are [UNK]",
                "the vocabulary does not fit the text: use one of its language (base_model, tokenizer), put blanks "
                "between words if there are none, raise tokenizer.vocabulary_size if it is trained here, or raise "
                "validate.max_unknown_share",
                maximum=source.max_unknown_share,
            ),
            *([once] if FEATURE_IDS in self._ends else []),
            *([self._cut_check(self._cut, source)] if self._cut is not None else []),
        )

    def _cut_check(self, cut: CutTexts, source: RowSource) -> DataCheck:
        longest = min(cut.fit(WHOLE_SHARE), source.max_positions)
        return DataCheck(
            "cut_share",
            "input_ids",
            f"at most {source.max_cut_share:.4g} of the texts are longer than rows of {cut.row_length} tokens",
            f"set {self.section}.row_length={longest} (the model has {source.max_positions} positions), or "
            "validate.max_cut_share=1 to train on the beginnings of the texts",
            maximum=source.max_cut_share,
        )

    def _sequence_checks(self) -> tuple[DataCheck, ...]:
        """Return the checks of the sequences in every row."""
        again, most = self.advice, self.manifest.max_sequences
        number, fewer = f"1 to {most} sequences in a row", f"check max_sequences_per_row; {again}"
        starts = "every sequence begins with [CLS], of token type 0"
        changed = f"the tokenizer may have changed: {again}"
        return (
            DataCheck("sequences", "sequence_ids", number, fewer, minimum=1, maximum=most),
            DataCheck("sequences_in_order", "sequence_ids", "1, 2, 3, ... in order", again),
            DataCheck("padding_at_end", "sequence_ids", "padding only after the last sequence", again),
            DataCheck("positions_restart", "position_ids", "0, 1, 2, ... from the start of every sequence", again),
            DataCheck("first_tokens", "input_ids, token_type_ids", starts, changed),
            DataCheck("cls_positions", "cls_positions", "the start of every sequence, -1 for none", again),
        )

    def _column_checks(self) -> Iterator[DataCheck]:
        """Yield a check of the values of each column."""
        advice = {
            "vocab_size": f"the tokenizer may have changed: {self.advice}",
            "max_positions": f"raise model.max_positions or lower {self.section}.row_length",
        }
        for column, end in self._ends.items():
            values = "a finite number" if end == float("inf") else f"from 0 to {int(end) - 1:,}"
            if isinstance(column.below, str):
                values += f", as {column.below} is {int(end):,}"
            if column.least == IGNORED and column.width != PREDICTIONS:
                # Kinds may allow tokens or sequences without a label; masked tokens always have one.
                values += f", or {IGNORED} for none"
            required = f"{values}; {column.unused} {UNUSED[column.width]}"
            yield DataCheck(column.name, column.name, required, advice.get(str(column.below), self.advice))

    def prepare(self) -> Totals:
        examples: dict[str, list[str]] = {"schema": [], "manifest_files": []}
        for name, rows in self.manifest.files.items():
            file = _open(self.folder / name)
            count = sum(file.get_batch(i).num_rows for i in range(file.num_record_batches))
            if count != rows:
                examples["manifest_files"].append(f"{name} has {count:,} rows, manifest.json lists {rows:,}")
            examples["schema"] += [
                f"{name}: {field.name} must be {field.type}"
                for field in self.schema
                if field.name not in file.schema.names or file.schema.field(field.name).type != field.type
            ]
        unnamed = {path.name for path in self.folder.glob("*.arrow")} - set(self.manifest.files)
        examples["manifest_files"] += [f"{name} is not in manifest.json" for name in sorted(unnamed)]
        if sum(self.manifest.files.values()) != self.manifest.rows:
            examples["manifest_files"].append(f"manifest.json states {self.manifest.rows:,} rows in all")
        if self.manifest.kind not in self.kinds:
            examples["schema"].append(f"these are rows of kind {self.manifest.kind}, not {' or '.join(self.kinds)}")
        examples["schema"] += self.prepare_kind()
        same = self.manifest.tokenizer_sha256 == self.tokenizer_sha256
        return {
            **{name: TotalFeature.from_differences(differences) for name, differences in examples.items()},
            "tokenizer": TotalFeature(int(not same), f"rows of tokenizer {self.manifest.tokenizer_sha256}"),
            "vocab_size": TotalFeature(self.manifest.vocab_size),
        }

    def prepare_kind(self) -> Sequence[str]:
        """Read further files of the folder, and return the problems with their columns."""
        return ()

    def parts(self) -> list[RowFiles]:
        """Return a part for each file, or for all: the checks of labels compare feature ids with tables of examples."""
        paths, rows = [(self.folder / name).absolute() for name in self.manifest.files], self.manifest.files.values()
        if FEATURE_IDS in self._ends:
            return [RowFiles(paths, 0, 0)]
        firsts = accumulate(rows, initial=0)
        return [RowFiles([path], first, path.stat().st_size) for path, first in zip(paths, firsts, strict=False)]

    def check(self, part: RowFiles) -> Iterator[tuple[Frame, Label]]:
        first, size = part.first, max(1, BATCH_TOKENS // self.manifest.row_length)
        for file in map(_open, part.paths):
            for index in range(file.num_record_batches):
                batch = file.get_batch(index)
                for start in range(0, batch.num_rows, size):
                    yield self._features(batch.slice(start, size)), partial(_label_row, first + start)
                first += batch.num_rows

    def _features(self, batch: pa.RecordBatch) -> Frame:
        rows = {field.name: self._matrix(batch.column(field.name)) for field in self.schema}
        sequences, features = find_sequences(rows["sequence_ids"])
        features |= self._declared_features(rows, sequences) | self.kind_features(rows, sequences)
        if FEATURE_IDS in self._ends:
            ids = rows[FEATURE_IDS.name].reshape(-1)
            self.tally.lists["feature_ids"].append(ids[(ids >= 0) & (ids < self.manifest.sequences)])
        unknown = UnknownTokens(*self._special)
        unknown.add(rows["input_ids"], sequences.real)
        self.tally.histograms["tokens"].add(sequences.length)
        self.tally.histograms["sequences"].add(sequences.per_row)
        self.tally.counts.update(
            rows=batch.num_rows,
            sequences=len(sequences.row),
            real_tokens=int(sequences.tokens.sum()),
            tokens=unknown.tokens,
            unknown=unknown.unknown,
        )
        return features

    def _matrix(self, column: pa.FixedSizeListArray) -> np.ndarray:
        """Return a column as [n, width], without a copy; nulls, which are invalid, are counted and read as 0."""
        width = column.type.list_size
        values = column.values.slice(column.offset * width, len(column) * width)
        nulls = column.null_count + values.null_count
        if nulls:
            self.tally.counts["nulls"] += nulls
            values = values.fill_null(0)
        return from_arrow(values).reshape(-1, width)

    def _declared_features(self, rows: Columns, sequences: RowSequences) -> Columns:
        """Return the features [n] of columns, the number of values that are not as declared, and of the starts of
        sequences, which several columns encode."""
        positions = rows["position_ids"]
        expected = np.arange(positions.shape[1], dtype=np.int16) - sequences.start_of_token
        first = sequences.row, sequences.start
        other_start = (rows["input_ids"][first] != self._cls_id) | (rows["token_type_ids"][first] != 0)
        slots = rows["cls_positions"].shape[1]
        wrong_slots = rows["cls_positions"] != sequences.table(sequences.start, slots, ABSENT)
        features = {
            "positions_restart": count_per_row(sequences.real & (positions != expected.astype(positions.dtype))),
            "first_tokens": np.bincount(sequences.row[other_start], minlength=len(sequences.per_row)),
            "cls_positions": count_per_row(wrong_slots) + np.maximum(sequences.per_row - slots, 0),
        }
        used = {TOKENS: sequences.real, SEQUENCES: sequences.present(slots)}
        used[SEQUENCE_LABELS] = np.repeat(used[SEQUENCES], max(1, self.manifest.num_labels), axis=1)
        for column in self._ends:
            if column.width == PREDICTIONS and column.least == IGNORED:
                used[PREDICTIONS] = rows[column.name] != IGNORED
        for column, end in self._ends.items():
            values = rows[column.name]
            wrong = np.greater(values != column.unused, used[column.width])
            if not 0 <= values.min(initial=0) <= values.max(initial=0) < end:  # some may be out of range
                right = np.isfinite(values) if end == float("inf") else (values >= 0) & (values < end)
                if column.least == IGNORED:
                    right |= values == IGNORED
                wrong |= used[column.width] & ~right
            features[column.name] = count_per_row(wrong)
        return features

    def kind_features(self, rows: Columns, sequences: RowSequences) -> Columns:
        """Return the features [n] of the record checks that a kind adds, from the columns of n rows as stored."""
        return {}

    def totals(self) -> Totals:
        seen, unknown = self.tally.counts, self._unknown
        ids = np.concatenate([np.zeros(0, np.int32), *self.tally.lists["feature_ids"]])
        times = np.bincount(ids, minlength=self.manifest.sequences)
        wrong = np.flatnonzero(times != 1)
        shown = f"{len(wrong):,} of {len(times):,} features do not occur exactly once"
        return {
            "rows": TotalFeature(seen["rows"]),
            "nulls": TotalFeature(seen["nulls"]),
            "manifest_sequences": TotalFeature(seen["sequences"]),
            "manifest_real_tokens": TotalFeature(seen["real_tokens"]),
            "unknown_share": TotalFeature(unknown.share, str(unknown)),
            **({} if self._cut is None else {"cut_share": TotalFeature(self._cut.share, str(self._cut))}),
            "features_once": TotalFeature(len(wrong), shown, [f"feature {i}: {times[i]} times" for i in wrong[:3]]),
        }

    @property
    def _unknown(self) -> UnknownTokens:
        counted = UnknownTokens(*self._special)
        counted.tokens, counted.unknown = self.tally.counts["tokens"], self.tally.counts["unknown"]
        return counted

    def numbers(self) -> dict[str, object]:
        seen, length = self.tally.counts, self.manifest.row_length
        return {
            "rows": seen["rows"],
            "tokens in a row": length,
            "sequences": seen["sequences"],
            "sequences per row": round(seen["sequences"] / max(1, seen["rows"]), 3),
            "real tokens": seen["real_tokens"],
            "share of [UNK]": round(self._unknown.share, 4),
            **({} if self._cut is None else {"share of texts that are cut": round(self._cut.share, 4)}),
            "share of real tokens": round(seen["real_tokens"] / max(1, seen["rows"] * length), 4),
            "mean tokens of a sequence": self.tally.histograms["tokens"].mean,
        }

    def histograms(self) -> list[dict[str, Any]]:
        return [
            self.tally.histograms["tokens"].histogram("Length of sequences", "tokens"),
            self.tally.histograms["sequences"].histogram("Sequences in a row", "sequences"),
        ]

    def described(self) -> list[str]:
        return read_reading(self._made_from)["described"] if self._made_from is not None else []

    def samples(self) -> list[tuple[str, str]]:
        file = _open(self.folder / next(iter(self.manifest.files)))  # the checks passed, so there is a row
        batch = file.get_batch(0).slice(0, SAMPLES)
        rows = {field.name: self._matrix(batch.column(field.name)) for field in self.schema}
        sequences, _ = find_sequences(rows["sequence_ids"])
        places, shown = (
            np.stack([sequences.row, sequences.slot, sequences.start, sequences.length], axis=1)[:SAMPLES].tolist(),
            [],
        )
        for row, slot, start, length in places:
            tokens = self.decode(rows["input_ids"][row, start : start + length])
            label = self.describe_label({name: values[row] for name, values in rows.items()}, slot, start, tokens)
            shown.append((shorten(tokens, SAMPLE_TOKENS, " "), label))
        return shown

    def decode(self, ids: np.ndarray) -> list[str]:
        """Return the tokens of ids."""
        tokenizer = load_tokenizer(self._tokenizer)
        return [tokenizer.id_to_token(int(token)) or f"({token})" for token in ids]

    def describe_label(self, row: Columns, slot: int, start: int, tokens: Sequence[str]) -> str:
        """Return the label of a sequence in words: of number `slot` in its row, from token `start` on."""
        return ""

    def notes(self) -> list[str]:
        cut = "" if self._cut is None else self._cut.warn(self._longest)
        return [f"{self.name} rows: {text}" for text in (self._unknown.warning, cut) if text]


def _label_row(first: int, offset: int) -> str:
    return f"row {first + offset}"


def _open(path: Path) -> pa.ipc.RecordBatchFileReader:
    try:
        return pa.ipc.open_file(pa.memory_map(str(path)))
    except pa.ArrowInvalid as error:
        raise InputError(f"{path} is not an Arrow file, or cut off ({error}): make the rows again") from None


@dataclass(frozen=True)
class FeatureLines:
    """Lines of features.parquet for the slots of n rows."""

    present: np.ndarray
    """Slots with a sequence. bool [n, S]."""
    known: np.ndarray
    """Slots whose line exists in the file. bool [n, S]."""
    starts: np.ndarray
    """First token of the sequence. int64 [n, S]."""
    lengths: np.ndarray
    """Tokens of the sequence, 0 if there is none. int64 [n, S]."""
    columns: Columns
    """Integers of the lines by column; undefined if the line is not known. int64 [n, S]."""


class WindowData(RowData):
    """Rows of windows; kinds add the checks of labels."""

    def __init__(
        self, source: RowSource, schema: pa.Schema, labels: Sequence[DataCheck], columns: Sequence[str] = ()
    ) -> None:
        """Open the rows, with checks of the labels of every row.

        The schema is that of features.parquet, with feature_id and n_tokens; `columns` are more integers of it to read.
        """
        super().__init__(source)
        numbered = "feature_id 0, 1, 2, ..., one for each sequence"
        self.total_checks += (DataCheck("features_numbered", "features.parquet", numbered, self.advice),)
        self.record_checks += (
            *labels,
            DataCheck("feature_slots", "feature_ids", "a line of features.parquet for every sequence", self.advice),
            DataCheck("feature_lengths", "features.parquet n_tokens", "the tokens of the sequence", self.advice),
        )
        self._path, self._schema, self._names = self.folder / artifacts.FEATURES, schema, (N_TOKENS, *columns)
        self._ids = np.zeros(0, np.int64)
        self._columns: Columns = {}

    def prepare_kind(self) -> list[str]:
        if not self._path.is_file():
            return [f"{self._path.name} is missing"]
        differences = text_features.compare_schema(self._path, self._schema)
        if differences:
            return differences
        required = [FEATURE_ID, *self._names]
        table = pq.read_table(self._path, columns=required)
        columns = {name: from_arrow(table[name].combine_chunks().fill_null(-1)).astype(np.int64) for name in required}
        self._ids, self._columns = columns.pop(FEATURE_ID), columns
        return []

    def kind_features(self, rows: Columns, sequences: RowSequences) -> Columns:
        ids, count = rows["feature_ids"].astype(np.int64), len(self._ids)
        present = sequences.present(ids.shape[1])
        starts, lengths = (sequences.table(values, ids.shape[1], 0) for values in (sequences.start, sequences.length))
        # Without lines there are no values to look up, and `known` is false everywhere.
        taken = np.clip(ids, 0, max(0, count - 1))
        columns = {name: values[taken] if count else np.zeros_like(ids) for name, values in self._columns.items()}
        lines = FeatureLines(present, present & (ids >= 0) & (ids < count), starts, lengths, columns)
        return {
            "feature_slots": (lines.present & ~lines.known).sum(axis=1),
            "feature_lengths": (lines.known & (lines.lengths != lines.columns[N_TOKENS])).sum(axis=1),
            **self.label_features(rows, sequences, lines),
        }

    @abstractmethod
    def label_features(self, rows: Columns, sequences: RowSequences, lines: FeatureLines) -> Columns:
        """Return the features [n] of the checks of labels."""

    def totals(self) -> Totals:
        sequences = self.manifest.sequences
        other = np.flatnonzero(self._ids != np.arange(len(self._ids)))
        lines = [f"line {i}: feature_id {self._ids[i]}" for i in other[:3]]
        shown = f"{len(other):,} lines with another feature_id, {len(self._ids):,} lines of {sequences:,} sequences"
        numbered = TotalFeature(len(other) + abs(len(self._ids) - sequences), shown, lines)
        return {**super().totals(), "features_numbered": numbered}
