"""Sentences as windows of words: nothing is lost, each word counts once, and where it has most around it."""

import random

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.downstream.ner.checks import TagRows
from tasks.downstream.ner.rows import make_windows, split_windows
from tasks.downstream.ner.schemas import FEATURES_SCHEMA
from tasks.validation.checks import format_failures
from tasks.vocabulary.encoding import load_tokenizer
from tests.tasks.pretraining.row_inputs import UNK, WORDS, word_tokenizer
from tests.tasks.validation.validation_data import (
    failed_checks,
    row_columns,
    source_of,
    validate,
    write_rows,
    write_tokenizer,
)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return load_tokenizer(word_tokenizer(tmp_path_factory.mktemp("tokenizer")))


@pytest.mark.parametrize(
    ("pieces", "room", "overlap", "expected"),
    [
        ([1] * 10, 6, 2, [(0, 6), (4, 10)]),
        ([1] * 6, 6, 2, [(0, 6)]),
        ([3, 3, 1, 3], 6, 2, [(0, 2), (2, 4)]),  # a word of three pieces is more than may be shared
        ([3, 1, 1, 6, 1], 6, 3, [(0, 3), (3, 4), (4, 5)]),  # the long word leaves no room to share
        ([1, 1, 5, 1], 6, 3, [(0, 2), (1, 3), (3, 4)]),
    ],
)
def test_windows_share_the_overlap(pieces, room, overlap, expected):
    assert split_windows(pieces, room, overlap) == expected


def parts(windows):
    tokens = np.split(windows.token_ids, np.cumsum(windows.lengths)[:-1])
    return list(zip(map(np.ndarray.tolist, tokens), windows.features["positions"].to_pylist(), strict=True))


@pytest.mark.parametrize(
    ("words", "lengths", "own", "counted"),
    [
        (["ba", "\u200d", "\u00a0", "de"], [6], [[1, 2, 3, 4]], {"words without tokens, replaced by [UNK]": 2}),
        (["ba", ".!" * 20, "de"], [3, 16, 3], [[1], [1], [1]], {"words longer than a row, truncated": 1}),
    ],
)
def test_words_that_become_unknown_or_are_cut_are_counted(tokenizer, words, lengths, own, counted):
    windows = make_windows(tokenizer, [words], 16, 4)
    assert [(len(tokens), places) for tokens, places in parts(windows)] == list(zip(lengths, own, strict=True))
    assert {name: windows.counts[name] for name in counted} == counted
    assert len(lengths) > 1 or parts(windows)[0][0][2:4] == [UNK, UNK]


def test_each_word_of_a_long_sentence_is_predicted_where_it_has_most_around_it(tokenizer):
    """Ten words in windows 0-5 and 4-9: word 4 has 1 and 0 next to it, word 5 has 0 and 1."""
    words = WORDS[:10]
    first, second = parts(make_windows(tokenizer, [words], 8, 2))
    assert [len(tokens) for tokens, _ in (first, second)] == [8, 8]
    assert (first[1], second[1]) == ([1, 2, 3, 4, 5], [2, 3, 4, 5, 6])


def words_of(windows, sentences):
    """The first piece of every word, read back through the windows; by sentence."""
    found = [[] for _ in sentences]
    for (tokens, own), number in zip(parts(windows), windows.features["example_index"].tolist(), strict=True):
        found[number] += [tokens[position] for position in own]
    return found


@pytest.mark.parametrize(("row_length", "overlap"), [(16, 0), (16, 7), (24, 3), (128, 32)])
def test_no_word_is_lost_whatever_the_windows(tokenizer, row_length, overlap):
    draw = random.Random(row_length + overlap)
    pool = [*WORDS, "xyz", "a.b.c.d", "\u200b", "0123456789" * 3, "q"]
    sentences = [[draw.choice(pool) for _ in range(draw.choice((1, 5, 40, 150)))] for _ in range(60)]
    windows = make_windows(tokenizer, sentences, row_length, overlap)
    assert windows.lengths.max() <= row_length
    first_of = {word: [*tokenizer.encode(word, add_special_tokens=False).ids, UNK][0] for word in pool}
    assert words_of(windows, sentences) == [[first_of[word] for word in words] for words in sentences]
    index = windows.features["example_index"]
    assert (np.diff(index) >= 0).all()
    assert windows.counts["in several windows"] == len(sentences) - (np.bincount(index) == 1).sum() > 0


KIND = "token_classification"


def columns():
    """Four rows of the windows of `row_columns`; the words of each are at its tokens 1 and 3."""
    found = row_columns("question_answering")
    labels = np.full(found["input_ids"].shape, -100)
    labels[:, [1, 3, 9, 11]] = [0, 2, 1, 0]
    labels[-1, 8:] = -100
    names = ("input_ids", "token_type_ids", "position_ids", "sequence_ids", "cls_positions", "feature_ids")
    return {**{name: found[name] for name in names}, "token_labels": labels}


def judged(folder, damage, *, training=True):
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


def put_label(row, place, value):
    def damage(rows):
        rows["token_labels"][row, place] = value

    return damage


@pytest.mark.parametrize(
    ("damage", "training", "failed"),
    [
        (lambda rows: None, True, []),
        (put_label(0, 1, 3), True, ["token_labels"]),
        (put_label(0, 1, -1), True, ["token_labels"]),
        (put_label(3, 15, 1), True, ["token_labels"]),
        (put_label(0, 0, 1), True, ["labels_at_words"]),
        (put_label(0, 1, -100), True, ["labels"]),
        (put_label(0, 2, 1), True, ["labels"]),
        (put_label(0, 1, -100), False, []),  # rows to predict may lack labels of types that train has not
        (put_label(0, 2, 1), False, ["labels"]),
        (lambda rows: rows["feature_ids"].__setitem__((0, 0), 1), True, ["feature_lengths", "features_once"]),
    ],
)
def test_each_fault_of_rows_is_found(tmp_path, damage, training, failed):
    assert sorted(judged(tmp_path, damage, training=training)) == failed
    (tmp_path / "rows/features.parquet").unlink()
    source = source_of(tmp_path / "rows", tmp_path / "tokenizer", "downstream.names.rows", 8)
    assert failed_checks(validate(TagRows(source))) == ["schema"]
