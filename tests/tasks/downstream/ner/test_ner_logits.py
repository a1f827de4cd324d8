"""Logits and windows that do not belong together are refused; the names of the classes come with the rows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.downstream.ner.schemas import FEATURES_SCHEMA
from tasks.downstream.ner.scores import WordLogits, read_word_logits
from tasks.downstream.scoring.logits import FeatureFiles
from tasks.records.labels import add_labels, read_example_labels, read_parquet_labels, read_row_labels, write_labels
from tasks.stage.errors import InputError

LABELS = ("O", "B-a", "I-a")
WINDOWS = {"feature_id": [0, 1, 2], "example_index": [0, 0, 1], "n_tokens": [5, 4, 3], "positions": [[1, 2], [2], [1]]}


def write(folder: Path, windows: dict[str, list], logits: list[list[float]]) -> tuple[Path, Path]:
    table = pa.table(windows, schema=add_labels(FEATURES_SCHEMA, LABELS))
    pq.write_table(table, folder / "features.parquet")
    schema = pa.schema([("feature_id", pa.int32()), ("logits", pa.list_(pa.float32()))])
    columns = [pa.array(range(len(logits)), pa.int32()), pa.array(logits, pa.list_(pa.float32()))]
    with pa.ipc.new_file(str(folder / "logits.arrow"), schema) as writer:
        writer.write_batch(pa.record_batch(columns, schema=schema))
    return folder / "features.parquet", folder / "logits.arrow"


def read(files: tuple[Path, Path], words: list[int]) -> WordLogits:
    return read_word_logits(FeatureFiles(*files, "{}@ner".format), words)


def numbered(tokens: list[int]) -> list[list[float]]:
    """The logits of token n of all are 3 n, 3 n + 1 and 3 n + 2."""
    flat = np.arange(3.0 * sum(tokens))
    return [part.tolist() for part in np.split(flat, np.cumsum(3 * np.array(tokens))[:-1])]


def test_each_word_has_the_logits_of_its_first_piece(tmp_path: Path) -> None:
    found = read(write(tmp_path, WINDOWS, numbered([5, 4, 3])), [3, 1])
    assert found.labels == LABELS
    assert found.values[:, 0].tolist() == [3, 6, 3 * 7, 3 * 10]
    assert found.bounds.tolist() == [0, 3, 4]


@pytest.mark.parametrize(
    ("changed", "tokens", "words", "said"),
    [
        ({}, [5, 4, 3], [3, 2], "do not match the sentences"),
        ({}, [5, 4, 3], [4], "do not match the sentences"),
        ({"example_index": [0, 1, 0]}, [5, 4, 3], [3, 1], "do not match the sentences"),
        ({}, [5, 4], [3, 1], "lacks feature 2: 2 lines for 3 features. Run the stage predict@ner again"),
        ({}, [5, 4, 4], [3, 1], "has 12 logits for feature 2, 9 are required"),
        ({"positions": [[1, 5], [2], [1]]}, [5, 4, 3], [3, 1], "invalid word positions"),
        ({"positions": [[0, 2], [2], [1]]}, [5, 4, 3], [3, 1], "invalid word positions"),
        ({"feature_id": [0, 2, 1]}, [5, 4, 3], [3, 1], "feature_id must be 0, 1"),
    ],
)
def test_what_does_not_belong_together_is_refused(
    tmp_path: Path, changed: dict[str, list], tokens: list[int], words: list[int], said: str
) -> None:
    with pytest.raises(InputError, match=said):
        read(write(tmp_path, {**WINDOWS, **changed}, numbered(tokens)), words)


def test_logits_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    logits = numbered([5, 4, 3])
    logits[1][0] = float("nan")
    with pytest.raises(InputError, match=r"a logit of feature 1 is nan\. The training diverged"):
        read(write(tmp_path, WINDOWS, logits), [3, 1])


@pytest.mark.parametrize("missing", ["features.parquet", "logits.arrow"])
def test_files_that_are_missing_or_damaged_are_named(tmp_path: Path, missing: str) -> None:
    files = write(tmp_path, WINDOWS, numbered([5, 4, 3]))
    for text in (b"x", None):
        if text is None:
            (tmp_path / missing).unlink()
        else:
            (tmp_path / missing).write_bytes(text)
        with pytest.raises(InputError, match=missing):
            read(files, [3, 1])


def test_the_names_of_the_classes_come_with_the_examples_and_the_rows(tmp_path: Path) -> None:
    write_labels(tmp_path, LABELS)
    assert read_example_labels(tmp_path, "examples@names") == LABELS
    features, _ = write(tmp_path, WINDOWS, numbered([5, 4, 3]))
    assert read_parquet_labels(features)[0] == read_row_labels(tmp_path) == LABELS
    (tmp_path / "labels.json").write_text('{"labels": "O"}')
    with pytest.raises(InputError, match="has no class names .*examples@names"):
        read_example_labels(tmp_path, "examples@names")
    pq.write_table(pa.table(WINDOWS), features)
    with pytest.raises(InputError, match="has no class names"):
        read_row_labels(tmp_path)
    with pytest.raises(InputError, match="is missing"):
        read_row_labels(tmp_path / "nothing")
