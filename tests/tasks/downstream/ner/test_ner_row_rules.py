"""Rows of named entities that are not what their stage writes are found, each fault by its own check."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.downstream.ner.checks import TagRows
from tasks.downstream.ner.schemas import FEATURES_SCHEMA
from tasks.validation.checks import format_failures
from tests.tasks.validation.validation_data import (
    failed_checks,
    row_columns,
    source_of,
    validate,
    write_rows,
    write_tokenizer,
)

KIND = "token_classification"
Columns = dict[str, np.ndarray]


def columns() -> Columns:
    """Four rows of the windows of `row_columns`; the words of each are at its tokens 1 and 3."""
    found = row_columns("question_answering")
    labels = np.full(found["input_ids"].shape, -100)
    labels[:, [1, 3, 9, 11]] = [0, 2, 1, 0]
    labels[-1, 8:] = -100
    names = ("input_ids", "token_type_ids", "position_ids", "sequence_ids", "cls_positions", "feature_ids")
    return {**{name: found[name] for name in names}, "token_labels": labels}


def judged(folder: Path, damage: Callable[[Columns], None], *, training: bool = True) -> list[str]:
    """Names of the checks that fail once rows were damaged."""
    rows, tokenizer = columns(), write_tokenizer(folder / "tokenizer")
    damage(rows)
    written = write_rows(folder / "rows", KIND, rows, tokenizer, num_labels=3)
    windows = {
        "feature_id": list(range(7)),
        "example_index": list(range(7)),
        "n_tokens": [8 if number % 2 == 0 else 6 for number in range(7)],
        "positions": [[1, 3]] * 7,
    }
    pq.write_table(pa.table(windows, schema=FEATURES_SCHEMA), written / "features.parquet")
    source = source_of(written, tokenizer, "downstream.names.rows", 8, training=training)
    verdict = validate(TagRows(source))
    failed = failed_checks(verdict)
    assert not failed or "downstream.names.rows" in format_failures(verdict, "")
    return failed


def label(row: int, place: int, value: int) -> Callable[[Columns], None]:
    def damage(rows: Columns) -> None:
        rows["token_labels"][row, place] = value

    return damage


@pytest.mark.parametrize(
    ("damage", "failed"),
    [
        (lambda rows: None, []),
        (label(0, 1, 3), ["token_labels"]),
        (label(0, 1, -1), ["token_labels"]),
        (label(3, 15, 1), ["token_labels"]),
        (label(0, 0, 1), ["labels_at_words"]),
        (label(0, 1, -100), ["labels"]),
        (label(0, 2, 1), ["labels"]),
        (lambda rows: rows["feature_ids"].__setitem__((0, 0), 1), ["features_once", "feature_lengths"]),
    ],
)
def test_each_fault_of_rows_to_learn_from_is_found(
    tmp_path: Path, damage: Callable[[Columns], None], failed: list[str]
) -> None:
    assert sorted(judged(tmp_path, damage)) == sorted(failed)


def test_rows_to_predict_may_lack_labels_of_types_that_train_has_not(tmp_path: Path) -> None:
    assert judged(tmp_path / "less", label(0, 1, -100), training=False) == []
    assert judged(tmp_path / "more", label(0, 2, 1), training=False) == ["labels"]


def test_rows_without_features_are_refused(tmp_path: Path) -> None:
    tokenizer = write_tokenizer(tmp_path / "tokenizer")
    folder = write_rows(tmp_path / "rows", KIND, columns(), tokenizer, num_labels=3)
    verdict = validate(TagRows(source_of(folder, tokenizer, "downstream.names.rows", 8)))
    assert failed_checks(verdict) == ["schema"]
