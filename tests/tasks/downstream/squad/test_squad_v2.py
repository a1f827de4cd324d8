"""Questions that may have no answer: rows, threshold, figures, page, gate and card of a checkout with few questions."""

import json
import re
import shutil

import numpy as np
import pytest

from ipu_model.core.files import write_json
from tasks.downstream.evaluate import evaluate
from tasks.downstream.gate.gate import gate
from tasks.downstream.gate.released_scores import scores_json
from tasks.downstream.inference.entry import infer_entry
from tasks.downstream.inference.model import find_model
from tasks.downstream.kind import KINDS
from tasks.downstream.squad.answers import read_null_threshold
from tasks.downstream.squad.checks import QuestionData
from tasks.downstream.squad.params import SquadDataParams
from tasks.downstream.squad.score_files import score_files
from tasks.params.entries import find_entry
from tasks.params.schema import validate_params
from tasks.stage import artifacts
from tasks.stage.errors import InputError
from tests.tasks.downstream.entries import part_of, task_with, values_with
from tests.tasks.downstream.squad.window_files import Window, words, write_windows
from tests.tasks.pretraining.row_inputs import (
    read_rows,
    squad_params,
    word_tokenizer,
    write_questions,
    write_squad_rows,
)
from tests.tasks.release.card_facts import facts
from tests.tasks.tiny_model import write_tiny_model
from tests.tasks.validation.validation_data import failed_checks, validate

CONTEXT = "by the sea " * 6 + "the red house"
"""A simple rule does not take the answer."""


def task(part, **sections):
    return part_of(find_entry(validate_params(values(**sections)), "squad"), part)


def values(**sections):
    entry = {"data": {"unanswerable": "use"}, "rows": {"held_out_fraction": 0.1}, "gate": {"min_f1": 0.0}}
    return values_with({"squad": {**entry, **sections}})


def questions(prefix, answered):
    asked = {"title": "t", "context": CONTEXT, "question": "What house?"}
    answer = {"text": "red house", "answer_start": CONTEXT.index("red")}
    return [{"id": f"{prefix}{n}", **asked, "answers": [answer] * has} for n, has in enumerate(answered)]


def predicted(root, split, asked, odds):
    """Features and logits: the best span is always "red house", with a score of 8."""
    start, end = [0] * 19 + [4, 0], [0] * 20 + [4]
    windows = [Window(n, words(CONTEXT), start, end, outside=(8 + odd) / 2) for n, odd in enumerate(odds)]
    features, logits = write_windows(root / "written", windows, [question["id"] for question in asked])
    rows = task("entry").rows_folder(split, root)
    rows.mkdir(parents=True, exist_ok=True)
    shutil.move(features, rows / "features.parquet")
    (root / "predictions/squad").mkdir(parents=True, exist_ok=True)
    shutil.move(logits, root / artifacts.logits_file("squad", split))


def release(root, answers):
    """A model that was released with these answers to the questions of dev."""
    scores = task("scores")
    (root / "predictions/squad-released").mkdir(parents=True)
    text = scores_json(*scores.read_all(root), {"dev": answers})
    (root / "predictions/squad-released/scores.json").write_text(text)


DEV, DEV_ODDS = [True, True, False, False], [-3.0, 1.5, -1.0, 2.0]
HELD_OUT, HELD_OUT_ODDS = [True, False, True, False, True], [-4.0, -2.5, -1.5, 3.0, 0.5]


@pytest.fixture
def checkout(tmp_path):
    # Held out, in order of the odds: +1 -1 +1 +1 -1: the best threshold is 0.5, so that dev is answered at -3 and -1.
    train = questions("t", HELD_OUT)
    others = [{**question, "id": f"other{number}"} for number, question in enumerate(train)]
    write_questions(tmp_path / artifacts.examples_file("squad", "train"), [*others, *train])
    write_questions(tmp_path / artifacts.examples_file("squad", "dev"), questions("d", DEV))
    predicted(tmp_path, artifacts.HELD_OUT, train, HELD_OUT_ODDS)
    predicted(tmp_path, "dev", questions("d", DEV), DEV_ODDS)
    (tmp_path / "models/squad").mkdir(parents=True)
    (tmp_path / "models/squad/model.safetensors").write_bytes(b"weights")
    return tmp_path


def decided(checkout, **limits):
    for name in ("corpus", "phase1", "phase2", "squad", "squad-rows"):
        write_json(checkout / artifacts.validation_report(name), {"data": name, "valid": True})
    for name in ("pretrain-phase1", "pretrain-phase2", "squad-finetune"):
        write_json(checkout / "metrics" / f"{name}.json", {"final_loss": 0.5, "steps": 10})
    return gate(values(gate={"min_f1": 0.0, **limits}), "squad", checkout)


def test_held_out_questions_choose_the_threshold_and_dev_is_scored(checkout):
    metrics = evaluate(task("report"), checkout).metrics
    assert (metrics["null_threshold"], metrics["null_threshold_questions"]) == (0.5, 5)
    assert metrics["null_threshold_lower"] <= 0.5 <= metrics["null_threshold_upper"]
    # Chosen on dev itself: +1 at -3, -1 at -1, +1 at 1.5, -1 at 2; two are right with no answer at all.
    official = {"total": 4, "HasAns_total": 2, "NoAns_total": 2, "best_exact_thresh": -3.0, "best_f1_thresh": -3.0}
    official |= {f"{group}{name}": 50.0 for group in ("", "HasAns_", "NoAns_") for name in ("exact", "f1")}
    official |= {"best_exact": 75.0, "best_f1": 75.0}
    curve = (checkout / "evaluation/squad/risk-coverage.csv").read_text().splitlines()
    assert curve[:3] == ["coverage,risk,null_odds", "0.25,0.0,-3.0", "0.5,0.5,-1.0"]
    assert metrics["risk_coverage_area"] == pytest.approx(1 / 3, abs=1e-6)
    by = {(part["by"], part["slice"]): part["questions"] for part in metrics["slices"]}
    assert by["answer", "with an answer"] == by["answer", "without an answer"] == by["answer length", "no answer"] == 2
    assert {name: metrics[name] for name in official} == official
    folder, dev = checkout / "evaluation/squad", checkout / "dev.json"
    predictions = json.loads((folder / "predictions.json").read_text())
    assert predictions == {"d0": "red house", "d1": "", "d2": "red house", "d3": ""}
    qas = [{key: asked[key] for key in ("id", "question", "answers")} for asked in questions("d", DEV)]
    write_json(dev, {"version": "v2.0", "data": [{"paragraphs": [{"context": CONTEXT, "qas": qas}]}]})
    scored = score_files(dev, folder / "spans.json", folder / "null_odds.json", metrics["null_threshold"])
    assert scored == official, "as podium evaluate scores the files of the evaluation"
    given = score_files(dev, folder / "predictions.json")
    assert given == {name: official[name] for name in given}
    assert "NoAns_exact" in given
    write_json(checkout / "none.json", {})
    with pytest.raises(InputError, match="lacks 4 questions: d0"):
        score_files(dev, folder / "spans.json", checkout / "none.json")
    # No better than giving no answer, and without a common question no drop can be excluded.
    assert metrics["constant_score"] == 50.0
    release(checkout, ["red house", "red house", None, None])
    reasons = decided(checkout, max_no_answer_exact_match_drop=100.0)["reasons"]
    assert any("giving no answer" in reason for reason in reasons)
    assert any("unanswerable questions dropped" in reason for reason in reasons)
    # The card has both groups and a usage that runs.
    card = KINDS["squad"].card(facts(entry=task("entry"), parameters=values(), metrics=metrics))
    for text in ("2 answerable and 2 unanswerable", "0.5000", "| exact match of unanswerable questions | 50.00"):
        assert text in card
    usage = card.split("```python\n")[1].split("```")[0]
    assert "null_odds > 0.5" in usage
    compile(usage, "card", "exec")
    assert "null_odds" not in KINDS["squad"].card(facts())
    # A release and a checkout record the threshold of these weights alone.
    model = checkout / "models/squad"
    assert task("scores").settings(metrics) == {"null_threshold": 0.5}
    assert read_null_threshold(model) == 0.5
    (model / "model.safetensors").write_bytes(b"other weights")
    assert read_null_threshold(model) is None
    write_json(model / "podium.json", {"null_threshold": -1})
    assert read_null_threshold(model) == -1.0
    write_json(model / "podium.json", {"null_threshold": "low"})
    with pytest.raises(InputError, match="null_threshold must be a number, found 'low'"):
        read_null_threshold(model)


def test_a_stated_threshold_needs_no_held_out_questions(checkout):
    assert task("entry").params.options == {"unanswerable": "use"}
    assert task("entry", data={"unanswerable": "drop"}).params.options == {}, "no other stage knows of it"
    (checkout / artifacts.logits_file("squad", artifacts.HELD_OUT)).unlink()
    with pytest.raises(InputError, match="held-out.arrow not found. .*predict"):
        evaluate(task("report"), checkout)
    shutil.rmtree(task("entry").rows_folder(artifacts.HELD_OUT, checkout))
    sections = {"evaluate": {"null_threshold": 1.75}, "rows": {"held_out_fraction": 0.0}}
    assert task("entry", **sections).predicted == ("dev",)
    metrics = evaluate(task("report", **sections), checkout).metrics
    assert (metrics["null_threshold"], metrics["HasAns_exact"], metrics["NoAns_exact"]) == (1.75, 100.0, 50.0)
    assert "null_threshold_lower" not in metrics
    assert "The threshold 1.75" in (checkout / "evaluation/squad/report.html").read_text()


def test_the_gate_has_floors_and_a_released_model_for_both_groups(checkout):
    """Of 24 questions half are right in either group, those with an answer are 20: 12 are right, without answers 4."""
    answered, odds = [True] * 20 + [False] * 4, [-3.0, 1.5] * 10 + [-1.0, 2.0] * 2
    write_questions(checkout / artifacts.examples_file("squad", "dev"), questions("d", answered))
    predicted(checkout, "dev", questions("d", answered), odds)
    evaluate(task("report"), checkout)
    assert decided(checkout, min_has_answer_f1=50.0, min_no_answer_exact_match=50.0)["accepted"]
    refused = decided(checkout, min_has_answer_f1=50.5, min_no_answer_exact_match=51.0)
    floors = [re.findall(r"is (.*), below .* of (.*) \(.*gate\.(.*)\)", reason) for reason in refused["reasons"]]
    assert floors == [[("50.00", "50.5", "min_has_answer_f1")], [("50.00", "51", "min_no_answer_exact_match")]]
    # The released model gives no answer but the wrong one: it is right on all that have none, and on nothing else.
    release(checkout, ["the sea"] * 20 + [""] * 4)
    assert decided(checkout)["accepted"]
    names = {check["name"] for check in decided(checkout, max_no_answer_exact_match_drop=0.0)["checks"]}
    assert "released_model_NoAns_exact" in names
    assert "released_model_HasAns_f1" not in names


def test_windows_of_questions_without_an_answer_are_labelled_at_cls(tmp_path):
    word_tokenizer(tmp_path / "tokenizer")
    source = write_questions(tmp_path / "train.parquet", questions("q", [True, False, True]))
    params = squad_params(row_length=128, doc_stride=8, max_question_length=10)
    write_squad_rows(params, "train", source, tmp_path / "tokenizer", tmp_path / "rows")
    rows = read_rows(tmp_path / "rows")
    for row, slot in np.argwhere(rows["feature_ids"] >= 0):
        is_bare = rows["feature_ids"][row, slot] == 1
        for name in ("start_positions", "end_positions"):
            assert (rows[name][row, slot] == rows["cls_positions"][row, slot]) == is_bare


def test_held_out_questions_must_be_of_both_kinds(tmp_path):
    asked = [{**question, "title": f"t{number}"} for number, question in enumerate(questions("q", [True] * 20))]
    source = write_questions(tmp_path / "train.parquet", asked)
    with pytest.raises(InputError, match=r"downstream\.squad\.rows\.held_out"):
        task("encoder").hold_out(source, 0.1)
    task("encoder", evaluate={"null_threshold": 0.0}).hold_out(source, 0.1)


@pytest.mark.parametrize(
    ("recorded", "explicit", "expected"),
    [
        (None, None, ("refuse", "auto")),
        (None, {"data": {"unanswerable": "use"}, "evaluate": {"null_threshold": 0.0}}, ("use", 0.0)),
        (2.5, None, ("use", 2.5)),
        (2.5, {"evaluate": {"null_threshold": -1.0}}, ("use", -1.0)),
    ],
)
def test_a_finished_model_gives_no_answer_above_its_own_odds_or_those_of_the_user(
    tmp_path, recorded, explicit, expected
):
    folder = write_tiny_model(tmp_path / "qa", ["the", "red"])
    if recorded is not None:
        write_json(folder / "podium.json", {"null_threshold": recorded})
    entry = infer_entry(find_model(str(folder)), explicit=explicit).params
    assert (entry.data.unanswerable, entry.evaluate.null_threshold) == expected


@pytest.mark.parametrize(
    ("answered", "failed"),
    [([True, False], []), ([True, True], ["train_without_answer"]), ([False, False], ["train_with_answer"])],
)
def test_the_data_must_hold_both_kinds(tmp_path, answered, failed):
    for split, kinds in (("train", answered), ("dev", [True, False])):
        asked = [{**question, "question": f"{question['question']} {split}"} for question in questions(split, kinds)]
        write_questions(tmp_path / f"{split}.parquet", asked)
    entry = task_with("squad", data=SquadDataParams(min_examples=1, unanswerable="use"))
    verdict = validate(QuestionData(entry, tmp_path))
    assert [name for name in failed_checks(verdict) if name.endswith("_answer")] == failed
    assert "answers_present" not in {check["name"] for check in verdict["checks"]}
    numbers = {figure["name"]: figure["value"] for figure in verdict["statistics"]["numbers"]}
    assert numbers["train share without an answer"] == answered.count(False) / 2
