"""Exact match and F1 by the official rules of SQuAD 1.1 and 2.0, worked out by hand; two files of predictions."""

import json
import random
import subprocess
from pathlib import Path

import pytest

from tasks.downstream.squad import score_files as metrics
from tasks.downstream.squad.compare import compare, compare_files, format_comparison
from tasks.downstream.squad.score_files import normalize_answer, score_files
from tasks.stage.errors import InputError
from tests.places import SHARED
from tests.podium_here import call_podium
from tests.tasks.downstream.squad.question_files import qa, squad, transformers_4

DEV = SHARED / "data" / "squad2" / "dev.json"


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("  A\tlarge\n  AN  house ", "large house"),
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
        ("Denver Broncos team", ["Denver", "Broncos team"], 0, 0.8, False),  # best over the references: 1/2 and 4/5
        ("big big dog", ["big dog dog"], 0, 2 / 3, False),  # bags: one big and one dog in common, 2/3 each way
        ("the", ["The", "an"], 1, 0.0, False),  # no word left on either side: v1.1 gives exact match without F1
        # version 2
        ("the", [], 1, 1.0, True),  # nothing is left of it
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
    for example in examples:
        right = draw.choice([answer["text"] for answer in example["answers"]] or [""])
        words = right.split()
        choices = [right, " ".join(words[1:]), "the", "", "something else", right + " x"]
        answers[example["qas_id"]] = draw.choice(choices)
        odds[example["qas_id"]] = round(draw.gauss(0 if words else 1, 2), 1)
    return {"answers": answers, "odds": odds, "threshold": draw.choice([-1.0, 0.0, 0.5, 1.0])}


@pytest.mark.skipif(not DEV.is_file(), reason=f"needs {DEV}")
def test_the_figures_are_those_of_the_official_rule(tmp_path):
    python, reason = transformers_4()
    if python is None:
        pytest.skip(reason)
    articles = json.loads(DEV.read_text())["data"]
    questions = [asked for article in articles for part in article["paragraphs"] for asked in part["qas"]]
    examples = [{"qas_id": question["id"], "answers": question["answers"]} for question in questions]
    models = [predicted(examples, seed) for seed in range(6)]
    given = json.dumps({"examples": examples, "models": models})
    done = subprocess.run([python, "-c", OFFICIAL], input=given, capture_output=True, text=True, timeout=120)
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


def test_a_comparison_is_of_the_questions_that_both_answered(tmp_path, monkeypatch):
    document = squad(*(qa(name, answers=[(text, 0)]) for name, (text,) in REFERENCES), context="red house")
    first, second = answers(20), {**answers(30), "extra": "x"}
    del first["0"], second["39"]
    for name, content in (("q", document), ("a", first), ("b", second), ("other", {"x": "y"})):
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    monkeypatch.chdir(tmp_path)
    files = "a.json b.json --questions q.json --output c.json --changed changed.csv"
    done = call_podium("compare", *files.split(), "--confidence", "0.9")
    assert done.returncode == 0, done.stderr
    assert "exact match: 50.00 -> 76.32, +26.32 points" in done.stdout
    record = json.loads((tmp_path / "c.json").read_text())
    assert record["questions"] == 38
    assert (record["exact_match_first"], record["exact_match_second"]) == (50.0, 76.3158)  # 19 and 29 of 38
    assert record["exact_match_difference"]["mean"] == pytest.approx(1000 / 38, abs=1e-4)
    assert record["exact_match_difference"]["low"] > 0
    assert record["mcnemar"] == {"first_only": 0, "second_only": 10, "p_value": pytest.approx(2 / 2**10)}
    assert [change["id"] for change in record["changed"]] == [str(number) for number in range(20, 30)]
    assert len((tmp_path / "changed.csv").read_text().splitlines()) == 11
    same = compare(REFERENCES, answers(20), answers(20, wrong="lake"))
    assert len(same["changed"]) == 20, "an answer that changes without its score is listed too"
    assert (same["f1_difference"]["low"], same["f1_difference"]["high"], same["mcnemar"]["p_value"]) == (0, 0, 1)
    assert "20 answers changed" in format_comparison(same, 0.95)
    for other, message in (("other.json", r"a.json and other.json"), ("absent.json", "absent.json not found")):
        with pytest.raises(InputError, match=message):
            compare_files(Path("q.json"), Path("a.json"), Path(other))
