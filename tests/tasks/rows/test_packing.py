"""Packing: best fit, nothing lost, and `packing: false` changes only the number of sequences in a row."""

import random
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tasks.downstream import rows
from tasks.params.strict_yaml import read_yaml
from tasks.pretraining.rows import pretrain_rows
from tasks.rows.packing import pack_sequences, plan_packs
from tasks.rows.row_files import RowLayout, RowWriter, check_geometry, row_schema
from tasks.stage import artifacts
from tasks.stage.errors import InputError
from tasks.stage.row_folders import read_manifest
from tests.places import ROOT
from tests.tasks.downstream.entries import write_parameters
from tests.tasks.pretraining.row_inputs import (
    LETTERS,
    WORDS,
    folder_bytes,
    random_texts,
    read_rows,
    write_corpus,
    write_questions,
)
from tests.tasks.tiny_model import write_tiny_model


@pytest.mark.parametrize(
    ("lengths", "most", "plan"),
    [
        # 10 opens a row; 7 and 6 open rows with 5 and 6 left; the 5 fits 7 + 5 exactly; the 3 goes to the
        # row with 6 left, not to an empty one; the two 2s: one fills the 10, one goes next to 6 + 3.
        ([10, 7, 6, 5, 3, 2, 2], 3, [(1, (6, 3, 2)), (1, (7, 5)), (1, (10, 2))]),
        # seven of 4: three a row, one left over
        ([4] * 7, 3, [(1, (4,)), (2, (4, 4, 4))]),
        ([4] * 7, 2, [(1, (4,)), (3, (4, 4))]),
        # five rows of one 8; three 2s: the first row takes two of them, the next the third
        ([8] * 5 + [2] * 3, 3, [(1, (8, 2)), (1, (8, 2, 2)), (3, (8,))]),
        ([3, 3, 2], 1, [(1, (2,)), (2, (3,))]),
        ([], 3, []),
    ],
)
def test_each_length_goes_into_the_fullest_row_that_has_room(lengths: list[int], most: int, plan: list[Any]) -> None:
    counts = np.bincount(np.array(lengths, int), minlength=13).tolist()
    assert sorted(plan_packs(counts, 12, most)) == plan


@pytest.mark.parametrize("seed", range(20))
def test_every_sequence_lies_in_one_row_as_best_fit_puts_one_after_the_other(seed: int) -> None:
    draw = random.Random(seed)
    row_length, most = draw.randint(1, 60), draw.randint(1, 6)
    shortest = draw.randint(1, row_length)
    lengths = np.array([draw.randint(shortest, row_length) for _ in range(draw.randint(1, 300))])
    packs = pack_sequences(lengths, row_length, most)
    assert packs.shape[1] == most
    assert sorted(packs[packs >= 0].tolist()) == list(range(len(lengths)))
    assert np.where(packs >= 0, lengths[packs], 0).sum(axis=1).max() <= row_length
    # present sequences come first, and no row is empty
    assert (packs[:, 0] >= 0).all()
    assert (np.diff((packs >= 0).astype(int), axis=1) <= 0).all()
    rows: list[list[int]] = []
    for length in sorted(lengths.tolist(), reverse=True):
        fits = [row for row in rows if len(row) < most and sum(row) + length <= row_length]
        if fits:
            max(fits, key=sum).append(length)
        else:
            rows.append([length])
    # Ties between rows of equal room and different contents may fall out differently: compare the number.
    assert abs(len(packs) - len(rows)) <= 0.03 * len(rows)


def test_what_cannot_lie_in_a_row_is_refused() -> None:
    for lengths, message in (([3, 13], "13 tokens"), ([0], "without tokens")):
        with pytest.raises(InputError, match=message):
            pack_sequences(np.array(lengths), 12, 3)
    order = pack_sequences(np.array([6, 4, 6, 6, 4]), 12, 2).tolist()
    assert order == [[0, 2], [3, 1], [4, -1]], "sequences of equal length in their order"


ROWS = ("phase1", "squad/train", "squad/dev")


def questions(seed: int) -> list[dict[str, object]]:
    """Contexts of 5 to 60 words whose answer is one of them, so that some make several windows of 64 tokens."""
    draw, made = random.Random(seed), []
    for number in range(40):
        words = draw.choices(WORDS, k=draw.randint(5, 60))
        place = draw.randrange(len(words))
        answer = {"text": words[place], "answer_start": len("".join(f"{word} " for word in words[:place]))}
        asked = {"id": f"q{number}", "title": "", "question": " ".join(draw.sample(WORDS, 3))}
        made.append({**asked, "context": " ".join(words), "answers": [answer]})
    return made


@pytest.fixture(scope="module")
def checkouts(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, Path]:
    """The rows of the same text and questions, made by the stages with packing on and off."""
    roots = {}
    for packing in (True, False):
        root = roots[packing] = tmp_path_factory.mktemp(f"packing-{packing}".lower())
        values = read_yaml(ROOT / "params.yaml")
        values["packing"] = packing
        values["downstream"]["squad"]["rows"].update(row_length=64, doc_stride=16, max_question_length=16)
        write_parameters(root, values)
        write_tiny_model(root / artifacts.TOKENIZER, [*dict.fromkeys([*LETTERS, *WORDS, "."])])
        write_corpus(root / artifacts.CORPUS, random_texts(120, sentences=(1, 3)))
        for split, seed in (("train", 1), ("dev", 2)):
            write_questions(root / artifacts.EXAMPLES / "squad" / f"{split}.parquet", questions(seed))
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(root)
            patch.setenv("PODIUM_WORKERS", "1")
            for stage, name in ((pretrain_rows, "phase1"), (rows, "squad")):
                patch.setattr(sys, "argv", ["stage", name])
                stage.main()
    return roots


@pytest.mark.parametrize("name", ROWS)
def test_off_every_row_holds_one_sequence_and_they_are_the_same_sequences(checkouts: dict[bool, Path], name: str):
    on, off = (read_manifest(checkouts[packing] / artifacts.rows_folder(name)) for packing in (True, False))
    assert (off.max_sequences, off.packing_factor) == (1, 1.0)
    assert on.max_sequences == 3
    assert on.packing_factor > 1.1
    assert on.packing_efficiency == pytest.approx(on.packing_factor * off.packing_efficiency)
    assert (on.sequences, on.real_tokens) == (off.sequences, off.real_tokens)
    assert texts(checkouts[True], name) == texts(checkouts[False], name)


def texts(root: Path, name: str) -> list[tuple[int, ...]]:
    """The tokens of every sequence, sorted."""
    columns = read_rows(root / artifacts.rows_folder(name))
    places = zip(*np.nonzero(columns["cls_positions"] >= 0), strict=True)
    return sorted(tuple(columns["input_ids"][row, columns["sequence_ids"][row] == slot + 1]) for row, slot in places)


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
    assert folder_bytes(folder) == folder_bytes(write(tmp_path / "again", [5, 1, 6], rows_per_file=5))
    kinds = {size: row_schema("pretrain", 8, 2, 2, size).field("input_ids").type.value_type for size in (65536, 65537)}
    assert kinds == {65536: pa.uint16(), 65537: pa.uint32()}


def test_a_value_that_does_not_fit_its_column_is_never_wrapped(tmp_path: Path) -> None:
    columns = question_columns(2)
    columns["input_ids"] = columns["input_ids"].astype(np.uint32) + 70000
    with RowWriter(tmp_path, "question_answering", 8, 2, 0, 2000) as writer, pytest.raises(pa.ArrowInvalid):
        writer.write(columns)
    with pytest.raises(InputError, match="manifest.json is missing"):
        read_manifest(tmp_path)


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
