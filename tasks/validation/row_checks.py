"""What packed rows must be: data/rows/<name>/, with features.parquet beside the rows of questions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tasks.project import artifacts
from tasks.project.errors import InputError
from tasks.project.files import read_json, sha256_of
from tasks.project.row_folders import Manifest, read_manifest
from tasks.reading.text_files import read_reading
from tasks.rows.row_files import row_schema
from tasks.validation import row_features, text_features
from tasks.validation.checks import RECORD, Check, Frame, Totals, differing, gathered
from tasks.validation.histograms import Lengths
from tasks.validation.row_features import Columns, Sequences
from tasks.validation.row_requirements import RowLimits, prerequisites, record_checks, total_checks

BATCH_TOKENS = 1 << 20
"""Tokens looked at together: the temporary arrays stay in the processor's cache."""
WINDOWS = pa.schema(
    [
        ("feature_id", pa.int32()),
        ("example_id", pa.string()),
        ("example_index", pa.int32()),
        ("n_tokens", pa.int32()),
        ("context_start", pa.int32()),
        ("offsets", pa.list_(pa.int32())),
    ]
)
"""Columns of features.parquet."""


class RowData:
    """The rows of one folder."""

    record = "row"

    def __init__(
        self, name: str, folder: Path, tokenizer: Path, max_positions: int, masked_fraction: float | None
    ) -> None:
        """Open the rows of `folder`.

        Args:
            tokenizer: Folder of tokenizer.json.
            masked_fraction: pretrain_rows.masked_fraction, None for rows that are not of pre-training.

        Raises:
            InputError: no manifest, or no tokenizer that can be used.
        """
        self.name, self.folder = name, Path(folder)
        self.manifest: Manifest = read_manifest(self.folder)
        tokenizer_file = Path(tokenizer) / "tokenizer.json"
        self.cls_id, self.vocab_size = read_tokenizer(tokenizer_file)
        self.tokenizer_sha256 = sha256_of(tokenizer_file)
        self.schema = row_schema(
            self.manifest.kind,
            self.manifest.row_length,
            self.manifest.max_sequences,
            self.manifest.max_predictions,
            self.manifest.vocab_size,
        )
        self.limits = RowLimits(
            name, self.manifest, self.vocab_size, self.tokenizer_sha256, max_positions, masked_fraction or 0.0
        )
        self.prerequisites: Sequence[Check] = prerequisites(self.folder, self.limits)
        self.total_checks: Sequence[Check] = total_checks(self.limits)
        self.record_checks: Sequence[Check] = record_checks(self.limits)
        self._is_pretrain = self.manifest.kind == "pretrain"
        self._has_windows = self.manifest.kind == "question_answering"
        self._seen: dict[str, int] = dict.fromkeys(
            ("rows", "sequences", "real_tokens", "masked", "random_next", "answered", "labelled", "nulls"), 0
        )
        self._tokens_per_sequence, self._sequences_per_row, self._masked_per_row = Lengths(), Lengths(), Lengths()
        self._windows: Columns = {}
        self._window_ids = np.zeros(0, np.int64)
        # The examples of other rows count from 0; those of questions are the lines of features.parquet.
        self._feature_seen = np.zeros(self.manifest.sequences, np.int64)

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
        if self._has_windows:
            examples["schema"] += self._read_windows()
        same = self.manifest.tokenizer_sha256 == self.tokenizer_sha256
        shown = {name: differing(examples[name]) for name in ("schema", "manifest_files")}
        shown["tokenizer"] = f"rows of tokenizer {self.manifest.tokenizer_sha256}"
        return Totals(
            {
                "schema": len(examples["schema"]),
                "manifest_files": len(examples["manifest_files"]),
                "tokenizer": 0 if same else 1,
                "vocab_size": self.manifest.vocab_size,
            },
            examples,
            shown,
        )

    def _read_windows(self) -> list[str]:
        """Keep the integers of features.parquet; returns what is wrong with its columns."""
        path = self.folder / artifacts.FEATURES
        if not path.is_file():
            return [f"{path.name} is missing"]
        differences = text_features.schema_differences(path, WINDOWS)
        if differences:
            return differences
        required = ["feature_id", "n_tokens", "context_start"]
        table = text_features.open_parquet(path).read(columns=required)
        columns = {name: table.column(name).fill_null(-1).to_numpy().astype(np.int64) for name in required}
        self._window_ids = columns.pop("feature_id")
        self._windows = columns
        self._feature_seen = np.zeros(len(self._window_ids), np.int64)
        return []

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
        if self._is_pretrain:
            features.update(row_features.mask_features(rows, found, self.vocab_size))
            features.update(row_features.next_sentence_features(rows, found))
            self._masked_per_row.add(features["masked"])
        else:
            if self._has_windows:
                features.update(row_features.answer_features(rows, found, self._windows))
            else:
                features.update(row_features.label_features(rows, found, self.manifest.num_labels))
            ids = rows["feature_ids"].reshape(-1)
            known = ids[(ids >= 0) & (ids < len(self._feature_seen))]
            self._feature_seen += np.bincount(known, minlength=len(self._feature_seen))
        first = self._seen["rows"]
        self._note(found, features)
        labels = np.arange(first, first + batch.num_rows)
        judged = {check.name: features[check.name].astype(np.int64) for check in self.record_checks}
        return {RECORD: np.array([f"row {label}" for label in labels], dtype=object), **judged}

    def _note(self, found: Sequences, features: Columns) -> None:
        self._seen["rows"] += len(found.per_row)
        self._seen["real_tokens"] += int(found.real.sum())
        for name in ("sequences", "masked", "random_next", "answered", "labelled"):
            if name in features:
                self._seen[name] += int(features[name].sum())
        self._tokens_per_sequence.add(found.length)
        self._sequences_per_row.add(found.per_row)

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
        values = {
            "rows": float(seen["rows"]),
            "nulls": seen["nulls"],
            "manifest_sequences": seen["sequences"],
            "manifest_real_tokens": seen["real_tokens"],
        }
        if self._is_pretrain:
            values["masked_share"] = seen["masked"] / max(1, seen["real_tokens"])
            values["masked_tokens"] = seen["masked"]
            values["random_next_share"] = seen["random_next"] / max(1, seen["sequences"])
            return Totals(values)
        wrong = np.flatnonzero(self._feature_seen != 1)
        if not self._has_windows:
            values["examples_once"], values["labels"] = len(wrong), seen["labelled"]
            return Totals(values, {"examples_once": [f"example {i}: {self._feature_seen[i]} times" for i in wrong[:3]]})
        misnumbered = np.flatnonzero(self._window_ids != np.arange(len(self._window_ids)))
        values["features_once"] = len(wrong)
        values["features_numbered"] = len(misnumbered)
        values["answers"] = seen["answered"]
        return Totals(
            values,
            {
                "features_once": [f"feature {i}: {self._feature_seen[i]} times" for i in wrong[:3]],
                "features_numbered": [f"line {i}: feature_id {self._window_ids[i]}" for i in misnumbered[:3]],
            },
            {
                "features_once": f"{len(wrong):,} of {len(self._feature_seen):,} features are not there exactly once",
                "features_numbered": f"{len(misnumbered):,} lines with another feature_id",
            },
        )

    def statistics(self) -> dict[str, Any]:
        seen, manifest = self._seen, self.manifest
        numbers: dict[str, Any] = {
            "rows": seen["rows"],
            "tokens in a row": manifest.row_length,
            "sequences": seen["sequences"],
            "sequences per row": round(seen["sequences"] / max(1, seen["rows"]), 3),
            "real tokens": seen["real_tokens"],
            "share of real tokens": round(seen["real_tokens"] / max(1, seen["rows"] * manifest.row_length), 4),
            "mean tokens of a sequence": self._tokens_per_sequence.mean,
        }
        histograms = [
            self._tokens_per_sequence.histogram("Length of sequences", "tokens"),
            self._sequences_per_row.histogram("Sequences in a row", "sequences"),
        ]
        if self._is_pretrain:
            numbers.update(read_reading(self.folder)["numbers"])
            numbers["masked tokens"] = seen["masked"]
            numbers["share of masked tokens"] = round(seen["masked"] / max(1, seen["real_tokens"]), 4)
            numbers["share of random next sentences"] = round(seen["random_next"] / max(1, seen["sequences"]), 4)
            histograms.append(self._masked_per_row.histogram("Masked tokens in a row", "tokens"))
        else:
            of_tokens = row_features.TOKEN_LABELS in self.schema.names
            numbers[f"labelled {'tokens' if of_tokens else 'sequences'}"] = seen["labelled"]
            if self._has_windows:
                numbers["sequences with an answer"] = seen["answered"]
        return {"numbers": numbers, "histograms": histograms}


def _open(path: Path) -> pa.ipc.RecordBatchFileReader:
    try:
        return pa.ipc.open_file(pa.memory_map(str(path)))
    except pa.ArrowInvalid as error:
        raise InputError(f"{path} is no Arrow file, or was cut off ({error}); make the rows again") from None


def read_tokenizer(path: Path) -> tuple[int, int]:
    """Id of [CLS] and size of the vocabulary, from tokenizer.json.

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
    if "[CLS]" not in vocabulary:
        raise InputError(f"{path} has no token [CLS]; BERT needs one: look at tokenizer.path")
    return vocabulary["[CLS]"], size
