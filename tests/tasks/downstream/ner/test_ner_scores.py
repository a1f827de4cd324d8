"""From logits to tags, entities, figures and the page; counts are held against conlleval's."""

import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.downstream.ner.page import known_slices, type_slices, worst_mistakes
from tasks.downstream.ner.schemas import FEATURES_SCHEMA
from tasks.downstream.ner.scores import METRICS, NerAnswers, NerDevSet, WordLogits, count_outcomes, read_word_logits
from tasks.downstream.scoring.logits import FeatureFiles
from tasks.records.labels import add_labels, read_row_labels
from tasks.records.tags import find_problem
from tasks.stage.errors import InputError
from tests.tasks.downstream.entries import task_with
from tests.tasks.downstream.ner.ner_checkout import conlleval

CLASSES = ("O", "B-a", "I-a")
WINDOWS = {"feature_id": [0, 1, 2], "example_index": [0, 0, 1], "n_tokens": [5, 4, 3], "positions": [[1, 2], [2], [1]]}


def write(folder, tokens, changed):
    """Windows, and logits of so many tokens each: those of token n of all are 3 n, 3 n + 1 and 3 n + 2."""
    logits = np.split(np.arange(3.0 * sum(tokens)), np.cumsum(3 * np.array(tokens))[:-1])
    windows = {name: changed.get(name, values) for name, values in WINDOWS.items()}
    pq.write_table(pa.table(windows, schema=add_labels(FEATURES_SCHEMA, CLASSES)), folder / "features.parquet")
    schema = pa.schema([("feature_id", pa.int32()), ("logits", pa.list_(pa.float32()))])
    table = pa.table({"feature_id": range(len(logits)), "logits": logits}, schema=schema)
    with pa.ipc.new_file(str(folder / "logits.arrow"), schema) as writer:
        writer.write_table(table)
    return FeatureFiles(folder / "features.parquet", folder / "logits.arrow", "{}@ner".format)


def test_each_word_has_the_logits_of_its_first_piece(tmp_path):
    files = write(tmp_path, [5, 4, 3], {})
    found = read_word_logits(files, [3, 1])
    assert found.labels == CLASSES
    assert found.values[:, 0].tolist() == [3, 6, 3 * 7, 3 * 10]
    assert found.bounds.tolist() == [0, 3, 4]
    pq.write_table(pa.table(WINDOWS), files.features)
    with pytest.raises(InputError, match="has no class names"):
        read_row_labels(tmp_path)


@pytest.mark.parametrize(
    ("changed", "tokens", "words", "said"),
    [
        ({}, [5, 4, 3], [3, 2], "do not match the sentences"),
        ({"example_index": [0, 1, 0]}, [5, 4, 3], [3, 1], "do not match the sentences"),
        ({}, [5, 4], [3, 1], "lacks feature 2.*predict@ner"),
        ({"positions": [[1, 5], [2], [1]]}, [5, 4, 3], [3, 1], "invalid word positions"),
        ({"feature_id": [0, 2, 1]}, [5, 4, 3], [3, 1], "feature_id must be 0, 1"),
    ],
)
def test_logits_and_windows_that_do_not_belong_together_are_refused(tmp_path, changed, tokens, words, said):
    files = write(tmp_path, tokens, changed)
    with pytest.raises(InputError, match=said):
        read_word_logits(files, words)


PROBLEMS = {
    "without a type": ["B", "B-", "I-"],
    "another scheme": ["S-person", "L-x"],
    "not O": ["person", "o", "", "b-person", "O-person"],
    "not a word": ["B-a b", "B-\u202ea", "B-\u200c", "B-a\u00a0", "B-" + "a" * 101],
    "not text": [3, None],
    None: ["O", "B-person", "I-creative-work", "B-1", "B-ORG/LOC", "I-München", "B-شخص\u200cها", "I-a\u00a0b"],
}


@pytest.mark.parametrize(("tag", "said"), [(tag, said) for said, tags in PROBLEMS.items() for tag in tags])
def test_what_is_no_tag_is_said(tag, said):
    found = find_problem(tag)
    assert found is None if said is None else said in str(found)


def test_precision_recall_and_f1_are_those_that_conlleval_prints():
    gold = [tags.split() for tags in ("B-PER I-PER O B-LOC O", "B-ORG O O", "O O B-PER")]
    found = ["B-PER I-PER O B-ORG O", "B-ORG I-ORG O", "O I-PER B-PER"]
    expected = {
        None: (44.44, 40.0, 50.0, 72.73),
        "LOC": (0, 0, 0),
        "ORG": (0, 0, 0),
        "PER": (80, 66.67, 100),
    }
    for name, figures in expected.items():
        values = METRICS.compute({"dev": count_outcomes(gold, found, only=name)})
        names = ("f1", "precision", "recall", "token_accuracy")[: len(figures)]
        assert tuple(round(values[metric], 2) for metric in names) == figures


def test_counts_are_those_of_the_script_whatever_the_tags():
    draw, tags = random.Random(0), ["O", "B-a", "I-a", "B-b", "I-b"]
    seen = np.zeros(3, int)
    for _ in range(3000):
        length = draw.randint(1, 12)
        gold = [draw.choice(tags) for _ in range(length)]
        found = [one if draw.random() < 0.7 else draw.choice(tags) for one in gold]
        [(there, words, guessed, correct, right)] = count_outcomes([gold], [" ".join(found)]).tolist()
        assert (there, guessed, correct) == conlleval(gold, found), (gold, found)
        assert (words, right) == (length, sum(a == b for a, b in zip(gold, found, strict=True)))
        seen += np.array([there, guessed, correct], int)
    assert seen.min() > 1000


def test_a_sentence_without_an_answer_has_nothing_right():
    assert count_outcomes([["B-a", "O"]], [None]).tolist() == [[1, 2, 0, 0, 0]]
    assert set(METRICS.compute({"dev": count_outcomes([["O"]], ["O"])}).values()) == {0, 100}


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ([None, "O B-x O", "O", "I-x"], None),
        (["O"], "1 sentences of dev, which has 4"),
        ([None, "O B-x", "O", "O"], "line 2 of dev has 'O B-x', 3 tags"),
        ([None, "O B-x S-x", "O", "O"], "line 2 of dev"),
        ([None, None, 3, "O"], "line 3 of dev has 3"),
    ],
)
def test_predictions_are_a_tag_for_each_word_or_none(values, said):
    task, examples = task_with("ner", "scores"), named(TOKENS, GOLD)
    if said is None:
        assert task.check_predictions(Path("p.json"), "dev", examples, values) == values
        return
    with pytest.raises(InputError, match=said):
        task.check_predictions(Path("p.json"), "dev", examples, values)


def test_a_resample_has_the_metrics_of_sentences_that_come_so_often():
    generator = np.random.default_rng(1)
    correct, more, other = generator.integers(0, 3, (3, 40))
    rows = (correct + more, np.full(40, 9), correct + other, correct, np.full(40, 8))
    outcomes, weights = np.stack(rows, axis=1).astype(float), generator.integers(0, 4, (5, 40))
    for metric in METRICS.parts:
        again = [metric.whole(outcomes.repeat(row, axis=0)) for row in weights]
        assert metric.weighted(outcomes, weights.astype(float)) == pytest.approx(again)


TOKENS = [["Ada", "met", "Babbage"], ["in", "New", "York"], ["noone"], ["Ada"]]
GOLD = [["B-person", "O", "B-person"], ["O", "B-location", "I-location"], ["O"], ["B-person"]]
LABELS = ("O", "B-group", "I-group", "B-person", "I-person")
FOUND = [["B-person", "O", "O"], ["O", "O", "B-location"], ["O"], ["B-group"]]
TEXTS = [" ".join(tags) for tags in FOUND]


def named(tokens, tags):
    return NerDevSet(tokens, tags, [f"line {number}" for number in range(1, len(tokens) + 1)])


def test_mistakes_come_lowest_f1_first_and_then_the_surest():
    sureness = [np.full(3, 0.9), np.array([0.9, 0.6, 0.9]), np.full(1, 0.9), np.full(1, 0.9)]
    found = worst_mistakes(named(TOKENS, GOLD), NerAnswers(FOUND, sureness, sureness), count_outcomes(GOLD, TEXTS))
    assert [one.number for one in found] == [1, 3, 0]
    assert [(one.missed, one.invented) for one in found[1:]] == [
        ([("Ada", "person")], [("Ada", "group")]),
        ([("Babbage", "person")], []),
    ]
    assert found[0].sureness == 0.9
    words, gold = [f"w{number}" for number in range(200)], ["O"] * 100 + ["B-person"] + ["O"] * 99
    given = NerAnswers([["O"] * 200], [np.full(200, 0.5)], [np.zeros(200)])
    [long] = worst_mistakes(named([words], [gold]), given, count_outcomes([gold], given.texts))
    assert [piece.text.split()[0] for piece in long.pieces] == ["…", "w75", "w100", "w101", "…"]


def test_scores_by_type_count_what_is_there_found_and_correct():
    found = {one.slice: one for one in type_slices(GOLD, TEXTS, LABELS)}
    counted = {name: (one.examples, one.counts["found"], one.counts["correct"]) for name, one in found.items()}
    assert counted == {"group": (0, 1, 0), "location": (1, 1, 0), "person": (3, 1, 1)}
    record = found["person"].record()
    assert (record["by"], record["f1"], record["precision"]) == ("type", 50.0, 100.0)
    assert record["recall"] == pytest.approx(33.3333)
    assert record["f1_low"] <= 50 <= record["f1_high"]
    assert [name for name, one in found.items() if not one.counts["learnt"]] == ["location"]


def test_entities_that_train_has_are_scored_apart_from_new_ones():
    seen, new = known_slices(named(TOKENS, GOLD), TEXTS, frozenset({"ada", "york"}))
    assert (seen.slice, seen.examples, seen.counts["found"], seen.counts["correct"]) == ("seen in train", 2, 3, 1)
    assert (new.slice, new.examples, new.counts["found"], new.counts["correct"]) == ("new", 2, 0, 0)
    assert (seen.figures["recall"], seen.figures["precision"]) == (50.0, pytest.approx(33.3333))
    assert known_slices(named(TOKENS, GOLD), TEXTS, None) == [], "podium evaluate has no training sentences"


def test_the_probability_of_an_entity_is_the_mean_of_its_words():
    """As the records of `podium predict` state it; a temperature divides the logits."""
    task, logits = task_with("ner", "scores"), np.log([[0.1, 0.8, 0.1], [0.2, 0.2, 0.6], [0.9, 0.05, 0.05]])
    examples = named([["New", "York", "is"]], [["B-x", "I-x", "O"]])
    found = task.answer(examples, WordLogits(("O", "B-x", "I-x"), logits, np.array([0, 3])))
    scaled = task.scaled_confidences(found)
    assert scaled(1.0) == pytest.approx([0.7])
    parts = np.exp(logits / 2)
    assert scaled(2.0) == pytest.approx([((parts[0] / parts[0].sum())[1] + (parts[1] / parts[1].sum())[2]) / 2])
    assert task.correctness(examples, found, np.zeros((1, 5))).tolist() == [1.0]
    other = named([["New", "York", "is"]], [["B-x", "O", "O"]])
    assert task.correctness(other, found, np.zeros((1, 5))).tolist() == [0.0], "other boundaries"
