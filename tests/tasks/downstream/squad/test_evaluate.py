"""The command that scores any SQuAD pair; the stage on three questions, its page, and the rule that must be beaten."""

import dataclasses
import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from ipu_model.core.files import read_json, sha256_of, write_json
from tasks.downstream.evaluate import describe_run, evaluate
from tasks.downstream.gate.gate import gate
from tasks.downstream.squad.examples import write_questions
from tasks.downstream.squad.page import TITLE, slice_scores
from tasks.downstream.squad.params import SquadEvaluateParams
from tasks.downstream.squad.scores import RULES, choose_rule
from tasks.params.schema import load_params, parameter_values
from tasks.stage.errors import InputError
from tests.places import ROOT
from tests.podium_here import call_podium
from tests.tasks.downstream.entries import change_parameters, make_question, task_with
from tests.tasks.downstream.squad.question_files import qa, squad, write
from tests.tasks.release.evaluated_checkout import CONTEXTS, inputs_of, write_checkout
from tests.tasks.trained_checkout import make_checkout, write_gate

ANSWERS = {"1": ["Denver Broncos", "the Broncos"], "2": ["Paris"], "3": ["a dog"]}
QUESTIONS = squad(*(qa(name, answers=[(text, 0) for text in texts]) for name, texts in ANSWERS.items()))


def run(folder, questions, predictions, *more):
    for name, content in (("questions.json", questions), ("predictions.json", predictions)):
        if content is not None:
            write(folder / name, content)
    return call_podium("evaluate", str(folder / "predictions.json"), str(folder / "questions.json"), "--json", *more)


def test_standard_output_and_the_file_asked_for_are_the_scores_and_missing_predictions_count_zero(tmp_path, caplog):
    # Exact match: only "dog". F1: Denver 2/3 of "Denver Broncos", Rome 0, dog 1.
    output = tmp_path / "new" / "scores.json"
    done = run(tmp_path, QUESTIONS, {"1": "Denver", "2": "Rome", "3": "the dog"}, "--output", str(output))
    assert (done.returncode, done.stderr) == (0, "")
    scores = {"exact_match": 33.3333, "f1": 55.5556, "total": 3}
    assert json.loads(done.stdout) == json.loads(output.read_text()) == scores
    done = run(tmp_path, b"\xef\xbb\xbf" + json.dumps(QUESTIONS).encode(), {"1": "Broncos", "x": "y"})
    assert json.loads(done.stdout) == {"exact_match": 33.3333, "f1": 33.3333, "total": 3}
    assert ": 2, 3" in caplog.text
    assert "ignored: x" in caplog.text
    assert run(tmp_path, QUESTIONS, {"x": "y"}).returncode == 1


@pytest.mark.parametrize(
    ("questions", "predictions", "message"),
    [
        (None, {}, "questions.json not found"),
        (QUESTIONS, None, "predictions.json not found"),
        (b"{", {}, "questions.json, line 1 is not JSON"),
        (QUESTIONS, b"no JSON", "predictions.json is not JSON"),
        (squad({"id": "q", "answers": ["x"]}), {}, r"not an object: .*qas\[0\].answers\[0\] \('x'\)"),
        (QUESTIONS, {"1": 5}, "question '1' .*, found 5"),
    ],
)
def test_bad_input_is_one_clear_message(tmp_path, questions, predictions, message):
    done = run(tmp_path, questions, predictions, "--output", str(tmp_path / "new/scores.json"))
    assert (done.returncode, done.stdout) == (1, "")
    assert re.search(f"(?s)^error: .*{message}", done.stderr)
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "new").exists()


def test_scoring_imports_no_heavy_package():
    script = (
        "import sys, tasks.downstream.squad.score_files, flows.cli, flows.commands.evaluate; "
        "print([m for m in ('torch', 'transformers', 'pandas', 'numpy', 'pyarrow') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[]"


TASK = task_with("squad", "report", evaluate=SquadEvaluateParams(n_best=5, max_answer_length=30))


def test_the_stage_writes_predictions_scores_calibration_and_slices(tmp_path):
    root, folder = write_checkout(tmp_path), tmp_path / "evaluation/squad"
    metrics = evaluate(TASK, root).metrics
    assert read_json(folder / "predictions.json") == {"q0": "red house", "q1": "two", "q2": "Ærø & <b>Fyn</b>"}
    # Exact: q0 and q2. F1: q0 1, q1 "two" against "two dogs" 2/3, q2 1.
    assert metrics.items() >= {"exact_match": 66.6667, "f1": 88.8889, "total": 3, "answered": 3}.items()
    assert 0 <= metrics["f1_low"] < metrics["f1"] < metrics["f1_high"] <= 100
    names = ("models/squad/model.safetensors", "evaluation/squad/predictions.json")
    assert metrics["files"] == [{"path": name, "sha256": sha256_of(root / name)} for name in names]
    assert read_json(root / "metrics/squad.json") == metrics
    files = {path.name for path in folder.iterdir()}
    assert files == {"mistakes.csv", "nbest.json", "predictions.json", "report.html"}
    nbest = read_json(folder / "nbest.json")
    assert (nbest["q0"][0]["text"], len(nbest["q0"])) == ("red house", 5)
    for index, answers in enumerate(nbest.values()):
        assert sum(answer["probability"] for answer in answers) == pytest.approx(1, abs=1e-5)
        assert [answer["score"] for answer in answers] == sorted((a["score"] for a in answers), reverse=True)
        assert all(answer["text"] == CONTEXTS[index][answer["start"] : answer["end"]] for answer in answers)
    probabilities = np.array([nbest[f"q{i}"][0]["probability"] for i in range(3)])
    assert metrics["brier_score"] == pytest.approx(((probabilities - [1, 0, 1]) ** 2).mean(), abs=1e-5)
    assert sum(part["count"] for part in metrics["calibration"]) == 3
    lines = (root / "plots/squad-calibration.csv").read_text().splitlines()
    assert lines[0] == "low,high,count,confidence,accuracy,accuracy_low,accuracy_high"
    assert {(part["by"], part["slice"]): part["questions"] for part in metrics["slices"]} == {
        **{("question word", word): 1 for word in ("what", "how many", "other")},
        ("answer length", "2-3 words"): 3,
        ("context length", "up to 50 words"): 3,
        ("windows", "1 window"): 2,
        ("windows", "2 windows"): 1,
    }
    slices = (root / "plots/squad-slices.csv").read_text().splitlines()
    assert slices[:2] == ["by,slice,metric,score,score_low,score_high", "question word,what,f1,100.0,2.2202,100.0"]
    assert len(slices) == 1 + len(metrics["slices"])


def test_the_same_input_gives_the_same_bytes_in_every_run(tmp_path, monkeypatch):
    outputs = []
    for name in ("a", "b"):
        root = write_checkout(tmp_path / name)
        write_json(root / "models/base/base_model.json", {"path": "/secret/place/min<i>lm", "repository": None})
        evaluate(TASK, root)
        outputs.append({p.relative_to(root): p.read_bytes() for p in root.rglob("*") if p.is_file()})
        monkeypatch.setenv("PODIUM_RUN", "2026-11-26T21:34:20+00:00 w<b>1")
    assert outputs[0] == outputs[1]
    assert b"/secret" not in outputs[0][Path("evaluation/squad/report.html")]
    entry = dataclasses.replace(TASK.scores.entry, start="base")
    assert describe_run(entry, root) == {"Model": "fine-tuned min<i>lm", "File": "demo"}


@pytest.mark.parametrize("lost", ["questions", "features", "logits", "weights"])
def test_a_missing_input_names_the_stage_to_run_and_nothing_is_written(tmp_path, lost):
    write_checkout(tmp_path)
    getattr(inputs_of(tmp_path), lost).unlink()
    with pytest.raises(InputError, match="(not found. Run|does not exist; the) .*stage"):
        evaluate(TASK, tmp_path)
    assert not (tmp_path / "evaluation" / "squad").exists()
    assert not (tmp_path / "metrics").exists()


@pytest.mark.parametrize(
    ("titles", "f1", "expected"),
    [
        (["good"] * 6 + ["bad"] * 5 + ["small"] * 2 + ["tiny"], [1.0] * 6 + [0.0] * 4 + [1.0] + [0.5] * 3,
         [("bad", 5, 20.0, 20.0), ("good", 6, 100.0, 100.0), ("2 other titles", 3, 50.0, 0.0)]),
        (["one"] * 9, [1.0] * 9, []),
    ],
)  # fmt: skip
def test_titles_come_worst_first_and_those_with_few_questions_together(titles, f1, expected):
    questions = [make_question(str(i), "What?", "c", ("c",), title=title) for i, title in enumerate(titles)]
    slices = slice_scores(questions, [1] * len(f1), np.array([(float(x == 1.0), x) for x in f1]))
    records = [part.record() for part in slices if part.by == TITLE]
    assert [(part["slice"], part["questions"], part["f1"], part["exact_match"]) for part in records] == expected


CONTEXT = "Ada Lovelace wrote notes. She added a program of her own, for an engine that no one had built yet, to them."


def ask(*answers):
    """Questions on CONTEXT with an answer, or without one."""
    return [
        make_question(f"q{i}", "What?", CONTEXT, *([()] if text is None else [(text,), (max(0, CONTEXT.find(text)),)]))
        for i, text in enumerate(answers)
    ]


@pytest.mark.parametrize(
    ("answers", "rule"),
    [
        (["Ada", "Ada", CONTEXT], "the first word of the context"),
        (["Ada Lovelace", "Ada Lovelace", "her own"], "the first 2 words of the context"),
        (["Ada Lovelace wrote notes."], "the first sentence of the context"),
        ([], "the first word of the context"),
        ([CONTEXT, *[None] * 9], "the whole context"),  # questions without an answer choose none
    ],
)
def test_the_rule_with_the_best_f1_is_chosen_and_of_equal_ones_the_first(answers, rule):
    assert choose_rule(ask(*answers)) == rule


@pytest.mark.parametrize(
    ("context", "answer"),
    [("東京は首都です。人口は多い。", "東京は首都です。"), ("Is it so? It is.", "Is it so?"), ("", "")],
)
def test_rules_take_a_part_of_any_context(context, answer):
    assert RULES["the first sentence of the context"](context) == answer
    assert RULES["the first 20 words of the context"](context) in context


def test_the_rule_of_training_questions_is_what_a_model_has_to_beat(tmp_path):
    """Training asks for the first two words, development for the whole context; the model answers two words."""
    root = make_checkout(tmp_path / "checkout")
    change_parameters(root, {"downstream": {"squad": {"gate": {"min_f1": None}}}})
    write_questions(ask(*["Ada Lovelace"] * 3), root / "data/examples/squad/train.parquet")
    write_questions(ask(*[CONTEXT] * 8), root / "data/examples/squad/dev.parquet")
    write_json(root / "evaluation/squad/predictions.json", {f"q{i}": "Ada Lovelace" for i in range(8)})
    write_gate(root)
    metrics, verdict = (read_json(root / f"metrics/{name}.json") for name in ("squad", "squad-gate"))
    assert metrics["baseline"] == "the first 2 words of the context"
    assert metrics["constant_score"] == metrics["f1"] < 50, "the whole context would score 100 there"
    assert verdict["accepted"] is False
    [reason] = verdict["reasons"]
    assert re.match(r"F1 is no better than the first 2 words .*: \+0\.00", reason)
    write_json(root / "evaluation/squad/predictions.json", {f"q{i}": CONTEXT for i in range(8)})
    write_gate(root)
    assert gate(parameter_values(load_params(root / "params.yaml")), "squad", root)["accepted"]
