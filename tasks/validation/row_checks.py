"""What packed rows must be: those of a folder of data/rows, by the rules of all rows, their columns and their kind."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ipu_model.files import read_json, sha256_of
from tasks.project.errors import InputError
from tasks.project.row_folders import Manifest, read_manifest
from tasks.rows.row_files import (
    ABSENT,
    FEATURE_IDS,
    IGNORED,
    PREDICTIONS,
    SEQUENCES,
    TOKENS,
    Column,
    columns_of,
    from_arrow,
)
from tasks.rows.unknown import UnknownTokens
from tasks.validation.checks import RECORD, Check, DataSet, Frame, Total, Totals
from tasks.validation.histograms import Lengths
from tasks.validation.row_rules import Columns, RowLimits, RulesOf, Sequences

CLS, SEP, UNK = "[CLS]", "[SEP]", "[UNK]"
BATCH_TOKENS = 1 << 20
"""Tokens looked at together: the temporary arrays stay in the processor's cache."""

STRUCTURE = ("sequence_ids", "cls_positions")
"""Columns that say where sequences are, and so what is in use; `sequence_checks` hold them against each other."""
NOWHERE = {TOKENS: "in padding", SEQUENCES: "where no sequence is", PREDICTIONS: "where nothing is masked"}
TOKEN_TYPES = 2


class RowData(DataSet):
    """The rows of one folder."""

    record, is_given = "row", False

    def __init__(
        self,
        name: str,
        folder: Path,
        tokenizer: Path,
        max_positions: int,
        section: str,
        rules: RulesOf,
        max_unknown_share: float = 1.0,
    ) -> None:
        """Open the rows of `folder`.

        Args:
            tokenizer: Folder of tokenizer.json.
            section: of params.yaml, the one that made the rows.
            rules: those of their kind.
            max_unknown_share: share of [UNK] among the tokens at most.

        Raises:
            InputError: no manifest, or no tokenizer that can be used.
        """
        self.name, self.folder = name, Path(folder)
        self.manifest: Manifest = read_manifest(self.folder)
        self.schema = self.manifest.schema
        tokenizer_file = Path(tokenizer) / "tokenizer.json"
        special, size = read_tokenizer(tokenizer_file)
        self.cls_id = special[CLS]
        self._unknown = UnknownTokens(special.get(UNK), [special[token] for token in (CLS, SEP) if token in special])
        tokens = size, sha256_of(tokenizer_file)
        self.limits = RowLimits(self.folder, section, self.manifest, *tokens, max_positions, max_unknown_share)
        self.rules, self._columns = rules(self.limits), ColumnRules(self.limits)
        self.prerequisites = prerequisites(self.limits)
        self.total_checks = (*total_checks(self.limits), *self.rules.total_checks)
        self.record_checks = (
            *sequence_checks(self.limits),
            *self._columns.record_checks,
            *self.rules.record_checks,
        )
        self._seen = dict.fromkeys(("rows", "sequences", "real_tokens", "nulls"), 0)
        self._features_seen = np.zeros(self.manifest.sequences, np.int64)
        """How often each number of feature_ids was seen."""
        self._tokens_per_sequence, self._sequences_per_row = Lengths(), Lengths()

    def prepare(self) -> Totals:
        examples: dict[str, list[str]] = {"schema": [], "manifest_files": []}
        for name, rows in self.manifest.files.items():
            file = _open(self.folder / name)
            found = sum(file.get_batch(i).num_rows for i in range(file.num_record_batches))
            if found != rows:
                examples["manifest_files"].append(f"{name} holds {found:,} rows, manifest.json says {rows:,}")
            examples["schema"] += [
                f"{name}: {field.name} must be {field.type}"
                for field in self.schema
                if field.name not in file.schema.names or file.schema.field(field.name).type != field.type
            ]
        unnamed = {path.name for path in self.folder.glob("*.arrow")} - set(self.manifest.files)
        examples["manifest_files"] += [f"{name} is not in manifest.json" for name in sorted(unnamed)]
        if sum(self.manifest.files.values()) != self.manifest.rows:
            examples["manifest_files"].append(f"manifest.json says {self.manifest.rows:,} rows in all")
        if self.manifest.kind not in self.rules.kinds:
            examples["schema"].append(
                f"these are rows of kind {self.manifest.kind}, not {' or '.join(self.rules.kinds)}"
            )
        examples["schema"] += self.rules.prepare()
        same = self.manifest.tokenizer_sha256 == self.limits.tokenizer_sha256
        return {
            **{name: Total.of_differences(differences) for name, differences in examples.items()},
            "tokenizer": Total(int(not same), f"rows of tokenizer {self.manifest.tokenizer_sha256}"),
            "vocab_size": Total(self.manifest.vocab_size),
        }

    def frames(self) -> Iterator[Frame]:
        return map(self._features, self._batches())

    def _batches(self) -> Iterator[pa.RecordBatch]:
        size = max(1, BATCH_TOKENS // self.manifest.row_length)
        for name in self.manifest.files:
            file = _open(self.folder / name)
            for index in range(file.num_record_batches):
                batch = file.get_batch(index)
                for start in range(0, batch.num_rows, size):
                    yield batch.slice(start, size)

    def _features(self, batch: pa.RecordBatch) -> Frame:
        rows = {field.name: self._matrix(batch.column(field.name)) for field in self.schema}
        found, features = find_sequences(rows["sequence_ids"])
        features.update(token_features(rows, found, self.cls_id))
        features.update(self._columns.features(rows, found))
        features.update(self.rules.features(rows, found))
        ids = rows.get(FEATURE_IDS.name, np.zeros((0, 0), np.int32)).reshape(-1)
        known = ids[(ids >= 0) & (ids < len(self._features_seen))]
        self._features_seen += np.bincount(known, minlength=len(self._features_seen))
        self._unknown.add(rows["input_ids"], found.real)
        self._tokens_per_sequence.add(found.length)
        self._sequences_per_row.add(found.per_row)
        labels = [f"row {number}" for number in range(self._seen["rows"], self._seen["rows"] + batch.num_rows)]
        self._seen["rows"] += batch.num_rows
        self._seen["sequences"] += len(found.row)
        self._seen["real_tokens"] += int(found.real.sum())
        judged = {check.name: features[check.name].astype(np.int64) for check in self.record_checks}
        return {RECORD: np.array(labels, dtype=object), **judged}

    def _matrix(self, column: pa.FixedSizeListArray) -> np.ndarray:
        """[n, width] of a column, without a copy; nulls, which no column may have, are counted and read as 0."""
        width = column.type.list_size
        values = column.values.slice(column.offset * width, len(column) * width)
        nulls = column.null_count + values.null_count
        if nulls:
            self._seen["nulls"] += nulls
            values = values.fill_null(0)
        return from_arrow(values).reshape(-1, width)

    def totals(self) -> Totals:
        seen = self._seen
        return {
            "rows": Total(seen["rows"]),
            "nulls": Total(seen["nulls"]),
            "manifest_sequences": Total(seen["sequences"]),
            "manifest_real_tokens": Total(seen["real_tokens"]),
            "unknown_share": Total(self._unknown.share, str(self._unknown)),
            **self._features_once(),
            **self.rules.totals(),
        }

    def _features_once(self) -> Totals:
        if FEATURE_IDS.name not in self.schema.names:
            return {}
        times, wrong = self._features_seen, np.flatnonzero(self._features_seen != 1)
        shown = f"{len(wrong):,} of {len(times):,} features are not there exactly once"
        return {"features_once": Total(len(wrong), shown, [f"feature {i}: {times[i]} times" for i in wrong[:3]])}

    def numbers(self) -> dict[str, Any]:
        seen, length = self._seen, self.manifest.row_length
        return {
            "rows": seen["rows"],
            "tokens in a row": length,
            "sequences": seen["sequences"],
            "sequences per row": round(seen["sequences"] / max(1, seen["rows"]), 3),
            "real tokens": seen["real_tokens"],
            "share of [UNK]": round(self._unknown.share, 4),
            "share of real tokens": round(seen["real_tokens"] / max(1, seen["rows"] * length), 4),
            "mean tokens of a sequence": self._tokens_per_sequence.mean,
            **self.rules.numbers(),
        }

    def histograms(self) -> list[dict[str, Any]]:
        return [
            self._tokens_per_sequence.histogram("Length of sequences", "tokens"),
            self._sequences_per_row.histogram("Sequences in a row", "sequences"),
            *self.rules.histograms(),
        ]

    def notes(self) -> list[str]:
        return [f"{self.name} rows: {text}" for text in (self._unknown.warning, *self.rules.notes()) if text]


def prerequisites(limits: RowLimits) -> tuple[Check, ...]:
    """Return the checks without which nothing else can be looked at."""
    manifest = limits.manifest
    again = f"{limits.folder} was changed or half-written: delete it; {limits.again}"
    columns = f"the columns and types of a {manifest.kind} row, {manifest.row_length} tokens long"
    tokenizer = f"the tokenizer of data/tokenizer: SHA-256 of tokenizer.json {limits.tokenizer_sha256}"
    changed, size = f"the tokenizer changed after the rows were made: {limits.again}", limits.vocab_size
    words = f"the tokenizer's {size:,} tokens"
    return (
        Check("schema", "all", columns, again),
        Check("manifest_files", "manifest.json", "the files and rows that manifest.json names", again),
        Check("tokenizer", "manifest.json", tokenizer, changed),
        Check("vocab_size", "manifest.json", words, limits.again, minimum=size, maximum=size),
    )


def total_checks(limits: RowLimits) -> tuple[Check, ...]:
    """Return the checks of the whole set."""
    manifest, again, most = limits.manifest, limits.again, limits.max_unknown_share
    no_text = "there was no text to make rows of: look at the corpus or the questions"
    counts = {"sequences": manifest.sequences, "real tokens": manifest.real_tokens}
    numbered = FEATURE_IDS in columns_of(manifest.kind, manifest.vocab_size)
    once = Check("features_once", FEATURE_IDS.name, "every feature, from 0 on, exactly once", again)
    return (
        Check("rows", "all", "at least one row", no_text, minimum=1),
        Check("nulls", "all", "no null anywhere", again),
        *(
            Check(
                f"manifest_{name.replace(' ', '_')}",
                "sequence_ids",
                f"{count:,} {name}, as manifest.json says",
                again,
                minimum=count,
                maximum=count,
            )
            for name, count in counts.items()
        ),
        Check(
            "unknown_share",
            "input_ids",
            f"at most {most:.4g} of the tokens are [UNK]",
            "the vocabulary does not fit the text: use a model or vocabulary of its language (base_model, tokenizer), "
            "raise tokenizer.vocabulary_size if it is trained here, or raise validate.max_unknown_share",
            maximum=most,
        ),
        *([once] if numbered else []),
    )


def sequence_checks(limits: RowLimits) -> tuple[Check, ...]:
    """Return the checks of where the sequences of every row are."""
    again, most = limits.again, limits.manifest.max_sequences
    number, fewer = f"1 to {most} sequences in a row", f"look at max_sequences_per_row; {again}"
    starts, changed = "every sequence begins with [CLS], of token type 0", f"the tokenizer may have changed: {again}"
    return (
        Check("sequences", "sequence_ids", number, fewer, minimum=1, maximum=most),
        Check("sequences_in_order", "sequence_ids", "1, 2, 3, ... one after the other", again),
        Check("padding_at_end", "sequence_ids", "padding only after the last sequence", again),
        Check("positions_restart", "position_ids", "0, 1, 2, ... from the start of every sequence", again),
        Check("first_tokens", "input_ids, token_type_ids", starts, changed),
        Check("cls_positions", "cls_positions", "the start of every sequence, -1 for none", again),
    )


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
    """Features [n] of where sequences begin, which the columns that all rows have state in several ways."""
    expected = np.arange(found.real.shape[1], dtype=np.int16) - found.start_of_token
    first = found.row, found.start
    other_start = (rows["input_ids"][first] != cls_id) | (rows["token_type_ids"][first] != 0)
    slots = rows["cls_positions"].shape[1]
    wrong_slots = rows["cls_positions"] != found.table(found.start, slots, ABSENT)
    return {
        "positions_restart": (found.real & (rows["position_ids"] != expected)).sum(axis=1),
        "first_tokens": np.bincount(found.row[other_start], minlength=len(found.per_row)),
        "cls_positions": wrong_slots.sum(axis=1) + np.maximum(found.per_row - slots, 0),
    }


class ColumnRules:
    """A check for each column of the rows of one folder."""

    def __init__(self, limits: RowLimits) -> None:
        """Take note of what is required."""
        manifest, again = limits.manifest, limits.again
        sizes = manifest.sizes(limits.vocab_size, TOKEN_TYPES, limits.max_positions)
        advice = {
            "vocab_size": f"the tokenizer may have changed: {again}",
            "max_positions": f"raise model.max_positions or lower {limits.section}.row_length",
        }
        declared = columns_of(manifest.kind, manifest.vocab_size)
        self._ends = {column: column.end(sizes) for column in declared if column.name not in STRUCTURE}
        self.record_checks = tuple(
            Check(column.name, column.name, _requirement(column, end), advice.get(str(column.below), again))
            for column, end in self._ends.items()
        )

    def features(self, rows: Columns, found: Sequences) -> Columns:
        """Return the number of values that are not as declared, by column. int64 [n] each."""
        used = {TOKENS: found.real, SEQUENCES: found.present(rows["cls_positions"].shape[1])}
        for column in self._ends:
            if column.width == PREDICTIONS and column.least == IGNORED:
                used[PREDICTIONS] = rows[column.name] != IGNORED
        return {
            column.name: _are_wrong(rows[column.name], used[column.width], column, end).sum(axis=1)
            for column, end in self._ends.items()
        }


def _requirement(column: Column, end: float) -> str:
    values = "a finite number" if end == float("inf") else f"from 0 to {int(end) - 1:,}"
    if isinstance(column.below, str):
        values += f", as {column.below} is {int(end):,}"
    # A token or a sequence may be without a label, which its kind allows or not; what is masked has one.
    or_none = f", or {IGNORED} for none" if column.least == IGNORED and column.width != PREDICTIONS else ""
    return f"{values}{or_none}; {column.least} {NOWHERE[column.width]}"


def _are_wrong(values: np.ndarray, used: np.ndarray, column: Column, end: float) -> np.ndarray:
    right = np.isfinite(values) if end == float("inf") else (values >= 0) & (values < end)
    if column.least == IGNORED:
        right |= values == IGNORED
    return np.where(used, ~right, values != column.least)


def _open(path: Path) -> pa.ipc.RecordBatchFileReader:
    try:
        return pa.ipc.open_file(pa.memory_map(str(path)))
    except pa.ArrowInvalid as error:
        raise InputError(f"{path} is no Arrow file, or was cut off ({error}); make the rows again") from None


def read_tokenizer(path: Path) -> tuple[dict[str, int], int]:
    """Read the ids of the special tokens that there are, and the size of the vocabulary, from tokenizer.json.

    Raises:
        InputError: not there, not JSON, or without [CLS].
    """
    try:
        values = read_json(path)
    except FileNotFoundError:
        raise InputError(f"{path} is not there: run the tokenizer stage first") from None
    except ValueError as error:
        raise InputError(f"{path} is not JSON ({error}); run the tokenizer stage again") from None
    try:
        vocabulary = dict(values.get("model", {}).get("vocab", {}))
        vocabulary.update({token["content"]: token["id"] for token in values.get("added_tokens", [])})
        size = max(vocabulary.values(), default=0) + 1
    except (AttributeError, KeyError, TypeError, ValueError):
        raise InputError(f"{path} is not laid out as a tokenizer; run the tokenizer stage again") from None
    if CLS not in vocabulary:
        raise InputError(f"{path} has no token [CLS]; BERT needs one: look at tokenizer.path")
    return {token: vocabulary[token] for token in (CLS, SEP, UNK) if token in vocabulary}, size
