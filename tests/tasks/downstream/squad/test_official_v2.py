"""The rule of SQuAD 2.0: worked out by hand, and the same as transformers' port of the official script."""

import json
import random
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tasks.downstream.squad import score_files as metrics
from tasks.downstream.squad.score_files import score_files
from tests.places import ROOT
from tests.tasks.downstream.squad.transformers_4 import transformers_4

DEV = ROOT.parent / "shared" / "data" / "squad2" / "dev.json"


@pytest.mark.parametrize(
    ("prediction", "references", "exact", "f1"),
    [
        ("", [], 1.0, 1.0),
        ("the", [], 1.0, 1.0),  # nothing is left of it
        ("Paris", [], 0.0, 0.0),
        ("", ["Paris"], 0.0, 0.0),
        ("the Paris", ["Paris", "Rome"], 1.0, 1.0),
        ("Denver Broncos", ["Broncos"], 0.0, 2 / 3),
        ("", ["The"], 1.0, 1.0),  # a reference without a word does not count
        ("", ["the", "Paris"], 0.0, 0.0),
    ],
)
def test_one_question(prediction: str, references: list[str], exact: float, f1: float) -> None:
    assert metrics.exact_match(prediction, references, nullable=True) == exact
    assert metrics.f1(prediction, references, nullable=True) == pytest.approx(f1)


def test_figures_are_of_all_questions_and_of_both_groups() -> None:
    found = metrics.figures_v2([True, True, False], [1.0, 0.0, 1.0], [1.0, 0.5, 1.0])
    assert found == {
        "exact": pytest.approx(200 / 3),
        "f1": pytest.approx(250 / 3),
        "total": 3,
        "HasAns_exact": 50.0,
        "HasAns_f1": 75.0,
        "HasAns_total": 2,
        "NoAns_exact": 100.0,
        "NoAns_f1": 100.0,
        "NoAns_total": 1,
    }
    assert "NoAns_total" not in metrics.figures_v2([True], [1.0], [1.0])


def test_the_best_threshold_answers_what_pays() -> None:
    # From one right by giving no answer at all: +1 at -3, -1 at -1, +0.5 at 0, +1 at 2; the sums are 2, 1, 1.5, 2.5.
    odds, has_answer = [2.0, -1.0, -3.0, 0.0], [True, False, True, True]
    scores = [1.0, 0.0, 1.0, 0.5]
    assert metrics.best_threshold(scores, odds, has_answer, [True] * 4) == (62.5, 2.0)
    # The span of the last question is wrong: 2 at -3 is not reached again.
    assert metrics.best_threshold([0.0, 0.0, 1.0, 0.5], odds, has_answer, [True] * 4) == (50.0, -3.0)
    # Nothing beats giving no answer: the script says 0.0.
    assert metrics.best_threshold([0.0] * 4, odds, has_answer, [True] * 4) == (25.0, 0.0)


def test_above_the_threshold_no_answer_is_given() -> None:
    assert metrics.apply_threshold([0.5, 0.5, 0.5], [1.0, 2.0, 2.0], [True, True, False], 1.0) == [0.5, 0.0, 1.0]


OFFICIAL = """
import json, sys
from types import SimpleNamespace
from transformers.data.metrics.squad_metrics import squad_evaluate
given = json.load(sys.stdin)
examples = [SimpleNamespace(**one) for one in given["examples"]]
found = [squad_evaluate(examples, one["answers"], one["odds"], one["threshold"]) for one in given["models"]]
json.dump(found, sys.stdout)
"""


def predicted(examples: list[dict[str, Any]], seed: int) -> dict[str, Any]:
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
def test_the_figures_are_those_of_the_official_rule(tmp_path: Path) -> None:
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
