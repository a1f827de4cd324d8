"""Sentences as windows of words that lose nothing, and their logits as tags, entities and figures like conlleval's."""

import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.downstream.ner.page import known_slices, type_slices
from tasks.downstream.ner.rows import make_windows, split_windows
from tasks.downstream.ner.schemas import FEATURES_SCHEMA
from tasks.downstream.ner.scores import METRICS, NerDevSet, WordLogits, count_outcomes, read_word_logits
from tasks.downstream.scoring.logits import FeatureFiles
from tasks.records.labels import add_labels, read_row_labels
from tasks.records.tags import find_problem
from tasks.stage.errors import InputError
from tasks.vocabulary.encoding import load_tokenizer
from tests.tasks.downstream.entries import task_with
from tests.tasks.pretraining.row_inputs import UNK, WORDS, word_tokenizer


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
    pieces = [[] for _ in sentences]
    for (tokens, own), number in zip(parts(windows), windows.features["example_index"].tolist(), strict=True):
        pieces[number] += [tokens[position] for position in own]
    return pieces


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


CLASSES = ("O", "B-a", "I-a")
WINDOWS = {"feature_id": [0, 1, 2], "example_index": [0, 0, 1], "n_tokens": [5, 4, 3], "positions": [[1, 2], [2], [1]]}


@pytest.mark.parametrize(
    ("changed", "tokens", "words", "message"),
    [
        ({}, [5, 4, 3], [3, 1], None),
        ({}, [5, 4, 3], [3, 2], "do not match the sentences"),
        ({"example_index": [0, 1, 0]}, [5, 4, 3], [3, 1], "do not match the sentences"),
        ({}, [5, 4], [3, 1], "lacks feature 2.*predict@ner"),
        ({"positions": [[1, 5], [2], [1]]}, [5, 4, 3], [3, 1], "invalid word positions"),
        ({"feature_id": [0, 2, 1]}, [5, 4, 3], [3, 1], "feature_id must be 0, 1"),
    ],
)
def test_each_word_has_the_logits_of_its_first_piece_in_files_that_belong_together(
    tmp_path, changed, tokens, words, message
):
    """The logits of token n of all windows are 3 n, 3 n + 1 and 3 n + 2."""
    logits = np.split(np.arange(3.0 * sum(tokens)), np.cumsum(3 * np.array(tokens))[:-1])
    files = FeatureFiles(tmp_path / "features.parquet", tmp_path / "logits.arrow", "{}@ner".format)
    pq.write_table(pa.table({**WINDOWS, **changed}, schema=add_labels(FEATURES_SCHEMA, CLASSES)), files.features)
    schema = pa.schema([("feature_id", pa.int32()), ("logits", pa.list_(pa.float32()))])
    with pa.ipc.new_file(str(files.logits), schema) as writer:
        writer.write_table(pa.table({"feature_id": range(len(logits)), "logits": logits}, schema=schema))
    if message is not None:
        with pytest.raises(InputError, match=message):
            read_word_logits(files, words)
        return
    logits_of_words = read_word_logits(files, words)
    assert (logits_of_words.labels, logits_of_words.bounds.tolist()) == (CLASSES, [0, 3, 4])
    assert logits_of_words.values[:, 0].tolist() == [3, 6, 3 * 7, 3 * 10]
    pq.write_table(pa.table(WINDOWS), files.features)
    with pytest.raises(InputError, match="has no class names"):
        read_row_labels(tmp_path)


PROBLEMS = {
    "without a type": ["B", "B-", "I-"],
    "another scheme": ["S-person", "L-x"],
    "not O": ["person", "o", "", "b-person", "O-person"],
    "not a word": ["B-a b", "B-\u202ea", "B-\u200c", "B-a\u00a0", "B-" + "a" * 101],
    "not text": [3, None],
    None: ["O", "B-person", "I-creative-work", "B-1", "B-ORG/LOC", "I-München", "B-شخص\u200cها", "I-a\u00a0b"],
}


@pytest.mark.parametrize(("tag", "problem"), [(tag, problem) for problem, tags in PROBLEMS.items() for tag in tags])
def test_what_is_no_tag_is_named(tag, problem):
    named_problem = find_problem(tag)
    assert named_problem is None if problem is None else problem in str(named_problem)


def test_precision_recall_and_f1_are_those_that_conlleval_prints():
    gold = [tags.split() for tags in ("B-PER I-PER O B-LOC O", "B-ORG O O", "O O B-PER")]
    guessed = ["B-PER I-PER O B-ORG O", "B-ORG I-ORG O", "O I-PER B-PER"]
    expected = {None: (44.44, 40.0, 50.0, 72.73), "LOC": (0, 0, 0), "ORG": (0, 0, 0), "PER": (80, 66.67, 100)}
    for name, figures in expected.items():
        values = METRICS.compute({"dev": count_outcomes(gold, guessed, only=name)})
        names = ("f1", "precision", "recall", "token_accuracy")[: len(figures)]
        assert tuple(round(values[metric], 2) for metric in names) == figures
    assert count_outcomes([["B-a", "O"]], [None]).tolist() == [[1, 2, 0, 0, 0]], "without an answer nothing is right"
    assert set(METRICS.compute({"dev": count_outcomes([["O"]], ["O"])}).values()) == {0, 100}


def entities(tags):
    """By the rules of the script conlleval for tags with B and I."""
    places, begun = set(), None
    for place, tag in enumerate([*tags, "O"]):
        prefix, _, kind = tag.partition("-")
        if begun is not None and (prefix != "I" or kind != begun[1]):
            places.add((*begun, place))
            begun = None
        if prefix == "B" or (prefix == "I" and begun is None):
            begun = (place, kind)
    return places


def test_counts_are_those_of_the_script_whatever_the_tags():
    draw, tags = random.Random(0), ["O", "B-a", "I-a", "B-b", "I-b"]
    seen = np.zeros(3, int)
    for _ in range(3000):
        gold = [draw.choice(tags) for _ in range(draw.randint(1, 12))]
        guessed = [tag if draw.random() < 0.7 else draw.choice(tags) for tag in gold]
        [(there, words, answered, correct, right)] = count_outcomes([gold], [" ".join(guessed)]).tolist()
        theirs, ours = entities(gold), entities(guessed)
        assert (there, answered, correct) == (len(theirs), len(ours), len(theirs & ours)), (gold, guessed)
        assert (words, right) == (len(gold), sum(a == b for a, b in zip(gold, guessed, strict=True)))
        seen += np.array([there, answered, correct], int)
    assert seen.min() > 1000


TOKENS = [["Ada", "met", "Babbage"], ["in", "New", "York"], ["noone"], ["Ada"]]
GOLD = [["B-person", "O", "B-person"], ["O", "B-location", "I-location"], ["O"], ["B-person"]]
LABELS = ("O", "B-group", "I-group", "B-person", "I-person")
GUESSED = [["B-person", "O", "O"], ["O", "O", "B-location"], ["O"], ["B-group"]]
TEXTS = [" ".join(tags) for tags in GUESSED]


def named(tokens, tags):
    return NerDevSet(tokens, tags, [f"line {number}" for number in range(1, len(tokens) + 1)])


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([None, "O B-x O", "O", "I-x"], None),
        (["O"], "1 sentences of dev, which has 4"),
        ([None, "O B-x", "O", "O"], "line 2 of dev has 'O B-x', 3 tags"),
        ([None, "O B-x S-x", "O", "O"], "line 2 of dev"),
        ([None, None, 3, "O"], "line 3 of dev has 3"),
    ],
)
def test_predictions_are_a_tag_for_each_word_or_none(values, message):
    task, examples = task_with("ner", "scores"), named(TOKENS, GOLD)
    if message is None:
        assert task.check_predictions(Path("p.json"), "dev", examples, values) == values
        return
    with pytest.raises(InputError, match=message):
        task.check_predictions(Path("p.json"), "dev", examples, values)


def test_a_resample_has_the_metrics_of_sentences_that_come_so_often():
    generator = np.random.default_rng(1)
    correct, more, other = generator.integers(0, 3, (3, 40))
    rows = (correct + more, np.full(40, 9), correct + other, correct, np.full(40, 8))
    outcomes, weights = np.stack(rows, axis=1).astype(float), generator.integers(0, 4, (5, 40))
    for metric in METRICS.parts:
        again = [metric.whole(outcomes.repeat(row, axis=0)) for row in weights]
        assert metric.weighted(outcomes, weights.astype(float)) == pytest.approx(again)


def test_scores_are_by_type_and_by_what_train_has():
    slices = {part.slice: part for part in type_slices(GOLD, TEXTS, LABELS)}
    counted = {name: (part.examples, part.counts["found"], part.counts["correct"]) for name, part in slices.items()}
    assert counted == {"group": (0, 1, 0), "location": (1, 1, 0), "person": (3, 1, 1)}
    record = slices["person"].record()
    assert (record["by"], record["f1"], record["precision"]) == ("type", 50.0, 100.0)
    assert record["recall"] == pytest.approx(33.3333)
    assert record["f1_low"] <= 50 <= record["f1_high"]
    assert [name for name, part in slices.items() if not part.counts["learnt"]] == ["location"]
    seen, new = known_slices(named(TOKENS, GOLD), TEXTS, frozenset({"ada", "york"}))
    assert (seen.slice, seen.examples, seen.counts["found"], seen.counts["correct"]) == ("seen in train", 2, 3, 1)
    assert (new.slice, new.examples, new.counts["found"], new.counts["correct"]) == ("new", 2, 0, 0)
    assert (seen.figures["recall"], seen.figures["precision"]) == (50.0, pytest.approx(33.3333))
    assert known_slices(named(TOKENS, GOLD), TEXTS, None) == [], "podium evaluate has no training sentences"


def test_the_probability_of_an_entity_is_the_mean_of_its_words():
    """As the records of `podium predict` state it; a temperature divides the logits."""
    task, logits = task_with("ner", "scores"), np.log([[0.1, 0.8, 0.1], [0.2, 0.2, 0.6], [0.9, 0.05, 0.05]])
    tokens = [["New", "York", "is"]]
    answers = task.answer(named(tokens, [["B-x", "I-x", "O"]]), WordLogits(CLASSES, logits, np.array([0, 3])))
    scaled = task.scaled_confidences(answers)
    assert scaled(1.0) == pytest.approx([0.7])
    parts = np.exp(logits / 2)
    assert scaled(2.0) == pytest.approx([((parts[0] / parts[0].sum())[1] + (parts[1] / parts[1].sum())[2]) / 2])
    for tags, correct in (["B-a", "I-a", "O"], [1.0]), (["B-a", "O", "O"], [0.0]):  # other boundaries
        assert task.correctness(named(tokens, [tags]), answers, np.zeros((1, 5))).tolist() == correct
