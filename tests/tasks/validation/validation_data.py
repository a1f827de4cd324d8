"""Small data sets that are valid, to be damaged one thing at a time by test_validate.py."""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tasks.downstream.squad import checks
from tasks.downstream.squad.schemas import FEATURES_SCHEMA
from tasks.rows.row_files import row_schema
from tasks.stage.row_folders import Manifest
from tasks.validation import pretraining_checks
from tasks.validation.checks import DataSet
from tasks.validation.pretraining_checks import PretrainRows
from tasks.validation.row_checks import RowData, RowSource
from tasks.validation.validate import validate_data
from tasks.validation.validators import GxValidator, LimitValidator
from tasks.vocabulary.fast_tokenizer import make_wordpiece

CLS, SEP, VOCABULARY = 2, 3, 40
ROW_LENGTH, MAX_SEQUENCES, MAX_PREDICTIONS, MAX_POSITIONS = 16, 2, 3, 8
MASKED_FRACTION = 0.15
QUESTIONS = pa.schema(
    [
        ("id", pa.string()),
        ("title", pa.string()),
        ("context", pa.string()),
        ("question", pa.string()),
        ("answers", pa.list_(pa.struct([("text", pa.string()), ("answer_start", pa.int32())]))),
    ]
)
"""Columns of questions that may be null."""


def corpus_columns() -> dict[str, list[Any]]:
    return {
        "document_id": [f"doc-{i}" for i in range(12)],
        "title": [f"Town {i}" for i in range(12)],
        "text": [f"The town number {i} lies by a river. It was founded in {1200 + i}." for i in range(12)],
    }


def write_corpus(folder: Path, columns: dict[str, list[Any]], schema: pa.Schema = pretraining_checks.SCHEMA) -> Path:
    """Two files, seven documents in the first."""
    folder.mkdir(parents=True, exist_ok=True)
    table = pa.table(columns, schema=schema)
    pq.write_table(table.slice(0, 7), folder / "part-00000.parquet")
    pq.write_table(table.slice(7), folder / "part-00001.parquet")
    return folder


def question_columns(split: str) -> dict[str, list[Any]]:
    """Twelve questions with one answer, the first with two; characters outside of ASCII come before it."""
    contexts = [f"Él fundó la ciudad {split}-{i} in 1{i:03d}." for i in range(12)]
    answers = [[{"text": f"1{i:03d}", "answer_start": contexts[i].index(f"1{i:03d}.")}] for i in range(12)]
    answers[0].append({"text": "ciudad", "answer_start": 12})
    return {
        "id": [f"{split}-{i}" for i in range(12)],
        "title": [""] * 12,
        "context": contexts,
        "question": [f"When was {split}-{i} founded?" for i in range(12)],
        "answers": answers,
    }


def write_questions(
    folder: Path, train: dict[str, list[Any]], dev: dict[str, list[Any]], schema: pa.Schema = QUESTIONS
) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(train, schema=schema), folder / "train.parquet")
    pq.write_table(pa.table(dev, schema=schema), folder / "dev.parquet")
    return folder


def write_tokenizer(folder: Path) -> Path:
    """A tokenizer with special tokens 0 to 4."""
    folder.mkdir(parents=True, exist_ok=True)
    special = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
    words = tuple(f"word{i}" for i in range(VOCABULARY - len(special)))
    make_wordpiece((*special, *words), lowercase=True).write(512, folder)
    return folder


def row_columns(kind: str, rows: int = 4) -> dict[str, np.ndarray]:
    """Rows of a sequence of 8 tokens, [CLS] a a a [SEP] b b [SEP], and one of 6, [CLS] a a [SEP] b [SEP]; the last row
    has only the first."""
    first = [CLS, 10, 11, 12, SEP, 13, 14, SEP]
    second = [CLS, 20, 21, SEP, 22, SEP]
    n, pad = rows, ROW_LENGTH - 14
    columns = {
        "input_ids": np.tile(np.array(first + second + [0] * pad), (n, 1)),
        "token_type_ids": np.tile(np.array([0] * 5 + [1] * 3 + [0] * 4 + [1] * 2 + [0] * pad), (n, 1)),
        "position_ids": np.tile(np.array([*range(8), *range(6)] + [0] * pad), (n, 1)),
        "sequence_ids": np.tile(np.array([1] * 8 + [2] * 6 + [0] * pad), (n, 1)),
        "cls_positions": np.tile(np.array([0, 8]), (n, 1)),
    }
    if kind == "pretrain":
        columns["masked_positions"] = np.tile(np.array([2, 9, 0]), (n, 1))
        columns["masked_labels"] = np.tile(np.array([15, 25, -100]), (n, 1))
        columns["next_sentence_labels"] = np.tile(np.array([0, 1]), (n, 1))
    else:
        columns["start_positions"] = np.tile(np.array([5, 12]), (n, 1))
        columns["end_positions"] = np.tile(np.array([6, 12]), (n, 1))
        columns["feature_ids"] = np.arange(2 * n).reshape(n, 2)
    for name in ("input_ids", "token_type_ids", "position_ids", "sequence_ids"):
        columns[name][-1, 8:] = 0
    absent = {
        "cls_positions": -1,
        "feature_ids": -1,
        "masked_labels": -100,
        "next_sentence_labels": -100,
        "start_positions": -100,
        "end_positions": -100,
    }
    for name in columns.keys() & absent.keys():
        columns[name][-1, 1] = absent[name]
    if kind == "pretrain":
        columns["masked_positions"][-1, 1] = 0
    return columns


def window_columns(rows: int = 4) -> dict[str, list[Any]]:
    """The windows of `row_columns`, in order."""
    n = 2 * rows - 1
    lengths = [8 if i % 2 == 0 else 6 for i in range(n)]
    starts = [5 if i % 2 == 0 else 4 for i in range(n)]
    return {
        "feature_id": list(range(n)),
        "example_id": [f"train-{i}" for i in range(n)],
        "example_index": list(range(n)),
        "n_tokens": lengths,
        "context_start": starts,
        "offsets": [[0, 1] * (n_tokens - 1 - start) for n_tokens, start in zip(lengths, starts, strict=True)],
    }


def write_rows(
    folder: Path,
    kind: str,
    columns: dict[str, np.ndarray],
    tokenizer: Path,
    windows: dict[str, list[Any]] | None = None,
    **manifest: Any,
) -> Path:
    """Rows in two files, with a manifest counted from the undamaged rows; `manifest` replaces entries of it."""
    folder.mkdir(parents=True, exist_ok=True)
    predictions = MAX_PREDICTIONS if kind == "pretrain" else 0
    schema = row_schema(kind, ROW_LENGTH, MAX_SEQUENCES, predictions, VOCABULARY)
    n = len(columns["input_ids"])
    files = {"rows-00000.arrow": n - 1, "rows-00001.arrow": 1} if n > 1 else {"rows-00000.arrow": n}
    done = 0
    for name, count in files.items():
        arrays = [
            pa.FixedSizeListArray.from_arrays(
                pa.array(columns[field.name][done : done + count].reshape(-1), field.type.value_type),
                type=field.type,
            )
            for field in schema
        ]
        with pa.ipc.new_file(str(folder / name), schema) as writer:
            writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=schema))
        done += count
    values: dict[str, Any] = {
        "kind": kind,
        "row_length": ROW_LENGTH,
        "max_sequences": MAX_SEQUENCES,
        "max_predictions": predictions,
        "vocab_size": VOCABULARY,
        "seed": 1,
        "rows": n,
        "files": files,
        "tokenizer_sha256": hashlib.sha256((tokenizer / "tokenizer.json").read_bytes()).hexdigest(),
        "sequences": 2 * n - 1 if n else 0,
        "real_tokens": 14 * n - 6 if n else 0,
    }
    (folder / "manifest.json").write_text(Manifest(**{**values, **manifest}).to_json(), encoding="utf-8")
    if windows is not None:
        pq.write_table(pa.table(windows, schema=FEATURES_SCHEMA), folder / "features.parquet")
    return folder


def failed_checks(verdict: dict[str, Any]) -> list[str]:
    assert verdict["valid"] == all(check["ok"] for check in verdict["checks"])
    return [check["name"] for check in verdict["checks"] if not check["ok"]]


@functools.cache
def gx() -> GxValidator:
    return GxValidator()


def validate(data: DataSet, judge: GxValidator | LimitValidator | None = None) -> dict[str, Any]:
    return validate_data(data, judge or gx()).verdict


def judged_rows(
    folder: Path,
    tokenizer: Path,
    name: str = "phase1",
    columns: dict[str, np.ndarray] | None = None,
    windows: dict[str, list[Any]] | None = None,
    masked: float = MASKED_FRACTION,
    **manifest: Any,
) -> dict[str, Any]:
    """The verdict on sound rows, or on `columns`, `windows` and entries of the manifest in their place."""
    kind = "question_answering" if name.startswith("squad") else "pretrain"
    columns = row_columns(kind) if columns is None else columns
    if kind == "question_answering" and windows is None:
        windows = window_columns(len(columns["input_ids"]))
    write_rows(folder / name, kind, columns, tokenizer, windows, **manifest)
    if kind == "pretrain":
        return validate(pretrain_data(folder / name, tokenizer, masked=masked))
    return validate(answer_data(folder / name, tokenizer, training=name == "squad-train"))


def source_of(folder: Path, tokenizer: Path, section: str, max_positions: int, **more: Any) -> RowSource:
    return RowSource(folder.name, folder, tokenizer, section, max_positions, **more)


def pretrain_data(
    folder: Path,
    tokenizer: Path,
    max_positions: int = MAX_POSITIONS,
    masked: float = MASKED_FRACTION,
    max_unknown_share: float = 1.0,
) -> RowData:
    """Rows of pre-training, to be judged."""
    section = f"pretrain_rows.{folder.name}"
    source = source_of(folder, tokenizer, section, max_positions, max_unknown_share=max_unknown_share)
    return PretrainRows(source, masked)


def answer_data(folder: Path, tokenizer: Path, *, training: bool) -> RowData:
    return checks.AnswerRows(source_of(folder, tokenizer, "squad_rows", MAX_POSITIONS, training=training))
