"""The command that scores any SQuAD pair, and the stage on a checkout of three questions."""

import dataclasses
import hashlib
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ipu_model.core.files import write_json
from tasks.downstream.evaluate import describe_run, evaluate
from tasks.downstream.squad.params import SquadEvaluateParams
from tasks.stage.errors import InputError
from tests.places import ROOT
from tests.podium_here import call_podium
from tests.tasks.downstream.entries import task_with
from tests.tasks.release.evaluated_checkout import CONTEXTS, inputs_of, write_checkout

DEV = ROOT.parent / "shared" / "data" / "squad" / "new-wiki-dev.json"


def squad(*questions: dict[str, Any]) -> dict[str, Any]:
    return {"version": "1.1", "data": [{"title": "t", "paragraphs": [{"context": "c", "qas": list(questions)}]}]}


def question(identifier: str, *answers: str) -> dict[str, Any]:
    return {"id": identifier, "question": "?", "answers": [{"text": text, "answer_start": 0} for text in answers]}


QUESTIONS = squad(question("1", "Denver Broncos", "the Broncos"), question("2", "Paris"), question("3", "a dog"))


def run(folder: Path, questions: Any, predictions: Any, *more: str) -> subprocess.CompletedProcess[str]:
    for name, content in (("questions.json", questions), ("predictions.json", predictions)):
        if content is not None:
            text = content if isinstance(content, (str, bytes)) else json.dumps(content)
            (folder / name).write_bytes(text.encode() if isinstance(text, str) else text)
    return call_podium("evaluate", str(folder / "predictions.json"), str(folder / "questions.json"), "--json", *more)


def test_standard_output_is_the_scores_as_json_and_nothing_else(tmp_path: Path) -> None:
    # Exact match: only "dog". F1: Denver 2/3 of "Denver Broncos", Rome 0, dog 1.
    done = run(tmp_path, QUESTIONS, {"1": "Denver", "2": "Rome", "3": "the dog"})
    assert done.returncode == 0
    assert json.loads(done.stdout) == {"exact_match": 33.3333, "f1": 55.5556, "total": 3}
    assert done.stderr == ""


def test_the_scores_are_also_written_where_asked(tmp_path: Path) -> None:
    done = run(tmp_path, QUESTIONS, {"1": "", "2": "", "3": ""}, "--output", str(tmp_path / "new" / "scores.json"))
    assert json.loads((tmp_path / "new" / "scores.json").read_text()) == json.loads(done.stdout)


def test_missing_predictions_count_zero_and_extra_ones_nothing_and_both_are_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    done = run(tmp_path, b"\xef\xbb\xbf" + json.dumps(QUESTIONS).encode(), {"1": "Broncos", "x": "y"})
    assert json.loads(done.stdout) == {"exact_match": 33.3333, "f1": 33.3333, "total": 3}
    assert "2 of 3 questions have no prediction and score 0: 2, 3" in caplog.text
    assert "1 predictions match no question and are ignored: x" in caplog.text
    assert "has a prediction for no question of" in run(tmp_path, QUESTIONS, {"x": "y"}).stderr


@pytest.mark.parametrize(
    ("questions", "predictions", "message"),
    [
        (None, {}, "questions.json not found"),
        (QUESTIONS, None, "predictions.json not found"),
        ("{", {}, "questions.json, line 1 is not JSON"),
        (QUESTIONS, "no JSON", "predictions.json is not JSON"),
        (b"\xff\xfe", {}, "questions.json is UTF-16"),
        ([], {}, "contains no questions"),
        ({"data": {}}, {}, "answers is missing: line 1"),
        ({"data": [{}]}, {}, r"answers is missing: data\[0\]"),
        ({"data": [{"paragraphs": [{"qas": [{"id": 7.5}]}]}]}, {}, r"id is not text: .*qas\[0\] \(7\.5\)"),
        (squad({"id": "q", "answers": ["x"]}), {}, r"not an object: .*qas\[0\].answers\[0\] \('x'\)"),
        ({"data": []}, {}, "contains no questions"),
        (QUESTIONS, [], "must be an object of question ids, found list"),
        (QUESTIONS, {"1": 5}, "prediction of question '1' must be a string .*, found 5"),
        (QUESTIONS, {"1": None}, r'must be a string \("" for no answer\), found None'),
    ],
)
def test_bad_input_is_one_clear_message(tmp_path: Path, questions: Any, predictions: Any, message: str) -> None:
    done = run(tmp_path, questions, predictions, "--output", str(tmp_path / "new/scores.json"))
    assert done.returncode == 1
    assert done.stdout == ""
    assert re.search(message, done.stderr)
    assert done.stderr.startswith("error: ")
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "new").exists()


def test_scoring_imports_no_heavy_package() -> None:
    script = (
        "import sys, tasks.downstream.squad.score_files, flows.cli, flows.commands.evaluate; "
        "print([m for m in ('torch', 'transformers', 'pandas', 'numpy', 'pyarrow') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[]"


TASK = task_with("squad", "report", evaluate=SquadEvaluateParams(n_best=5, max_answer_length=30))


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A checkout after the stage, and its metrics."""
    root = write_checkout(tmp_path_factory.mktemp("evaluated") / "checkout")
    return root, evaluate(TASK, root).metrics


def test_the_stage_writes_predictions_scores_plots_and_a_page(evaluated: tuple[Path, dict[str, Any]]) -> None:
    root, metrics = evaluated
    predictions = (root / "evaluation" / "squad" / "predictions.json").read_bytes()
    assert json.loads(predictions) == {"q0": "red house", "q1": "two", "q2": "Ærø & <b>Fyn</b>"}
    # Exact: q0 and q2. F1: q0 1, q1 "two" against "two dogs" 2/3, q2 1.
    assert {name: metrics[name] for name in ("exact_match", "f1", "total", "answered")} == {
        "exact_match": 66.6667,
        "f1": 88.8889,
        "total": 3,
        "answered": 3,
    }
    assert 0 <= metrics["f1_low"] < metrics["f1"] < metrics["f1_high"] <= 100
    assert metrics["files"] == [
        {"path": "models/squad/model.safetensors", "sha256": hashlib.sha256(b"weights").hexdigest()},
        {"path": "evaluation/squad/predictions.json", "sha256": hashlib.sha256(predictions).hexdigest()},
    ]
    assert json.loads((root / "metrics" / "squad.json").read_text()) == metrics
    assert sorted(path.name for path in (root / "evaluation" / "squad").iterdir()) == [
        "mistakes.csv",
        "nbest.json",
        "predictions.json",
        "report.html",
    ]


def test_nbest_begins_with_the_prediction_and_sums_to_one(
    evaluated: tuple[Path, dict[str, Any]],
) -> None:
    nbest = json.loads((evaluated[0] / "evaluation" / "squad" / "nbest.json").read_text())
    assert nbest["q0"][0]["text"] == "red house"
    assert len(nbest["q0"]) == 5
    for index, found in enumerate(nbest.values()):
        assert sum(answer["probability"] for answer in found) == pytest.approx(1, abs=1e-5)
        assert [answer["score"] for answer in found] == sorted((a["score"] for a in found), reverse=True)
        assert all(answer["text"] == CONTEXTS[index][answer["start"] : answer["end"]] for answer in found)


def test_slices_count_every_question_once_per_property(evaluated: tuple[Path, dict[str, Any]]) -> None:
    records = evaluated[1]["slices"]
    by = {name: {r["slice"]: r["questions"] for r in records if r["by"] == name} for name in (r["by"] for r in records)}
    assert by == {
        "question word": {"what": 1, "how many": 1, "other": 1},
        "answer length": {"2-3 words": 3},
        "context length": {"up to 50 words": 3},
        "windows": {"1 window": 2, "2 windows": 1},
    }


def test_the_same_input_gives_the_same_bytes(tmp_path: Path) -> None:
    outputs = []
    for name in ("a", "b"):
        write_checkout(tmp_path / name)
        evaluate(TASK, tmp_path / name)
        files = [p for p in (tmp_path / name).rglob("*") if p.is_file()]
        outputs.append({p.relative_to(tmp_path / name): p.read_bytes() for p in files})
    written = {Path("evaluation/squad/report.html"), Path("metrics/squad.json")}
    assert written <= outputs[0].keys()
    # Parquet records no time either, so everything can be compared.
    assert outputs[0] == outputs[1]


def test_the_page_names_model_and_file_and_is_equal_in_every_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_checkout(tmp_path)
    page = tmp_path / "evaluation/squad/report.html"
    entry = dataclasses.replace(TASK.scores.entry, start="base")
    write_json(tmp_path / "models/base/base_model.json", {"path": "/secret/place/min<i>lm", "repository": None})
    assert describe_run(entry, tmp_path) == {"Model": "fine-tuned min<i>lm", "File": "demo"}
    evaluate(TASK, tmp_path)
    text = page.read_text()
    monkeypatch.setenv("PODIUM_RUN", "2026-11-26T21:34:20+00:00 w<b>1")
    evaluate(TASK, tmp_path)
    assert page.read_text() == text
    assert '<a hidden data-up="reports/run.html">Run</a>' in text
    assert "/secret" not in text


@pytest.mark.parametrize("lost", ["questions", "features", "logits", "weights"])
def test_a_missing_input_names_the_stage_to_run_and_nothing_is_written(tmp_path: Path, lost: str) -> None:
    write_checkout(tmp_path)
    inputs = inputs_of(tmp_path)
    getattr(inputs, lost).unlink()
    with pytest.raises(InputError, match="(not found. Run|does not exist; the) .*stage"):
        evaluate(TASK, tmp_path)
    assert not (tmp_path / "evaluation" / "squad").exists()
    assert not (tmp_path / "metrics").exists()


def test_a_dev_question_without_an_answer_is_refused(tmp_path: Path) -> None:
    write_checkout(tmp_path, {"q1": []})
    with pytest.raises(InputError, match="question 'q1' has no answer"):
        evaluate(TASK, tmp_path)


def test_calibration_and_all_slices_with_their_intervals_are_written(evaluated: tuple[Path, dict[str, Any]]) -> None:
    root, metrics = evaluated
    nbest = json.loads((root / "evaluation" / "squad" / "nbest.json").read_text())
    stated, right = [nbest[f"q{i}"][0]["probability"] for i in range(3)], [1, 0, 1]
    brier = sum((p - y) ** 2 for p, y in zip(stated, right, strict=True)) / 3
    assert metrics["brier_score"] == pytest.approx(brier, abs=1e-5)
    assert sum(one["count"] for one in metrics["calibration"]) == 3
    lines = (root / "plots" / "squad-calibration.csv").read_text().splitlines()
    assert lines[0] == "low,high,count,confidence,accuracy,accuracy_low,accuracy_high"
    slices = (root / "plots" / "squad-slices.csv").read_text().splitlines()
    assert slices[:2] == [
        "by,slice,metric,score,score_low,score_high",
        "question word,what,f1,100.0,2.2202,100.0",
    ]
    assert len(slices) == 1 + len(metrics["slices"])
    page = (root / "evaluation" / "squad" / "report.html").read_text()
    assert f'Expected calibration error</td><td class="number">{metrics["calibration_error"]:.3f}</td>' in page
