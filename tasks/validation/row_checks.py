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
from tasks.rows.unknown import UnknownTokens
from tasks.validation import row_features
from tasks.validation.checks import RECORD, Check, DataSet, Frame, Total, Totals, gathered
from tasks.validation.column_rules import ColumnRules
from tasks.validation.histograms import Lengths
from tasks.validation.row_rules import RowLimits, RulesOf

CLS, SEP, UNK = "[CLS]", "[SEP]", "[UNK]"
BATCH_TOKENS = 1 << 20
"""Tokens looked at together: the temporary arrays stay in the processor's cache."""


class RowData(DataSet):
    """The rows of one folder."""

    record = "row"

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
        return gathered(self._features(batch) for batch in self._batches())

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
        found, features = row_features.find_sequences(rows["sequence_ids"])
        features.update(row_features.token_features(rows, found, self.cls_id))
        features.update(self._columns.features(rows, found))
        features.update(self.rules.features(rows, found))
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
        return values.to_numpy(zero_copy_only=False).reshape(-1, width)

    def totals(self) -> Totals:
        seen = self._seen
        return {
            "rows": Total(seen["rows"]),
            "nulls": Total(seen["nulls"]),
            "manifest_sequences": Total(seen["sequences"]),
            "manifest_real_tokens": Total(seen["real_tokens"]),
            "unknown_share": Total(self._unknown.share, str(self._unknown)),
            **self.rules.totals(),
        }

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
