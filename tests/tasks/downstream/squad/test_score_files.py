"""Exact match and F1 by the official rules of SQuAD 1.1 and 2.0, worked out by hand; two files of predictions."""

import csv
import json
import random
import subprocess
from pathlib import Path

import numpy as np
import pytest

from tasks.downstream.scoring.significance import mcnemar_exact
from tasks.downstream.squad import score_files as metrics
from tasks.downstream.squad.compare import changed_csv, compare, compare_files, format_comparison
from tasks.downstream.squad.score_files import normalize_answer, score_files
from tasks.stage.errors import InputError
from tests.places import SHARED
from tests.podium_here import call_podium
from tests.tasks.downstream.squad.question_files import transformers_4

DEV = SHARED / "data" / "squad2" / "dev.json"


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("The Broncos", "broncos"),
        ("  A\tlarge\n  AN  house ", "large house"),
        ("theatre", "theatre"),  # an article only as a word of its own
        ("a.m.", "am"),  # punctuation goes first, so this has no article
        ("«the» café", "« » café"),  # only ASCII punctuation is removed; the article leaves a space
        ("naïve—a test", "naïve— test"),  # the long dash stays and bounds the word "a"
        ("one\u00a0two", "one two"),  # a no-break space is white space
        ("The", ""),
    ],
)
def test_normalisation_lowers_drops_punctuation_then_articles_then_spaces(text, normal):
    assert normalize_answer(text) == normal


@pytest.mark.parametrize(
    ("prediction", "references", "match", "overlap", "nullable"),
    [
        ("Denver Broncos", ["the Denver Broncos!"], 1, 1.0, False),
        ("in Denver Colorado", ["Denver Broncos"], 0, 0.4, False),  # precision 1/3, recall 1/2
        ("Broncos", ["Panthers", "the Broncos"], 1, 1.0, False),  # best over the references
        ("Denver Broncos team", ["Denver", "Broncos team"], 0, 0.8, False),  # 1/2 and 4/5
        ("big big dog", ["big dog dog"], 0, 2 / 3, False),  # bags: one big and one dog in common, 2/3 each way
        ("", ["London"], 0, 0.0, False),
        ("the", ["The", "an"], 1, 0.0, False),  # no word left on either side: v1.1 gives exact match without F1
        # version 2
        ("the", [], 1, 1.0, True),  # nothing is left of it
        ("Paris", [], 0, 0.0, True),
        ("", ["Paris"], 0, 0.0, True),
        ("Denver Broncos", ["Broncos"], 0, 2 / 3, True),
        ("", ["The"], 1, 1.0, True),  # a reference without a word does not count
        ("", ["the", "Paris"], 0, 0.0, True),
    ],
)
def test_exact_match_and_f1(prediction, references, match, overlap, nullable):
    assert metrics.exact_match(prediction, references, nullable=nullable) == match
    assert metrics.f1(prediction, references, nullable=nullable) == pytest.approx(overlap, abs=1e-12)


OFFICIAL = """
import json, sys
from types import SimpleNamespace
from transformers.data.metrics.squad_metrics import squad_evaluate
given = json.load(sys.stdin)
examples = [SimpleNamespace(**one) for one in given["examples"]]
found = [squad_evaluate(examples, one["answers"], one["odds"], one["threshold"]) for one in given["models"]]
json.dump(found, sys.stdout)
"""


def predicted(examples, seed):
    """Answers as a model may give them: right, nearly so, none, or another text; odds with some that are equal."""
    draw = random.Random(seed)  # noqa: S311 (no secret)
    answers, odds = {}, {}
    for one in examples:
        right = draw.choice([answer["text"] for answer in one["answers"]] or [""])
        words = right.split()
        answers[one["qas_id"]] = draw.choice([right, " ".join(words[1:]), "the", "", "something else", right + " x"])
        odds[one["qas_id"]] = round(draw.gauss(0 if words else 1, 2), 1)
    return {"answers": answers, "odds": odds, "threshold": draw.choice([-1.0, 0.0, 0.5, 1.0])}


@pytest.mark.skipif(not DEV.is_file(), reason=f"needs {DEV}")
def test_the_figures_are_those_of_the_official_rule(tmp_path):
    python, reason = transformers_4()
    if python is None:
        pytest.skip(reason)
    qas = [qa for article in json.loads(DEV.read_text())["data"] for p in article["paragraphs"] for qa in p["qas"]]
    examples = [{"qas_id": qa["id"], "answers": qa["answers"]} for qa in qas]
    models = [predicted(examples, seed) for seed in range(6)]
    told = json.dumps({"examples": examples, "models": models})
    done = subprocess.run([python, "-c", OFFICIAL], input=told, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    for model, theirs in zip(models, json.loads(done.stdout), strict=True):
        for name in ("answers", "odds"):
            (tmp_path / name).write_text(json.dumps(model[name]))
        ours = score_files(DEV, tmp_path / "answers", tmp_path / "odds", model["threshold"])
        assert ours.keys() == theirs.keys() - {"has_ans_exact", "has_ans_f1"}
        assert ours == {name: pytest.approx(theirs[name], abs=1e-6) for name in ours}


REFERENCES = [(str(number), ("red house",)) for number in range(40)]


def answers(right, wrong="sea"):
    """The first `right` questions right."""
    return {name: "red house" if number < right else wrong for number, (name, _) in enumerate(REFERENCES)}


@pytest.mark.parametrize(
    ("first_only", "second_only", "p"),
    # Two-sided sign test: 2 * sum of binomials; 6 of 6: 2 / 64; 1 of 4: 2 * (1 + 4) / 16.
    [(6, 0, 0.03125), (1, 3, 0.625), (4, 4, 1.0), (0, 0, 1.0)],
)
def test_mcnemar_by_hand(first_only, second_only, p):
    first = [1.0] * (10 + first_only) + [0.0] * (second_only + 3)
    second = [1.0] * 10 + [0.0] * first_only + [1.0] * second_only + [0.0] * 3
    found = mcnemar_exact(np.array(first), np.array(second))
    assert (found.first_only, found.second_only, found.p_value) == (first_only, second_only, pytest.approx(p))


def test_a_comparison_is_of_the_questions_that_both_answered():
    first, second = answers(20), {**answers(30), "extra": "x"}
    del first["0"], second["39"]
    found = compare(REFERENCES, first, second)
    assert found["questions"] == 38
    assert (found["exact_match_first"], found["exact_match_second"]) == (50.0, 76.3158)  # 19 and 29 of 38
    assert found["exact_match_difference"]["mean"] == pytest.approx(1000 / 38, abs=1e-4)
    assert found["exact_match_difference"]["low"] > 0
    assert (found["mcnemar"]["first_only"], found["mcnemar"]["second_only"]) == (0, 10)
    assert [one["id"] for one in found["changed"]] == [str(number) for number in range(20, 30)]
    same = compare(REFERENCES, answers(20), answers(20, wrong="lake"))
    assert len(same["changed"]) == 20, "an answer that changes without its score is listed too"
    assert (same["f1_difference"]["low"], same["f1_difference"]["high"], same["mcnemar"]["p_value"]) == (0, 0, 1)
    assert "20 answers changed" in format_comparison(same, 0.95)
    assert len(list(csv.reader(changed_csv(same["changed"]).splitlines()))) == 21


def test_the_command_prints_and_writes_the_comparison(tmp_path, monkeypatch):
    qas = [
        {"id": name, "question": "?", "answers": [{"text": text, "answer_start": 0}]} for name, (text,) in REFERENCES
    ]
    document = {"data": [{"title": "t", "paragraphs": [{"context": "red house", "qas": qas}]}]}
    for name, content in (("q", document), ("a", answers(10)), ("b", answers(40)), ("other", {"x": "y"})):
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    monkeypatch.chdir(tmp_path)
    files = "a.json b.json --questions q.json --output c.json --changed changed.csv"
    done = call_podium("compare", *files.split(), "--confidence", "0.9")
    assert done.returncode == 0, done.stderr
    assert "exact match: 25.00 -> 100.00, +75.00 points" in done.stdout
    record = json.loads((tmp_path / "c.json").read_text())
    assert record["mcnemar"] == {"first_only": 0, "second_only": 30, "p_value": pytest.approx(2 / 2**30)}
    assert len(record["changed"]) == 30
    assert len((tmp_path / "changed.csv").read_text().splitlines()) == 31
    for other, said in (("other.json", r"a.json and other.json"), ("absent.json", "absent.json not found")):
        with pytest.raises(InputError, match=said):
            compare_files(Path("q.json"), Path("a.json"), Path(other))
