from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from tasks.rows.packing import pack_sequences
from tasks.rows.row_files import RowLayout, RowWriter, check_geometry, row_schema
from tasks.stage.errors import InputError
from tasks.stage.row_folders import read_manifest
from tests.tasks.pretraining.row_inputs import folder_bytes, read_rows


def question_columns(rows: int, row_length: int = 8, max_sequences: int = 2) -> dict[str, np.ndarray]:
    """`rows` rows, each with one sequence of 3 tokens: its own number, twice, and a 3."""
    tokens = np.zeros((rows, row_length), np.uint16)
    tokens[:, 0] = tokens[:, 1] = np.arange(rows) + 10
    tokens[:, 2] = 3
    present = (tokens > 0).astype(np.uint8)
    slots = np.full((rows, max_sequences), -1, np.int16)
    slots[:, 0] = 0
    return {
        "input_ids": tokens,
        "token_type_ids": np.zeros_like(present),
        "position_ids": (np.arange(row_length) * present).astype(np.uint16),
        "sequence_ids": present,
        "cls_positions": slots,
        "start_positions": slots,
        "end_positions": slots,
        "feature_ids": slots.astype(np.int32),
    }


def write(folder: Path, sizes: list[int], rows_per_file: int) -> Path:
    folder.mkdir()
    with RowWriter(folder, "question_answering", 8, 2, 0, 2000, rows_per_file) as writer:
        for size in sizes:
            writer.write(question_columns(size))
        writer.finish("a" * 64, seed=0)
    return folder


def test_files_are_of_bounded_size_and_the_manifest_counts_them(tmp_path: Path) -> None:
    folder = write(tmp_path / "rows", [5, 1, 6], rows_per_file=5)
    manifest = read_manifest(folder)
    assert manifest.files == {"rows-00000.arrow": 5, "rows-00001.arrow": 5, "rows-00002.arrow": 2}
    assert (manifest.rows, manifest.sequences, manifest.real_tokens) == (12, 12, 36)
    assert read_rows(folder)["input_ids"][:, 0].tolist() == [10, 11, 12, 13, 14, 10, 10, 11, 12, 13, 14, 15]


def test_the_same_rows_give_the_same_bytes(tmp_path: Path) -> None:
    assert folder_bytes(write(tmp_path / "a", [3, 4], 4)) == folder_bytes(write(tmp_path / "b", [3, 4], 4))


def test_a_folder_without_finish_is_no_row_folder(tmp_path: Path) -> None:
    with RowWriter(tmp_path, "question_answering", 8, 2, 0, 2000) as writer:
        writer.write(question_columns(3))
    with pytest.raises(InputError, match="manifest.json is missing"):
        read_manifest(tmp_path)


def test_a_value_that_does_not_fit_its_column_is_never_wrapped(tmp_path: Path) -> None:
    columns = question_columns(2)
    columns["input_ids"] = columns["input_ids"].astype(np.uint32) + 70000
    with RowWriter(tmp_path, "question_answering", 8, 2, 0, 2000) as writer, pytest.raises(pa.ArrowInvalid):
        writer.write(columns)


def test_large_vocabularies_take_32_bits() -> None:
    kinds = {size: row_schema("pretrain", 8, 2, 2, size).field("input_ids").type.value_type for size in (65536, 65537)}
    assert kinds == {65536: pa.uint16(), 65537: pa.uint32()}


def test_sequences_lie_one_after_the_other_from_position_0() -> None:
    lengths = np.array([3, 5, 2])
    layout = RowLayout.from_packs(pack_sequences(lengths, 8, 2), lengths, 8)  # rows: 5 + 3, 2
    columns = layout.columns(np.array([11, 12, 13, 21, 22, 23, 24, 25, 31, 32], np.uint16), np.array([1, 3, 2]))
    order = np.argsort(columns["input_ids"][:, 0])
    assert {name: values[order].tolist() for name, values in columns.items()} == {
        "input_ids": [[21, 22, 23, 24, 25, 11, 12, 13], [31, 32, 0, 0, 0, 0, 0, 0]],
        "token_type_ids": [[0, 0, 0, 1, 1, 0, 1, 1], [0, 0, 0, 0, 0, 0, 0, 0]],
        "position_ids": [[0, 1, 2, 3, 4, 0, 1, 2], [0, 1, 0, 0, 0, 0, 0, 0]],
        "sequence_ids": [[1, 1, 1, 1, 1, 2, 2, 2], [1, 1, 0, 0, 0, 0, 0, 0]],
        "cls_positions": [[0, 5], [0, -1]],
    }
    assert layout.start_of.tolist() == [5, 0, 0]
    assert layout.per_sequence(np.array([7, 8, 9]), -100)[order].tolist() == [[8, 7], [9, -100]]


@pytest.mark.parametrize(
    ("geometry", "message"),
    [
        ((40000, 3, 0), "phase1.row_length=40000 must be 4 to 32767"),
        ((128, 300, 0), "max_sequences_per_row=300 must be 1 to 255"),
        ((128, 3, 2), "max_predictions_per_row=2 must be between max_sequences_per_row=3"),
        ((128, 3, 129), "row_length=128"),
        ((2, 0, 0), "row_length=2.*max_sequences_per_row=0"),
    ],
)
def test_rows_the_schema_cannot_hold_are_refused(geometry: tuple[int, int, int], message: str) -> None:
    with pytest.raises(InputError, match=message):
        check_geometry(*geometry, "phase1")
