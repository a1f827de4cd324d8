"""Prepared pre-training data of every layout become their original rows; every defect is refused by name."""

import copy
import gzip
import json
import struct
from dataclasses import replace
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
    spread_labels,
    word_tokenizer,
    write_corpus,
)
from tests.tasks.validation.validation_data import pretrain_data, validate

Columns = dict[str, list[Any]]
LENGTH = 48


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A folder with a tokenizer, and `own` rows of one sequence each, as this project makes them."""
    folder = tmp_path_factory.mktemp("prepared")
    corpus, params = write_corpus(folder / "corpus", random_texts(60)), pretrain_params(LENGTH, max_sequences_per_row=1)
    write_pretrain_rows(params, "phase1", corpus, word_tokenizer(folder / "tokenizer"), folder / "own", 1)
    return folder


def hub_columns(source):
    """The columns of Graphcore/wikipedia-bert-128."""
    rows = read_rows(source / "own")
    columns = {
        "input_ids": rows["input_ids"],
        "token_type_ids": rows["token_type_ids"],
        "attention_mask": (rows["sequence_ids"] > 0).astype(int),
        "labels": spread_labels(rows),
        "next_sentence_label": rows["next_sentence_labels"][:, 0],
    }
    return {name: values.tolist() for name, values in columns.items()}


def google_features(source):
    """What create_pretraining_data writes for each row."""
    rows = read_rows(source / "own")
    used = rows["masked_labels"] != -100
    features = {
        "input_ids": rows["input_ids"],
        "input_mask": (rows["sequence_ids"] > 0).astype(int),
        "segment_ids": rows["token_type_ids"],
        "masked_lm_positions": rows["masked_positions"],
        "masked_lm_ids": np.where(used, rows["masked_labels"], 0),
        "masked_lm_weights": used.astype(float),
        "next_sentence_labels": rows["next_sentence_labels"][:, :1],
    }
    return [{name: values[n].tolist() for name, values in features.items()} for n in range(len(used))]


def tfrecord(examples):
    """A file of these examples; floats become a float_list."""
    content = b""
    for features in examples:
        example = prepared_files._example_class()()
        for name, values in features.items():
            kind = "float_list" if values and isinstance(values[0], float) else "int64_list"
            getattr(example.features.feature[name], kind).value.extend(values)
        record = example.SerializeToString()
        for part in (struct.pack("<Q", len(record)), record):
            crc = google_crc32c.value(part)
            content += part + struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)
    return content


def table(columns, kind=None):
    lists = pa.list_(kind or pa.int32())
    return pa.table(
        {name: pa.array(values, lists if isinstance(values[0], list) else None) for name, values in columns.items()}
    )


def write_table(folder, columns, kind=None):
    pq.write_table(table(columns, kind), folder / "train.parquet", row_group_size=50)
    return folder / "train.parquet"


def make(made, folder, path, **params):
    values = {"source": "files", "path": str(path), "max_sequences_per_row": 1, **params}
    write_prepared_rows(pretrain_params(LENGTH, **values), "phase1", made / "tokenizer", folder / "rows")
    return folder / "rows"


def refusal(source, folder, path, **params):
    """The message of the refusal, after checking that nothing was left behind."""
    with pytest.raises(InputError) as caught:
        make(source, folder / "made", path, **params)
    assert not list((folder / "made").glob("*")), "nothing half-written"
    return str(caught.value)


def with_zeros(source, folder):
    columns = hub_columns(source)
    columns["labels"] = [[max(label, 0) for label in labels] for labels in columns["labels"]]
    return write_table(folder, columns, pa.int64()).parent


def ragged(source, folder):
    columns = hub_columns(source)
    lengths = [sum(mask) for mask in columns["attention_mask"]]
    for name in ("input_ids", "token_type_ids", "attention_mask", "labels"):
        columns[name] = [row[:length] for row, length in zip(columns[name], lengths, strict=True)]
    return write_table(folder, columns, pa.int16())


def saved_dataset(source, folder):
    datasets.Dataset.from_dict(hub_columns(source)).save_to_disk(folder / "saved", num_shards=2)
    return folder / "saved"


def arrow_file(source, folder):
    values = table(hub_columns(source))
    with pa.ipc.new_file(str(folder / "a.arrow"), values.schema) as writer:
        writer.write_table(values, max_chunksize=40)
    return folder


def tfrecords(source, folder, without=""):
    examples = [{k: v for k, v in features.items() if k != without} for features in google_features(source)]
    (folder / "b_00.tfrecord").write_bytes(tfrecord(examples[:50]))
    (folder / "b_01.tfrecord.gz").write_bytes(gzip.compress(tfrecord(examples[50:]), mtime=0))
    (folder / "b_00.index").write_text("0 100\n")
    return folder


LAYOUTS = {
    "hub": lambda source, folder: write_table(folder, hub_columns(source)).parent,
    "zeros": with_zeros,
    "ragged": ragged,
    "saved data set": saved_dataset,
    "arrow file": arrow_file,
    "tfrecords": tfrecords,
    "tfrecords without weights": lambda source, folder: tfrecords(source, folder, "masked_lm_weights"),
}


def sequences(folder):
    """Every sequence of a row folder, whatever row it is in: tokens, labels, types and the next-sentence label."""
    rows, made = read_rows(folder), []
    parts = (rows["input_ids"], spread_labels(rows), rows["token_type_ids"])
    for n, slot in zip(*np.nonzero(rows["cls_positions"] >= 0), strict=True):
        here = rows["sequence_ids"][n] == slot + 1
        made.append((*(tuple(part[n, here].tolist()) for part in parts), (int(rows["next_sentence_labels"][n, slot]),)))
    return sorted(made)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_gives_back_the_sequences(source, tmp_path, layout):
    (tmp_path / "in").mkdir()
    path = LAYOUTS[layout](source, tmp_path / "in")
    place = {"source": "hub", "dataset": str(path)} if layout == "hub" else {}
    rows = make(source, tmp_path, path, max_sequences_per_row=3, **place)
    assert sequences(rows) == sequences(source / "own")
    assert read_manifest(rows).packing_factor > 1.2


def test_rows_taken_apart_for_their_labels_are_valid_and_trained_on(source, tmp_path):
    most = int((read_rows(source / "own")["masked_labels"] != -100).sum(axis=1).max())
    path = write_table(tmp_path, hub_columns(source))
    rows = make(source, tmp_path, path, max_sequences_per_row=3, max_predictions_per_row=most)
    assert sequences(rows) == sequences(source / "own")
    verdict = validate(pretrain_data(rows, source / "tokenizer", max_positions=512), GxValidator())
    assert verdict["valid"], [check for check in verdict["checks"] if not check["ok"]]
    shown = {number["name"]: number["value"] for number in verdict["statistics"]["numbers"]}
    assert shown[pretrain_rows.SEQUENCES] == shown["sequences"] == len(sequences(source / "own"))
    assert shown[pretrain_rows.ROWS_SPLIT] > 0
    formats = json.loads((rows / READING).read_text())["inputs"]["sequences"]["formats"]
    assert formats == {"columns of lists, label -100 where nothing is masked": 1}
    model = replace(TINY, vocab_size=read_manifest(rows).vocab_size, max_positions=LENGTH)
    steps = run_here(make_job(tmp_path, "pretrain", rows, model=model)).of("step")
    assert steps[-1]["step"] == 6
    assert all(np.isfinite(step["loss"]) for step in steps)


def test_held_out_sequences_are_in_neither_and_all_maskings_of_one_go_together(source, tmp_path):
    columns = hub_columns(source)
    other = copy.deepcopy(columns)
    for ids, labels, types in zip(other["input_ids"], other["labels"], other["token_type_ids"], strict=True):
        at = next(n for n, label in enumerate(labels) if label != -100)
        free = next(n for n in range(1, len(ids)) if labels[n] == -100 and ids[n] > 4 and types[n] == 0)
        ids[at], labels[at], labels[free] = labels[at], -100, ids[free]
    both = {name: values + other[name] for name, values in columns.items()}
    rows = make(source, tmp_path, write_table(tmp_path, both), held_out_fraction=0.2)
    kept = find_held_out_rows(rows)
    assert kept is not None

    def originals(folder):
        return [tuple(np.where(np.array(labels) < 0, ids, labels)) for ids, labels, *_ in sequences(folder)]

    assert 0.1 < len(originals(kept)) / len(both["input_ids"]) < 0.3
    assert set(originals(kept)).isdisjoint(originals(rows))
    assert len(originals(kept)) + len(originals(rows)) == len(both["input_ids"])


def test_repeated_sequences_and_those_without_a_mask_are_counted(source, tmp_path):
    columns = hub_columns(source)
    for values in columns.values():
        values.append(copy.deepcopy(values[0]))
    columns["labels"][1] = [-100] * LENGTH
    path = write_table(tmp_path, {**columns, "special_tokens_mask": [0] * len(columns["labels"])})
    numbers = json.loads((make(source, tmp_path, path) / READING).read_text())["numbers"]
    assert (numbers[pretrain_rows.REPEATED], numbers[pretrain_rows.UNMASKED], numbers["columns not used"]) == (1, 1, 1)


def put(row, column, at, value):
    """Change an entry of a column, or an item of one."""
    return lambda columns: (columns[column] if at is None else columns[column][row]).__setitem__(
        row if at is None else at, value
    )


DEFECTS = [
    (put(5, "input_ids", 1, 9999), "sequence 5 has the token id 9999"),
    (put(5, "input_ids", 0, 7), "sequence 5 does not begin with [CLS], id 2: set tokenizer.path"),
    (put(5, "attention_mask", 1, 0), "sequence 5 has tokens after padding"),
    (put(5, "token_type_ids", 0, 1), "token_type_ids that are not 0, 0"),
    (put(5, "labels", 3, 9999), "sequence 5 has a label outside"),
    (put(3, "labels", None, [0] * LENGTH), "sequence 3 has the label 0"),
    (put(2, "labels", None, [-100] * (LENGTH - 1)), f"sequence 2: labels has {LENGTH - 1} entries"),
    (put(4, "next_sentence_label", None, 2), "sequence 4 has a next_sentence_label other"),
    (put(4, "input_ids", None, None), "input_ids is null in sequence 4"),
    (put(4, "labels", 6, None), "labels has a null in sequence 4"),
    (lambda columns: columns.pop("labels"), "has no column 'labels'"),
    (lambda columns: columns.update(labels=[[0.5]] * len(columns["labels"])), "a list of integers"),
]


@pytest.mark.parametrize(("damage", "message"), DEFECTS, ids=[message[:30] for _, message in DEFECTS])
def test_a_defect_is_refused_with_its_sequence(source, tmp_path, damage, message):
    columns = hub_columns(source)
    damage(columns)
    path = write_table(tmp_path, columns, pa.float64() if "integers" in message else pa.int64())
    assert message in refusal(source, tmp_path, path)


def test_sequences_that_rows_cannot_hold_are_refused_with_the_key(source, tmp_path):
    path = write_table(tmp_path, hub_columns(source))
    assert "max_predictions_per_row=1" in refusal(source, tmp_path, path, max_predictions_per_row=1)
    short = pretrain_params(16, source="files", path=str(path))
    with pytest.raises(InputError, match=r"pretrain_rows\.phase1\.row_length=16 to \d+"):
        write_prepared_rows(short, "phase1", source / "tokenizer", tmp_path / "x")


def test_paths_that_lead_nowhere_say_what_is_needed(source, tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    assert "path=" in refusal(source, tmp_path, tmp_path / "absent")
    (folder / "README.md").write_text("no data")
    assert "contains only README.md" in refusal(source, tmp_path, folder)
    datasets.DatasetDict({"train": datasets.Dataset.from_dict({"a": [1]})}).save_to_disk(tmp_path / "splits")
    assert "(train)" in refusal(source, tmp_path, tmp_path / "splits")
    (tmp_path / "packed.tfrecord").write_bytes(tfrecord([{"packed_input_ids": [1, 2]}]))
    assert "Packed sequences" in refusal(source, tmp_path, tmp_path / "packed.tfrecord")
    write_table(folder, hub_columns(source))
    tfrecords(source, folder)
    assert "both tables and TFRecords" in refusal(source, tmp_path, folder)


def read_golden(folder, content):
    (folder / "a.tfrecord").write_bytes(content)
    return list(prepared_files.read_tfrecords(folder / "a.tfrecord", ["input_ids", "masked_lm_ids"]))


def test_a_file_of_another_writer_is_read(tmp_path):
    (example,) = read_golden(tmp_path, GOLDEN)
    values = {name: values.tolist() for name, values in example.items()}
    assert values == {"input_ids": [2, 7, 4, 8, 3, 0], "masked_lm_ids": [9, 0]}


FLIPPED = [GOLDEN[:at] + bytes([GOLDEN[at] ^ 0x10]) + GOLDEN[at + 1 :] for at in range(0, len(GOLDEN), 7)]
CUT = [GOLDEN[:5], GOLDEN[:100], GOLDEN[:-1], gzip.compress(GOLDEN + GOLDEN[:100])[:-9], gzip.compress(GOLDEN)[:-9]]


@pytest.mark.parametrize(
    ("contents", "message"), [(FLIPPED, ", record 0 .*CRC"), (CUT, " is cut off")], ids=["flipped", "cut"]
)
def test_any_byte_that_changed_or_is_missing_is_noticed(tmp_path, contents, message):
    for content in contents:
        with pytest.raises(InputError, match=rf"a\.tfrecord.*{message}"):
            read_golden(tmp_path, content)


@pytest.mark.parametrize(
    ("name", "slot", "value", "message"),
    [
        ("masked_lm_weights", 0, 0.0, "record 1 has masked_lm_weights that contradict"),
        ("masked_lm_weights", 0, 0.5, "masked_lm_weights must be whole"),
        ("masked_lm_positions", 0, 99, "record 1 has masked_lm_positions outside"),
        ("masked_lm_positions", 1, None, "record 1 repeats a position"),
        ("masked_lm_ids", 0, 0, "a position in an unused slot"),
        ("input_ids", slice(5, None), [], "equal numbers"),
    ],
)
def test_features_that_contradict_each_other_are_refused(source, tmp_path, name, slot, value, message):
    examples = google_features(source)[:3]
    assert examples[1]["masked_lm_weights"][:2] == [1.0, 1.0]
    examples[1][name][slot] = examples[1][name][0] if value is None else value
    (tmp_path / "a.tfrecord").write_bytes(tfrecord(examples))
    assert message in refusal(source, tmp_path, tmp_path / "a.tfrecord")
