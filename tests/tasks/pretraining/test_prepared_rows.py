"""Prepared pre-training data of every layout become their original rows; every defect is refused by name."""

from __future__ import annotations

import copy
import gzip
import json
import struct
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import datasets
import google_crc32c
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.pretraining.rows import prepared_files, pretrain_rows
from tasks.pretraining.rows.pretrain_rows import write_prepared_rows, write_pretrain_rows
from tasks.stage.artifacts import READING
from tasks.stage.errors import InputError
from tasks.stage.row_folders import find_held_out_rows, read_manifest
from tasks.validation.validators import GxValidator
from tests.ipu_model.tiny_jobs import TINY, make_job, run_here
from tests.tasks.pretraining.row_inputs import (
    GOLDEN,
    pretrain_params,
    random_texts,
    read_rows,
    word_tokenizer,
    write_corpus,
)
from tests.tasks.validation.validation_data import pretrain_data, validate

Sequences = dict[str, list[Any]]
LENGTH = 48


def own_rows(folder: Path, texts: list[str], tokenizer: Path) -> Path:
    """Rows of LENGTH tokens that hold one sequence each, as this project makes them of `texts`."""
    corpus = write_corpus(folder / "corpus", texts)
    params = pretrain_params(LENGTH, max_sequences_per_row=1)
    write_pretrain_rows(params, "phase1", corpus, tokenizer, folder / "own", 1)
    return folder / "own"


def hub_columns(rows: Path, ignored: int = -100) -> Sequences:
    """The columns of Graphcore/wikipedia-bert-128 from rows of one sequence each."""
    columns = read_rows(rows)
    labels = np.full(columns["input_ids"].shape, ignored, np.int64)
    row, slot = np.nonzero(columns["masked_labels"] != -100)
    labels[row, columns["masked_positions"][row, slot]] = columns["masked_labels"][row, slot]
    return {
        "input_ids": columns["input_ids"].tolist(),
        "token_type_ids": columns["token_type_ids"].tolist(),
        "attention_mask": (columns["sequence_ids"] > 0).astype(int).tolist(),
        "labels": labels.tolist(),
        "next_sentence_label": columns["next_sentence_labels"][:, 0].tolist(),
    }


def google_features(rows: Path) -> list[dict[str, list[float]]]:
    """What create_pretraining_data writes for each of these rows."""
    columns = read_rows(rows)
    used = columns["masked_labels"] != -100
    features = {
        "input_ids": columns["input_ids"],
        "input_mask": (columns["sequence_ids"] > 0).astype(int),
        "segment_ids": columns["token_type_ids"],
        "masked_lm_positions": columns["masked_positions"],
        "masked_lm_ids": np.where(used, columns["masked_labels"], 0),
        "masked_lm_weights": used.astype(float),
        "next_sentence_labels": columns["next_sentence_labels"][:, :1],
    }
    return [{name: values[n].tolist() for name, values in features.items()} for n in range(len(used))]


def tfrecord(examples: list[dict[str, list[float]]]) -> bytes:
    """A file of these examples; floats become a float_list."""
    content = b""
    for features in examples:
        example = prepared_files._example_class()()
        for name, values in features.items():
            kind = "float_list" if values and isinstance(values[0], float) else "int64_list"
            getattr(example.features.feature[name], kind).value.extend(values)
        record = example.SerializeToString()
        length = struct.pack("<Q", len(record))
        content += length + _crc(length) + record + _crc(record)
    return content


def _crc(content: bytes) -> bytes:
    crc = google_crc32c.value(content)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def table(columns: Sequences, kind: pa.DataType | None = None) -> pa.Table:
    lists = pa.list_(kind or pa.int32())
    return pa.table(
        {name: pa.array(values, lists if isinstance(values[0], list) else None) for name, values in columns.items()}
    )


@dataclass
class Source:
    """Rows of this project, and the tokenizer they were made with."""

    root: Path
    tokenizer: Path
    own: Path


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Source:
    root = tmp_path_factory.mktemp("prepared")
    tokenizer = word_tokenizer(root / "tokenizer")
    return Source(root, tokenizer, own_rows(root, random_texts(60), tokenizer))


def make(given: Source, folder: Path, path: Path | str, **params: Any) -> Path:
    values = {"source": "files", "path": str(path), "max_sequences_per_row": 1, **params}
    write_prepared_rows(pretrain_params(LENGTH, **values), "phase1", given.tokenizer, folder / "rows")
    return folder / "rows"


def refusal(source: Source, folder: Path, path: Path, **params: Any) -> str:
    """The message of the refusal, after checking that nothing was left behind."""
    with pytest.raises(InputError) as caught:
        make(source, folder / "made", path, **params)
    assert not list((folder / "made").glob("*")), "nothing half-written"
    return str(caught.value)


def as_parquet(source: Source, folder: Path, kind: Any = None, ignored: int = -100, ragged: bool = False) -> Path:
    columns = hub_columns(source.own, ignored)
    lengths = [sum(mask) for mask in columns["attention_mask"]]
    for name in [name for name, values in columns.items() if ragged and isinstance(values[0], list)]:
        columns[name] = [row[:length] for row, length in zip(columns[name], lengths, strict=True)]
    pq.write_table(table(columns, kind), folder / "a.parquet", row_group_size=50)
    return folder / "a.parquet"


def as_saved_dataset(source: Source, folder: Path) -> Path:
    datasets.Dataset.from_dict(hub_columns(source.own)).save_to_disk(folder / "saved", num_shards=2)
    return folder / "saved"


def as_arrow_file(source: Source, folder: Path) -> Path:
    values = table(hub_columns(source.own))
    with pa.ipc.new_file(str(folder / "a.arrow"), values.schema) as writer:
        writer.write_table(values, max_chunksize=40)
    return folder


def as_tfrecords(source: Source, folder: Path, without: str = "") -> Path:
    examples = [{k: v for k, v in one.items() if k != without} for one in google_features(source.own)]
    (folder / "b_00.tfrecord").write_bytes(tfrecord(examples[:50]))
    (folder / "b_01.tfrecord.gz").write_bytes(gzip.compress(tfrecord(examples[50:]), mtime=0))
    (folder / "b_00.index").write_text("0 100\n")
    return folder


LAYOUTS: dict[str, Callable[[Source, Path], Path]] = {
    "parquet": as_parquet,
    "parquet with zeros": lambda source, folder: as_parquet(source, folder, pa.int64(), 0).parent,
    "ragged parquet": lambda source, folder: as_parquet(source, folder, pa.int16(), ragged=True),
    "saved data set": as_saved_dataset,
    "arrow file": as_arrow_file,
    "tfrecords": as_tfrecords,
    "tfrecords without weights": lambda source, folder: as_tfrecords(source, folder, "masked_lm_weights"),
}


def sequences(rows: Path) -> list[tuple[Any, ...]]:
    """Every sequence of a row folder, whatever row it is in: tokens, types, (position, label) pairs, next."""
    columns = read_rows(rows)
    found = []
    for n in range(len(columns["input_ids"])):
        masked = {
            int(position): int(label)
            for position, label in zip(columns["masked_positions"][n], columns["masked_labels"][n], strict=True)
            if label != -100
        }
        for slot, start in enumerate(columns["cls_positions"][n]):
            here = np.flatnonzero(columns["sequence_ids"][n] == slot + 1)
            if start >= 0:
                labels = sorted((at - int(start), label) for at, label in masked.items() if at in set(here.tolist()))
                parts = (tuple(columns[name][n, here].tolist()) for name in ("input_ids", "token_type_ids"))
                found.append((*parts, tuple(labels), int(columns["next_sentence_labels"][n, slot])))
    return sorted(found)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_gives_back_the_sequences_and_can_be_trained_on(
    source: Source, tmp_path: Path, layout: str
) -> None:
    (tmp_path / "in").mkdir()
    rows = make(source, tmp_path, LAYOUTS[layout](source, tmp_path / "in"), max_sequences_per_row=3)
    assert sequences(rows) == sequences(source.own)
    manifest = read_manifest(rows)
    assert manifest.packing_factor > 1.2
    model = replace(TINY, vocab_size=manifest.vocab_size, max_positions=LENGTH)
    steps = run_here(make_job(tmp_path, "pretrain", rows, model=model)).of("step")
    assert steps[-1]["step"] == 6
    assert all(np.isfinite(step["loss"]) for step in steps)


def test_a_data_set_of_the_hub_gives_the_same_rows_as_its_file(source: Source, tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    path = as_parquet(source, tmp_path / "set")
    path.rename(path.with_name("train.parquet"))
    there = make(source, tmp_path / "hub", "unused", source="hub", dataset=str(tmp_path / "set"))
    here = make(source, tmp_path / "file", tmp_path / "set")
    arrows = [[path.read_bytes() for path in sorted(rows.glob("*.arrow"))] for rows in (there, here)]
    assert arrows[0] == arrows[1]


def test_the_rows_pass_validation_and_what_was_read_is_on_the_page(source: Source, tmp_path: Path) -> None:
    rows = make(source, tmp_path, as_parquet(source, tmp_path), max_sequences_per_row=3)
    verdict = validate(pretrain_data(rows, source.tokenizer, max_positions=512), GxValidator())
    assert verdict["valid"], [check for check in verdict["checks"] if not check["ok"]]
    numbers = {one["name"]: one["value"] for one in verdict["statistics"]["numbers"]}
    assert numbers[pretrain_rows.SEQUENCES] == numbers["sequences"] == len(sequences(source.own))
    formats = json.loads((rows / READING).read_text())["inputs"]["sequences"]["formats"]
    assert formats == {"columns of lists, label -100 where nothing is masked": 1}


def test_held_out_sequences_are_in_neither_and_all_maskings_of_one_go_together(source: Source, tmp_path: Path) -> None:
    columns = hub_columns(source.own)
    other = copy.deepcopy(columns)
    for ids, labels, types in zip(other["input_ids"], other["labels"], other["token_type_ids"], strict=True):
        at = next(n for n, label in enumerate(labels) if label != -100)
        free = next(n for n in range(1, len(ids)) if labels[n] == -100 and ids[n] > 4 and types[n] == 0)
        ids[at], labels[at], labels[free] = labels[at], -100, ids[free]
    both = {name: values + other[name] for name, values in columns.items()}
    pq.write_table(table(both), tmp_path / "a.parquet")
    rows = make(source, tmp_path, tmp_path / "a.parquet", held_out_fraction=0.2)
    kept = find_held_out_rows(rows)
    assert kept is not None

    def originals(folder: Path) -> list[tuple[int, ...]]:
        made = []
        for ids, _, labels, _ in sequences(folder):
            restored = list(ids)
            for at, label in labels:
                restored[at] = label
            made.append(tuple(restored))
        return made

    assert 0.1 < len(originals(kept)) / len(both["input_ids"]) < 0.3
    assert set(originals(kept)).isdisjoint(originals(rows))
    assert len(originals(kept)) + len(originals(rows)) == len(both["input_ids"])


def test_no_label_is_lost_where_rows_are_taken_apart(source: Source, tmp_path: Path) -> None:
    most = int((read_rows(source.own)["masked_labels"] != -100).sum(axis=1).max())
    rows = make(source, tmp_path, as_parquet(source, tmp_path), max_sequences_per_row=3, max_predictions_per_row=most)
    assert sequences(rows) == sequences(source.own)
    assert json.loads((rows / READING).read_text())["numbers"][pretrain_rows.ROWS_SPLIT] > 0


def test_repeated_sequences_and_those_without_a_mask_are_counted(source: Source, tmp_path: Path) -> None:
    columns = hub_columns(source.own)
    for values in columns.values():
        values.append(copy.deepcopy(values[0]))
    columns["labels"][1] = [-100] * LENGTH
    pq.write_table(table({**columns, "special_tokens_mask": [0] * len(columns["labels"])}), tmp_path / "a.parquet")
    numbers = json.loads((make(source, tmp_path, tmp_path / "a.parquet") / READING).read_text())["numbers"]
    assert (numbers[pretrain_rows.REPEATED], numbers[pretrain_rows.UNMASKED], numbers["columns not used"]) == (1, 1, 1)


def change(row: int, column: str, at: int, value: Any) -> Callable[[dict[str, list[Any]]], None]:
    def apply(columns: dict[str, list[Any]]) -> None:
        columns[column][row][at] = value

    return apply


def only_zeros(columns: dict[str, list[Any]]) -> None:
    columns["labels"][3] = [0 if label == -100 else label for label in columns["labels"][3]]


def shorter(columns: dict[str, list[Any]]) -> None:
    columns["labels"][2] = columns["labels"][2][:-1]


DEFECTS = [
    (change(5, "input_ids", 1, 9999), "sequence 5 has the token id 9999"),
    (change(5, "input_ids", 0, 7), "sequence 5 does not begin with [CLS], id 2: set tokenizer.path"),
    (change(5, "attention_mask", 1, 0), "sequence 5 has tokens after padding"),
    (change(5, "token_type_ids", 0, 1), "token_type_ids that are not 0, 0, ..., 1, 1"),
    (change(5, "labels", 3, 9999), "sequence 5 has a label outside the vocabulary"),
    (only_zeros, "sequence 3 has the label 0, but earlier ones mark unmasked tokens with -100"),
    (shorter, f"sequence 2: labels has {LENGTH - 1} entries, but input_ids has {LENGTH}"),
    (lambda columns: columns["next_sentence_label"].__setitem__(4, 2), "sequence 4 has a next_sentence_label other"),
    (lambda columns: columns["input_ids"].__setitem__(4, None), "input_ids is null in sequence 4"),
    (change(4, "labels", 6, None), "labels has a null in sequence 4"),
    (lambda columns: columns.pop("labels"), "has no column 'labels'"),
    (lambda columns: columns.update(labels=[[0.5]] * len(columns["labels"])), "a list of integers is required"),
]


@pytest.mark.parametrize(("damage", "said"), DEFECTS, ids=[said[:30] for _, said in DEFECTS])
def test_a_defect_is_refused_with_its_sequence(source: Source, tmp_path: Path, damage: Any, said: str) -> None:
    columns = hub_columns(source.own)
    damage(columns)
    values = table(columns, pa.float64() if "integers" in said else pa.int64())
    pq.write_table(values, tmp_path / "a.parquet")
    assert said in refusal(source, tmp_path, tmp_path / "a.parquet")


def test_sequences_that_rows_cannot_hold_are_refused_with_the_key(source: Source, tmp_path: Path) -> None:
    path = as_parquet(source, tmp_path)
    assert "max_predictions_per_row=1" in refusal(source, tmp_path, path, max_predictions_per_row=1)
    short = pretrain_params(16, source="files", path=str(path))
    with pytest.raises(InputError, match=r"pretrain_rows\.phase1\.row_length=16 to \d+"):
        write_prepared_rows(short, "phase1", source.tokenizer, tmp_path / "x")


def test_paths_that_lead_nowhere_say_what_is_needed(source: Source, tmp_path: Path) -> None:
    given = tmp_path / "in"
    given.mkdir()
    assert "path=" in refusal(source, tmp_path, tmp_path / "absent")
    (given / "README.md").write_text("no data")
    assert "contains only README.md" in refusal(source, tmp_path, given)
    datasets.DatasetDict({"train": datasets.Dataset.from_dict({"a": [1]})}).save_to_disk(tmp_path / "splits")
    assert "(train)" in refusal(source, tmp_path, tmp_path / "splits")
    as_parquet(source, given)
    as_tfrecords(source, given)
    assert "contains both tables and TFRecords" in refusal(source, tmp_path, given)


def test_a_file_of_another_writer_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.tfrecord"
    path.write_bytes(GOLDEN)
    (example,) = prepared_files.read_tfrecords(path, ["input_ids", "masked_lm_weights", "masked_lm_ids"])
    assert {name: values.tolist() for name, values in example.items()} == {
        "input_ids": [2, 7, 4, 8, 3, 0],
        "masked_lm_ids": [9, 0],
        "masked_lm_weights": [1, 0],
    }


@pytest.mark.parametrize("at", range(0, len(GOLDEN), 7))
def test_any_byte_that_changed_is_noticed(tmp_path: Path, at: int) -> None:
    damaged = bytearray(GOLDEN)
    damaged[at] ^= 0x10
    (tmp_path / "a.tfrecord").write_bytes(bytes(damaged))
    with pytest.raises(InputError, match=r"a\.tfrecord, record 0 .*CRC"):
        list(prepared_files.read_tfrecords(tmp_path / "a.tfrecord", ["input_ids"]))


@pytest.mark.parametrize("length", [5, 100, len(GOLDEN) - 1])
@pytest.mark.parametrize("packed", [False, True])
def test_a_file_cut_off_is_noticed(tmp_path: Path, length: int, packed: bool) -> None:
    whole = (GOLDEN * 2)[: len(GOLDEN) + length] if packed else (GOLDEN * 2)[:length]
    content = gzip.compress(whole)[:-9] if packed else whole
    (tmp_path / "a.tfrecord").write_bytes(content)
    with pytest.raises(InputError, match=r"a\.tfrecord.* is cut off"):
        list(prepared_files.read_tfrecords(tmp_path / "a.tfrecord", ["input_ids"]))


@pytest.mark.parametrize(
    ("name", "slot", "value", "said"),
    [
        ("masked_lm_weights", 0, 0.0, "record 1 has masked_lm_weights that contradict"),
        ("masked_lm_weights", 0, 0.5, "record 1, masked_lm_weights must be whole numbers"),
        ("masked_lm_positions", 0, 99, "record 1 has masked_lm_positions outside"),
        ("masked_lm_positions", 1, None, "record 1 repeats a position"),
        ("masked_lm_ids", 0, 0, "record 1 has a position in an unused slot (masked_lm_ids is 0)"),
        ("input_ids", slice(5, None), [], "equal numbers are required"),
    ],
)
def test_features_that_contradict_each_other_are_refused(
    source: Source, tmp_path: Path, name: str, slot: Any, value: Any, said: str
) -> None:
    examples = google_features(source.own)[:3]
    assert examples[1]["masked_lm_weights"][:2] == [1.0, 1.0]
    examples[1][name][slot] = examples[1][name][0] if value is None else value
    for content, why in ((examples, said), ([{"packed_input_ids": [1, 2]}], "Packed sequences")):
        (tmp_path / "a.tfrecord").write_bytes(tfrecord(content))
        assert why in refusal(source, tmp_path, tmp_path / "a.tfrecord")
