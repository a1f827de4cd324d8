"""Scalar features of text: hand-made strings, counted by hand."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.stage.errors import InputError
from tasks.validation import text_features
from tasks.validation.text_features import (
    compare_schema,
    count_controls,
    find_repetitions,
)


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()])
def test_control_characters_are_counted_in_the_text_they_stand_in(kind):
    texts = ["", "\x00a\x1f", "tab\tline\r\n\x85", "\x7f\x80\x9f", "\ufffd\uffee\u00a0é日", None, "", "a\ufffd"]
    expected = [0, 2, 0, 3, 1, 0, 0, 1]
    column = pa.array(texts, kind)
    assert count_controls(column).tolist() == expected
    assert count_controls(column.slice(1, 3)).tolist() == expected[1:4]
    assert count_controls(column.slice(7)).tolist() == [1]


def keys(*arrays):
    return [np.array(some, dtype=object) for some in arrays]


def repetitions(parts):
    return find_repetitions([text_features.hash_strings(part) for part in parts], lambda: parts)


def test_keys_that_occur_more_than_once_are_counted_over_all_batches():
    parts = keys(["a", "b"], ["c", "a"], ["a", "c"])
    assert repetitions(parts) == (3, ["a (3 times)", "c (2 times)"])
    assert repetitions([]) == (0, [])


def test_different_keys_with_one_hash_are_not_equal(monkeypatch):
    monkeypatch.setattr(text_features, "hash_strings", lambda some: np.array([len(key) for key in some], np.uint64))
    parts = keys(["ab", "cd", "x"], ["ef", "x"])
    assert repetitions(parts) == (1, ["x (2 times)"])


def test_many_repetitions_are_counted_without_holding_them_all(monkeypatch):
    monkeypatch.setattr(text_features, "CONFIRMED_HASHES", 2)
    parts = keys([f"key {i}" for i in range(50)], [f"key {i}" for i in range(50)])
    count, examples = repetitions(parts)
    assert count == 50
    assert len(examples) == 2


def test_schemas_differ_in_names_and_types_but_not_in_the_width_of_offsets_and_integers(tmp_path):
    required = pa.schema([("a", pa.string()), ("b", pa.list_(pa.struct([("s", pa.string()), ("n", pa.int32())])))])
    wide = pa.large_list(pa.struct([("n", pa.int64()), ("s", pa.large_string())]))
    pq.write_table(pa.table({"b": pa.array([], wide), "a": pa.array([], pa.large_string())}), tmp_path / "wide")
    pq.write_table(pa.table({"b": pa.array([], pa.int32())}), tmp_path / "other")
    assert compare_schema(tmp_path / "wide", required) == []
    missing, wrong = compare_schema(tmp_path / "other", required)
    assert missing == "other: column a is missing"
    assert wrong.startswith("other: column b is int32, not list<")


def test_batches_have_fewer_records_where_texts_are_long(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    texts = ["".join(rng.choice(list("abcdefgh"), 1000)) for _ in range(64)]
    pq.write_table(pa.table({"text": texts}), tmp_path / "texts.parquet")
    monkeypatch.setattr(text_features, "BATCH_BYTES", 8_500)
    sizes = [batch.num_rows for batch in text_features.read_text_batches(tmp_path / "texts.parquet", ["text"])]
    assert sum(sizes) == 64
    assert max(sizes) == 8


def test_text_that_is_not_utf8_is_refused(tmp_path):
    broken = pa.Array.from_buffers(
        pa.string(), 1, [None, pa.py_buffer(np.array([0, 2], np.int32)), pa.py_buffer(b"\xff\xfe")]
    )
    pq.write_table(pa.table({"text": broken}), tmp_path / "texts.parquet")
    with pytest.raises(InputError, match=r"texts\.parquet is damaged .*UTF8"):
        list(text_features.read_text_batches(tmp_path / "texts.parquet", ["text"]))
