"""Scalar features of texts and their distributions: hand-made, counted by hand."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.stage.errors import InputError
from tasks.validation import checks, text_features
from tasks.validation.checks import Histogram
from tasks.validation.text_features import compare_schema, count_controls, find_repetitions


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()])
def test_control_characters_are_counted_in_the_text_they_stand_in(kind):
    texts = ["", "\x00a\x1f", "tab\tline\r\n\x85", "\x7f\x80\x9f", "\ufffd\uffee\u00a0é日", None, "", "a\ufffd"]
    expected = [0, 2, 0, 3, 1, 0, 0, 1]
    column = pa.array(texts, kind)
    assert count_controls(column).tolist() == expected
    assert count_controls(column.slice(1, 3)).tolist() == expected[1:4]


def test_keys_that_occur_more_than_once_are_counted_over_all_batches_whatever_their_hashes(monkeypatch):
    def repetitions(*batches):
        parts = [np.array(batch, dtype=object) for batch in batches]
        return find_repetitions([text_features.hash_strings(part) for part in parts], lambda: parts)

    assert repetitions(["a", "b"], ["c", "a"], ["a", "c"]) == (3, ["a (3 times)", "c (2 times)"])
    assert repetitions() == (0, [])
    monkeypatch.setattr(text_features, "hash_strings", lambda keys: np.array([len(key) for key in keys], np.uint64))
    assert repetitions(["ab", "cd", "x"], ["ef", "x"]) == (1, ["x (2 times)"])


def test_schemas_differ_in_names_and_types_but_not_in_the_width_of_offsets_and_integers(tmp_path):
    required = pa.schema([("a", pa.string()), ("b", pa.list_(pa.struct([("s", pa.string()), ("n", pa.int32())])))])
    wide = pa.large_list(pa.struct([("n", pa.int64()), ("s", pa.large_string())]))
    pq.write_table(pa.table({"b": pa.array([], wide), "a": pa.array([], pa.large_string())}), tmp_path / "wide")
    pq.write_table(pa.table({"b": pa.array([], pa.int32())}), tmp_path / "other")
    assert compare_schema(tmp_path / "wide", required) == []
    missing, wrong = compare_schema(tmp_path / "other", required)
    assert missing == "other: column a is missing"
    assert wrong.startswith("other: column b is int32")


def test_text_that_is_not_utf8_is_refused(tmp_path):
    buffers = [None, pa.py_buffer(np.array([0, 2], np.int32)), pa.py_buffer(b"\xff\xfe")]
    pq.write_table(pa.table({"text": pa.Array.from_buffers(pa.string(), 1, buffers)}), tmp_path / "texts.parquet")
    with pytest.raises(InputError, match=r"texts\.parquet is damaged .*UTF8"):
        list(text_features.read_text_batches(tmp_path / "texts.parquet", ["text"]))


def lengths(*parts):
    counted = Histogram()
    for part in parts:
        counted.add(np.array(part, dtype=np.int64))
    return counted


def test_mean_and_quantiles_are_exact_over_all_parts():
    counted = lengths([1, 2], [3, 10])
    assert (counted.count, counted.sum, counted.largest, counted.mean) == (4, 16, 10, 4.0)
    assert [counted.quantile(share) for share in (0.25, 0.5, 0.75, 1.0)] == [1, 2, 3, 10]
    assert (lengths().mean, lengths().quantile(0.5), lengths().histogram("t", "u")["counts"]) == (0.0, 0, [0])


@pytest.mark.parametrize("values", [[0, 1, 100_000], [100, 400], [7], [5, 90_000, 12, 13]])
def test_every_length_is_in_exactly_one_bar(values):
    drawn = lengths(values).histogram("t", "u")
    edges, counts = drawn["edges"], drawn["counts"]
    assert edges == sorted(set(edges))
    assert len(edges) == len(counts) + 1 <= checks.BARS + 2
    assert counts == [sum(low <= value < high for value in values) for low, high in zip(edges, edges[1:], strict=False)]
    assert sum(counts) == len(values)


def test_lengths_above_the_highest_are_counted_in_the_last_bar_and_exactly_in_the_sum(monkeypatch):
    monkeypatch.setattr(checks, "HIGHEST", 10)
    counted = lengths([4, 10, 5_000])
    drawn = counted.histogram("t", "u")
    assert (drawn["open_end"], drawn["counts"][-1], counted.sum) == (True, 2, 5014)
