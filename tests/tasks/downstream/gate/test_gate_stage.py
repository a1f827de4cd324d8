"""The gate on the files of a checkout: what is missing becomes a reason, what makes a decision senseless an error."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from ipu_model.core.files import sha256_of, write_json, write_text
from tasks.downstream.gate import gate as gate_stage
from tasks.downstream.gate.gate import gate
from tasks.downstream.gate.released_scores import SCORES, scores_json
from tasks.params.downstream import DistillParams
from tasks.stage import artifacts
from tasks.stage.errors import InputError
from tests.places import ROOT
from tests.tasks.downstream.entries import task_with, values_with
from tests.tasks.downstream.gate.gate_checkout import (
    LIMITS,
    TRAININGS,
    VERDICTS,
    decide_on,
    passing_checkout,  # noqa: F401 (the fixture `checkout`)
)
from tests.tasks.downstream.texts.glue_checkout import run_stage


def change(path: Path, **values: Any) -> None:
    write_json(path, {**json.loads(path.read_text()), **values})


def test_a_good_checkout_is_accepted_and_the_record_says_about_which_model(checkout: Path) -> None:
    assert decide_on(checkout)["accepted"]
    record = json.loads((checkout / "metrics" / "squad-gate.json").read_text())
    assert record["accepted"] is True
    assert record["reasons"] == []
    assert record["metrics"] == {"exact_match": 66.6667, "f1": 88.8889}
    judged = record["judged"]
    assert {name for name in judged if judged[name] is None} == {
        *(f"data/rows/{name}/manifest.json" for name in ("phase1", "phase2", "squad/train", "squad/dev")),
        "released/predictions.json",
        "released/scores.json",
    }
    files = {name: sha256 for name, sha256 in judged.items() if sha256 is not None}
    assert files == {name: sha256_of(checkout / name) for name in files}
    assert set(files) >= {
        "models/squad/model.safetensors",
        "evaluation/squad/predictions.json",
        "metrics/squad.json",
        "metrics/squad-finetune.json",
        "data/examples/squad/dev.parquet",
        "reports/validation/corpus.json",
    }
    assert record["checks"][0] == {"name": "f1", "ok": True, "found": 88.8889, "required": 85.0}


@pytest.mark.parametrize("base", [{}, {"source": "folder"}], ids=["fresh weights", "a base model"])
def test_without_pretraining_no_phase_is_judged_whatever_lies_there(checkout: Path, base: dict[str, Any]) -> None:
    for phase in ("phase1", "phase2"):
        change(checkout / "metrics" / f"pretrain-{phase}.json", final_loss=None, steps=3)
        change(checkout / artifacts.validation_report(phase), valid=False)
    assert not decide_on(checkout)["accepted"]
    tokenizer = {"source": "file"}  # of which no corpus is needed
    values = values_with(pretrain={"enabled": False}, base_model=base, tokenizer=tokenizer)
    decision = gate(values, "squad", checkout)
    assert decision["accepted"], decision["reasons"]
    assert {check["name"] for check in decision["checks"]} == {
        "f1",
        "beats_constant_answer",
        "data_squad",
        "data_squad-rows",
        "loss_squad-finetune",
        "predictions_complete",
        "scores_belong_to_predictions",
    }
    judged = json.loads((checkout / "metrics" / "squad-gate.json").read_text())["judged"]
    assert [name for name in judged if "phase" in name or "corpus" in name] == []
    assert ("models/base/base_model.json" in judged) == bool(base)


def test_an_entry_that_starts_from_phase1_rests_on_phase1_alone(checkout: Path) -> None:
    change(checkout / artifacts.validation_report("phase2"), valid=False)
    decision = gate(values_with({"squad": {"start": "phase1"}}), "squad", checkout)
    assert decision["accepted"], decision["reasons"]
    names = {check["name"] for check in decision["checks"]}
    assert {"data_phase1", "loss_pretrain-phase1"} <= names
    assert [name for name in names if "phase2" in name] == []


def test_all_that_is_missing_is_named_at_once(checkout: Path) -> None:
    shutil.rmtree(checkout / "reports")
    for name in TRAININGS:
        (checkout / "metrics" / f"{name}.json").unlink()
    decision = decide_on(checkout)
    assert len(decision["reasons"]) == len(VERDICTS) + len(TRAININGS) == 5 + 3
    assert not decision["accepted"]


@pytest.mark.parametrize(
    ("content", "found"),
    [
        ({"data": "corpus", "valid": False}, "not valid"),
        ({"data": "squad", "valid": True}, "no verdict"),  # a copy of another verdict
        ({"data": "corpus", "valid": 1}, "no verdict"),
        ("not JSON", "no verdict"),
        ([], "no verdict"),
    ],
)
def test_only_a_verdict_about_these_data_that_says_valid_counts(checkout: Path, content: Any, found: str) -> None:
    path = checkout / artifacts.validation_report("corpus")
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    checks = {check["name"]: check for check in decide_on(checkout)["checks"]}
    assert (checks["data_corpus"]["ok"], checks["data_corpus"]["found"]) == (False, found)


@pytest.mark.parametrize("text", ['{"final_loss": NaN, "steps": 3}', '{"final_loss": "low", "steps": 3}', "{}", "x"])
def test_figures_without_a_finite_loss_are_rejected(checkout: Path, text: str) -> None:
    (checkout / "metrics" / "squad-finetune.json").write_text(text)
    decision = decide_on(checkout)
    assert len(decision["reasons"]) == 1
    assert "squad-finetune" in decision["reasons"][0]


@pytest.mark.parametrize(
    ("name", "value", "found"),
    [
        ("f1", "NaN", "f1=nan, computed 88.8889"),
        ("f1", "98.8889", "f1=98.8889, computed 88.8889"),
        ("exact_match", "66.6687", "exact_match=66.6687, computed 66.6667"),
        ("f1_low", "88.8", "f1_low=88.8, computed 25.1103"),
        ("total", "10570", "total=10570, computed 3"),
    ],
)
def test_scores_that_the_predictions_do_not_have_are_refused(checkout: Path, name: str, value: str, found: str) -> None:
    path = checkout / artifacts.metrics_file("squad")
    path.write_text(re.sub(rf'"{name}": [\d.]+', f'"{name}": {value}', path.read_text(), count=1))
    with pytest.raises(InputError, match=re.escape(found)) as refused:
        decide_on(checkout, min_f1=0.0)
    assert "dvc repro --force --single-item evaluate@squad" in str(refused.value)
    assert not (checkout / artifacts.metrics_file("squad", "gate")).exists()


def test_predictions_that_were_changed_after_scoring_are_rejected(checkout: Path) -> None:
    (checkout / artifacts.predictions_file("squad")).write_text('{"q0": "the red house", "q1": "two dogs"}')
    reasons = decide_on(checkout)["reasons"]
    assert len(reasons) == 4
    assert "F1 is 66.67, below the floor of 85" in reasons[0], "counted on what lies there"
    assert "no better than the first 5 words of the context" in reasons[1]
    assert "1 of 3 dev questions have no prediction" in reasons[2]
    assert "does not belong to the current" in reasons[3]


def test_weights_that_were_changed_after_scoring_are_rejected(checkout: Path) -> None:
    (checkout / artifacts.model_folder("squad") / "model.safetensors").write_bytes(b"others")
    assert "or weights" in decide_on(checkout)["reasons"][0]


def test_predictions_of_the_released_model_behind_a_lost_link_are_not_taken_for_none(checkout: Path) -> None:
    (checkout / LIMITS["released"]).mkdir(parents=True)
    (checkout / LIMITS["released"] / "predictions.json").symlink_to("../gone.json")
    with pytest.raises(
        InputError, match="downstream.squad.gate.released='.*' contains 1 broken link.s., predictions.json"
    ):
        decide_on(checkout)


@pytest.mark.parametrize(
    ("released", "accepted"),
    [
        ({"q0": "red house", "q1": "two", "q2": "Ærø & <b>Fyn</b>"}, True),  # the same answers
        ({"q0": "sea", "q1": "cat", "q2": "Lolland"}, True),  # all wrong
        ({"q1": "two dogs"}, False),  # on the only common question 1 against 2/3: no spread, so significant
        ({"other": "x"}, False),  # nothing to compare
    ],
)
def test_the_released_model_is_compared_when_its_predictions_are_there(
    checkout: Path, released: dict[str, str], accepted: bool
) -> None:
    write_json(checkout / "inputs" / "released" / "predictions.json", released)
    decision = decide_on(checkout)
    assert decision["accepted"] is accepted
    assert "released_model" in {check["name"] for check in decision["checks"]}


def test_a_student_is_compared_with_the_scores_of_its_teacher(checkout: Path) -> None:
    task, examples = task_with("squad", "scores").read_all(checkout)
    predictions = task.read_predictions(checkout / "evaluation/squad/predictions.json", examples)
    write_text(checkout / artifacts.teacher_folder("squad", SCORES), scores_json(task, examples, predictions))
    distill = DistillParams(teacher="inputs/teacher").model_dump()
    entry = {"distill": distill, "gate": {**LIMITS, "max_teacher_drop": 90.0}}
    decision = gate(values_with({"squad": entry}), "squad", checkout)
    assert decision["accepted"], decision["reasons"]
    [found] = [check for check in decision["checks"] if check["name"] == "teacher"]
    assert found["difference"]["mean"] == 0


def test_an_empty_folder_of_the_released_model_means_nothing_was_released(checkout: Path) -> None:
    (checkout / "inputs" / "released").mkdir(parents=True)
    (checkout / "inputs" / "released" / "README.md").write_text("put predictions.json here")
    assert "released_model" not in {check["name"] for check in decide_on(checkout)["checks"]}


@pytest.mark.parametrize(
    ("path", "content", "message"),
    [
        ("metrics/squad.json", None, "Run the stage evaluate@squad"),
        ("metrics/squad.json", '{"f1": "high", "exact_match": 1, "files": []}', "must contain f1, exact_match"),
        ("metrics/squad.json", '{"f1": 1, "exact_match": 1, "files": []}', "SHA-256"),
        ("evaluation/squad/predictions.json", None, "not found"),
        ("evaluation/squad/predictions.json", "[]", "must be an object"),
        ("data/examples/squad/dev.parquet", None, "the examples stage makes it"),
        ("inputs/released/predictions.json", '{"q0": 3}', "must be a string"),
    ],
)
def test_without_scores_there_is_nothing_to_decide(
    checkout: Path, path: str, content: str | None, message: str
) -> None:
    target = checkout / path
    if content is None:
        target.unlink()
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(content)
    with pytest.raises(InputError, match=message):
        decide_on(checkout)
    assert not (checkout / artifacts.metrics_file("squad", "gate")).exists()


def test_the_stage_ends_well_also_when_rejected(
    checkout: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copy(ROOT / "params.yaml", checkout / "params.yaml")
    monkeypatch.chdir(checkout)
    run_stage(gate_stage, "gate@squad")
    compared = "  not compared with a released model, as the gate could not see its target\n"
    assert capsys.readouterr().out == f"gate of squad: accepted, 12 of 12 checks passed\n{compared}"
    change(checkout / artifacts.validation_report("phase2"), valid=False)
    run_stage(gate_stage, "gate@squad")
    decided = capsys.readouterr().out
    assert decided.splitlines()[0] == "gate of squad: rejected, 11 of 12 checks passed"
    assert "phase2 is not valid" in decided
