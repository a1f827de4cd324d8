"""The gate's decision on evidence, and on the files of a checkout: what is missing becomes a reason, what makes a
decision senseless an error."""

import dataclasses
import json
import math
import re
import shutil

import numpy as np
import pytest

from ipu_model.core.files import read_json, sha256_of, write_json, write_text
from tasks.downstream.gate import gate
from tasks.downstream.gate.gate import Evidence, compare_teacher, paired_differences
from tasks.downstream.gate.recipe import ReleasedComparison, ScoreEvidence, find_least_gain
from tasks.downstream.gate.released_scores import SCORES, scores_json
from tasks.downstream.gate.subject import copy_privately
from tasks.downstream.scoring.scores import Baseline
from tasks.downstream.scoring.significance import ConfidenceInterval
from tasks.downstream.squad.params import SquadGateParams
from tasks.params.downstream import DistillParams
from tasks.stage import artifacts
from tasks.stage.errors import InputError
from tests.places import ROOT
from tests.tasks.downstream.entries import task_with, values_with
from tests.tasks.downstream.gate.gate_checkout import LIMITS as STATED
from tests.tasks.downstream.gate.gate_checkout import (
    TRAININGS,
    VERDICTS,
    decide_on,
    passing_checkout,  # noqa: F401 (the fixture `checkout`)
)
from tests.tasks.downstream.texts.glue_checkout import run_stage

LIMITS = SquadGateParams(**STATED)
GOOD = Evidence(
    own=ScoreEvidence({"exact_match": 91.0, "f1": 93.5}, None, None, "3 questions"),
    examples=3,
    answered=3,
    scores_belong=True,
    verdicts=dict.fromkeys(VERDICTS, True),
    trainings=dict.fromkeys(TRAININGS, {"final_loss": 0.5, "steps": 100}),
)


def limits(**changes):
    return LIMITS.model_copy(update=changes)


def decide(found, limits=LIMITS):
    return gate.decide(task_with("squad", "scores", gate=limits), found)


def evidence(**changes):
    """Scores, and what they are compared with, may be stated by themselves."""
    values = {name: changes.pop(name, value) for name, value in GOOD.own.values.items()}
    compared = {name: changes.pop(name) for name in ("over_baseline", "baseline", "released") if name in changes}
    return dataclasses.replace(GOOD, own=dataclasses.replace(GOOD.own, values=values, **compared), **changes)


def compared_with(candidate, released, exact=None, limits=LIMITS):
    """F1 as given; exact where it is 1, unless that is given as well."""
    exact = exact or tuple([float(f1 == 1.0) for f1 in scores] for scores in (candidate, released))
    ours, theirs = (
        {"dev": np.array([*zip(*pair, strict=True)])} for pair in zip(exact, (candidate, released), strict=True)
    )
    return ReleasedComparison(*paired_differences(task_with("squad", "scores", gate=limits), ours, theirs))


@pytest.mark.parametrize(
    ("scores", "changes", "reason", "note"),
    [
        ({"f1": 85.0}, {}, None, None),  # exactly at the floor
        ({"f1": 84.9999}, {}, r"F1 is 84\.9999, .* of 85 \(downstream\.squad\.gate\.min_f1\)", None),
        ({"exact_match": 10.0}, {"min_exact_match": 10.0}, None, None),
        ({"exact_match": 9.9999}, {"min_exact_match": 10.0}, r"Exact match is 9\.9999, .* of 10 ", None),
        # NaN compares false with every floor: a careless test of "f1 < floor" would let it pass.
        *(({"f1": value}, {"min_f1": 0.0}, "F1 is .*not a score", None) for value in (math.nan, math.inf)),
        ({"f1": math.nan}, {"min_f1": None}, "F1 is .*not a score", None),
        ({}, {"min_f1": None, "above_baseline": True}, None, "a floor: "),
        ({}, {"min_f1": None, "above_baseline": False}, None, "a floor or a baseline: "),
        ({}, {"min_f1": 0.0}, None, None),
        ({}, {"min_f1": None, "min_exact_match": 50.0}, None, None),
        ({"answered": 2}, {"min_f1": None}, "1 of 3", None),  # a rejection says nothing of floors
    ],
)
def test_a_score_below_its_floor_is_rejected_and_one_without_a_floor_is_noted(scores, changes, reason, note):
    decision = decide(evidence(**scores), limits(**changes))
    assert decision["accepted"] is (reason is None)
    assert [bool(re.match(reason or "", one)) for one in decision["reasons"]] == [True] * (reason is not None)
    assert ("without_floor" in decision) == (note is not None)
    assert (note or "") in decision.get("without_floor", "")
    json.dumps(decision, allow_nan=False)


@pytest.mark.parametrize(
    ("candidate", "released", "tolerated", "accepted"),
    [
        ([1.0] * 40, [0.0] * 40, 0.0, True),
        # 20 points lost on every one of 40 questions: an interval without width at -20.
        ([0.5] * 40, [0.7] * 40, 20.5, True),
        ([0.5] * 40, [0.7] * 40, 19.5, False),
        ([0.5] * 40, [0.75] * 40, 25.0, True),  # exactly as much as is tolerated
        # One question of 40 lost: 2.5 points, but among the resamples 1 in e has no such question (upper bound 0).
        ([1.0] * 39 + [0.0], [1.0] * 40, 0.0, True),
        # Ten of 40 lost, none won: standard error sqrt(.25 * .75 / 40) = 6.8 points, upper bound about -12.
        ([1.0] * 30 + [0.0] * 10, [1.0] * 40, 10.0, False),
        ([1.0] * 30 + [0.0] * 10, [1.0] * 40, 14.0, True),
        ([1.0] * 30 + [0.0] * 10, [0.0] * 10 + [1.0] * 30, 0.0, True),  # ten lost and ten others won
    ],
)
def test_only_a_significant_drop_beyond_the_tolerated_one_is_rejected(candidate, released, tolerated, accepted):
    compared = evidence(released=compared_with(candidate, released))
    decision = decide(compared, limits(max_f1_drop=tolerated, max_exact_match_drop=tolerated))
    assert decision["accepted"] is accepted
    if not accepted:
        assert decision["reasons"][0].startswith("F1 dropped significantly")


@pytest.mark.parametrize(("confidence", "accepted"), [(0.8, False), (0.999, True)])
def test_more_confidence_rejects_less(confidence, accepted):
    # Four of 40 lost: at 80% the upper bound is about -5 points, at 99.9% some resample has lost none.
    own = limits(confidence=confidence)
    compared = evidence(released=compared_with([1.0] * 36 + [0.0] * 4, [1.0] * 40, limits=own))
    assert decide(compared, own)["accepted"] is accepted


def test_exact_match_falls_significantly_only_if_mcnemar_agrees():
    # F1 stays. Five lost, none won: the interval ends below 0, but of five coins all fall alike 2 in 32 times.
    five, six = (
        compared_with((0.9,) * 40, (0.9,) * 40, ((1.0,) * 20 + (0.0,) * 20, (1.0,) * (20 + n) + (0.0,) * (20 - n)))
        for n in (5, 6)
    )
    assert decide(evidence(released=five))["accepted"]
    [reason] = decide(evidence(released=six))["reasons"]
    # Six of 40: standard error sqrt(.15 * .85 / 40) = 5.6 points, 1.96 of them 11.1; so few questions show no less.
    shown = re.match(r"Exact match dropped.* -15\.00 .*6 lost and 0 won .*p = 0\.03125.* about ([\d.]+) points", reason)
    assert shown is not None
    assert 9 < float(shown[1]) < 13
    assert decide(evidence(released=six), limits(max_exact_match_drop=15.0))["accepted"]


@pytest.mark.parametrize(
    ("lost", "won", "same", "tolerated", "accepted", "needed"),
    [
        (20, 0, 20, 70.0, True, False),
        (20, 0, 20, 1.0, False, False),  # a drop beyond the limit, with any number of examples
        (1, 1, 38, 2.0, False, True),  # no difference, but 40 examples exclude none of 2 points
        (10, 10, 3980, 2.0, True, False),
        (0, 0, 40, 2.0, False, True),  # equal answers of 40 examples neither: others may differ in up to 9 of 100
        (0, 0, 400, 2.0, True, False),
        (0, 30, 10, 0.0, True, False),
    ],
)
def test_a_student_must_be_shown_not_to_be_worse_than_its_teacher(lost, won, same, tolerated, accepted, needed):
    task = task_with("squad", "scores", gate=LIMITS)
    ours, theirs = ([0.0] * lost + [1.0] * (won + same), [1.0] * lost + [0.0] * won + [1.0] * same)
    both = ({"dev": np.array([scores, scores]).T} for scores in (ours, theirs))
    decision = decide(evidence(teacher=compare_teacher(task, *both)), limits(max_teacher_drop=tolerated))
    assert decision["accepted"] is accepted
    [check] = [check for check in decision["checks"] if check["name"] == "teacher"]
    assert check["difference"]["mean"] == round(100 * (won - lost) / len(ours), 4)
    if not accepted:
        [reason] = decision["reasons"]
        assert f"on {len(ours)} questions" in reason
        assert f"at least {0 - tolerated:g} (downstream.squad.gate.max_teacher_drop)" in reason
        assert ("would be needed" in reason) is needed
    nothing = decide(evidence(teacher=ReleasedComparison(0, {})), limits(max_teacher_drop=90.0))
    assert not nothing["accepted"], "no common question excludes nothing"


def test_the_correlation_of_a_student_is_compared_by_resamples_alone():
    """One added extreme example may turn a correlation around, so its bounds would exclude nothing."""
    task = task_with("classification", "scores", regression=True)
    values, generator = np.arange(100.0), np.random.default_rng(2)
    noisy = [{"dev": np.stack([values, values + generator.normal(0, 5, 100)], 1)} for _ in range(2)]
    difference = compare_teacher(task, *noisy).differences["pearson"]
    assert difference.excludes_drop(2.0)
    assert not difference.excludes_drop(0.0)


def test_every_baseline_must_be_beaten():
    gains = {"better": ConfidenceInterval(1.0, 0.5, 1.5), "worse but not surely": ConfidenceInterval(2.0, -0.1, 4.0)}
    baselines = [Baseline(name, {name: None}) for name in gains]
    least = find_least_gain(baselines, lambda outcomes: gains[next(iter(outcomes))])
    assert least == (gains["worse but not surely"], "worse but not surely")
    assert find_least_gain([], lambda outcomes: gains["better"]) == (None, "")


@pytest.mark.parametrize(
    ("labels", "answers", "regression", "opposed"),
    [
        ([0, 1] * 30, [1, 0] * 24 + [0, 1] * 6, False, True),  # the labels of a model with 80 % were swapped
        ([0, 1] * 30, [0, 1] * 24 + [1, 0] * 6, False, False),
        ([0, 1] * 30, [1] * 60, False, False),
        ([0] * 54 + [1] * 6, [0] * 40 + [1] * 20, False, False),  # below a constant answer
        ([0, 1, 2] * 20, [1, 2, 0] * 20, False, True),
        ([*range(30)], [*range(30, 0, -1)], True, True),
        ([*range(30)], [2.0] * 30, True, False),
        ([0, 1], [1, 0], False, False),  # too few to tell
    ],
)
def test_a_model_against_the_labels_stops_a_release(labels, answers, regression, opposed):
    task = task_with("classification", "scores", regression=regression)
    rows = np.array([*zip(labels, answers, strict=True), (0, math.nan)], np.float64)
    assert gate.is_opposed(task, {"dev": rows}) == opposed
    decision = decide(evidence(is_opposed=opposed))
    assert decision["accepted"] != opposed
    assert [one["name"] for one in decision["checks"] if not one["ok"]] == ["released_model_opposed"] * opposed


def test_the_evidence_is_copied_where_no_other_user_looks_and_removed(tmp_path):
    write_text(tmp_path / "metrics.json", "{}")
    for _ in range(2):
        with copy_privately({"a/b": tmp_path / "metrics.json", "c": tmp_path / "c"}, tmp_path / "new/place") as found:
            folder, hashes = found
            assert hashes == {"a/b": sha256_of(folder / "a/b"), "c": None}
            assert folder.stat().st_mode & 0o077 == 0
        assert list((tmp_path / "new/place").iterdir()) == []


def change(path, **values):
    write_json(path, {**read_json(path), **values})


def test_a_good_checkout_is_accepted_and_the_record_says_about_which_model(checkout):
    assert decide_on(checkout)["accepted"]
    record = read_json(checkout / "metrics/squad-gate.json")
    assert (record["accepted"], record["reasons"]) == (True, [])
    assert record["metrics"] == {"exact_match": 66.6667, "f1": 88.8889}
    assert record["checks"][0] == {"name": "f1", "ok": True, "found": 88.8889, "required": 85.0}
    there = {name: sha256 for name, sha256 in record["judged"].items() if (checkout / name).exists()}
    assert there == {name: sha256_of(checkout / name) for name in there}
    assert set(there) >= {
        "models/squad/model.safetensors",
        "evaluation/squad/predictions.json",
        "metrics/squad.json",
        "metrics/squad-finetune.json",
        "data/examples/squad/dev.parquet",
        "reports/validation/corpus.json",
    }
    absent = {name for name, sha256 in record["judged"].items() if sha256 is None}
    assert absent == record["judged"].keys() - there
    assert absent >= {"released/predictions.json", "data/rows/squad/train/manifest.json"}


@pytest.mark.parametrize("base", [{}, {"source": "folder"}], ids=["fresh weights", "a base model"])
def test_without_pretraining_no_phase_is_judged_whatever_lies_there(checkout, base):
    for phase in ("phase1", "phase2"):
        change(checkout / "metrics" / f"pretrain-{phase}.json", final_loss=None, steps=3)
        change(checkout / artifacts.validation_report(phase), valid=False)
    assert not decide_on(checkout)["accepted"]
    tokenizer = {"source": "file"}  # of which no corpus is needed
    values = values_with(pretrain={"enabled": False}, base_model=base, tokenizer=tokenizer)
    decision = gate.gate(values, "squad", checkout)
    assert decision["accepted"], decision["reasons"]
    names = {check["name"] for check in decision["checks"]}
    assert {one for one in names if "_" in one} == {
        "beats_constant_answer",
        "data_squad",
        "data_squad-rows",
        "loss_squad-finetune",
        "predictions_complete",
        "scores_belong_to_predictions",
    }
    judged = read_json(checkout / "metrics/squad-gate.json")["judged"]
    assert [name for name in judged if "phase" in name or "corpus" in name] == []
    assert ("models/base/base_model.json" in judged) == bool(base)


def test_an_entry_that_starts_from_phase1_rests_on_phase1_alone(checkout):
    change(checkout / artifacts.validation_report("phase2"), valid=False)
    decision = gate.gate(values_with({"squad": {"start": "phase1"}}), "squad", checkout)
    assert decision["accepted"], decision["reasons"]
    names = {check["name"] for check in decision["checks"] if "phase" in check["name"]}
    assert names == {"data_phase1", "loss_pretrain-phase1"}


def test_all_that_is_missing_is_named_at_once(checkout):
    shutil.rmtree(checkout / "reports")
    for name in TRAININGS:
        (checkout / "metrics" / f"{name}.json").unlink()
    decision = decide_on(checkout)
    assert len(decision["reasons"]) == len(VERDICTS) + len(TRAININGS) == 5 + 3
    assert not decision["accepted"]


CORPUS, FIGURES = str(artifacts.validation_report("corpus")), "metrics/squad-finetune.json"


@pytest.mark.parametrize(
    ("name", "content", "failed"),
    [
        (CORPUS, '{"data": "corpus", "valid": false}', {"data_corpus": "not valid"}),
        (CORPUS, '{"data": "squad", "valid": true}', {"data_corpus": "no verdict"}),  # a copy of another verdict
        *((CORPUS, text, {"data_corpus": "no verdict"}) for text in ('{"data": "corpus", "valid": 1}', "x", "[]")),
        (FIGURES, '{"final_loss": 0.0, "steps": 1}', {}),
        (FIGURES, '{"final_loss": null, "steps": 0}', {}),  # epochs: 0
        *((FIGURES, f'{{"final_loss": {loss}, "steps": 3}}', {"loss_squad-finetune"})
          for loss in ("null", "NaN", "Infinity", "true", '"low"')),
        *((FIGURES, text, {"loss_squad-finetune"}) for text in ('{"steps": 5}', "x")),
    ],
)  # fmt: skip
def test_only_a_verdict_about_these_data_and_a_finite_loss_count(checkout, name, content, failed):
    (checkout / name).write_text(content)
    decision = decide_on(checkout)
    found = {check["name"]: check["found"] for check in decision["checks"] if not check["ok"]}
    assert found.keys() == set(failed)
    assert found == failed or name == FIGURES
    assert decision["accepted"] is not bool(failed)


@pytest.mark.parametrize(
    ("name", "value", "found"),
    [
        ("f1", "NaN", "f1=nan, computed 88.8889"),
        ("f1", "98.8889", "f1=98.8889, computed 88.8889"),
        ("f1_low", "88.8", "f1_low=88.8, computed 25.1103"),
        ("total", "10570", "total=10570, computed 3"),
    ],
)
def test_scores_that_the_predictions_do_not_have_are_refused(checkout, name, value, found):
    path = checkout / artifacts.metrics_file("squad")
    path.write_text(re.sub(rf'"{name}": [\d.]+', f'"{name}": {value}', path.read_text(), count=1))
    with pytest.raises(InputError, match=re.escape(found)) as refused:
        decide_on(checkout, min_f1=0.0)
    assert "dvc repro --force --single-item evaluate@squad" in str(refused.value)
    assert not (checkout / artifacts.metrics_file("squad", "gate")).exists()


def test_predictions_or_weights_that_were_changed_after_scoring_are_rejected(checkout):
    path = checkout / artifacts.predictions_file("squad")
    scored = path.read_text()
    path.write_text('{"q0": "the red house", "q1": "two dogs"}')
    floor, baseline, complete, belongs = decide_on(checkout)["reasons"]
    assert "F1 is 66.67" in floor, "counted on what lies there"
    assert "no better" in baseline
    assert "1 of 3 dev" in complete
    assert "does not belong" in belongs
    path.write_text(scored)
    (checkout / artifacts.model_folder("squad") / "model.safetensors").write_bytes(b"others")
    assert "or weights" in decide_on(checkout)["reasons"][0]


@pytest.mark.parametrize(
    ("released", "accepted"),
    [
        ({"q0": "sea", "q1": "cat", "q2": "Lolland"}, True),  # all wrong
        ({"q1": "two dogs"}, False),  # on the only common question 1 against 2/3: no spread, so significant
        ({"other": "x"}, False),  # nothing to compare
        (None, True),
    ],
)
def test_a_known_released_model_is_compared(checkout, released, accepted):
    write_text(checkout / "inputs" / "released" / "README.md", "put predictions.json here")
    if released is not None:
        write_json(checkout / "inputs" / "released" / "predictions.json", released)
    decision = decide_on(checkout)
    assert decision["accepted"] is accepted
    assert ("released_model" in {check["name"] for check in decision["checks"]}) == (released is not None)


def test_a_student_is_compared_with_the_scores_of_its_teacher(checkout):
    task, examples = task_with("squad", "scores").read_all(checkout)
    predictions = task.read_predictions(checkout / "evaluation/squad/predictions.json", examples)
    write_text(checkout / artifacts.teacher_folder("squad", SCORES), scores_json(task, examples, predictions))
    distill = DistillParams(teacher="inputs/teacher").model_dump()
    entry = {"distill": distill, "gate": {**STATED, "max_teacher_drop": 90.0}}
    decision = gate.gate(values_with({"squad": entry}), "squad", checkout)
    assert decision["accepted"], decision["reasons"]
    [found] = [check for check in decision["checks"] if check["name"] == "teacher"]
    assert found["difference"]["mean"] == 0


@pytest.mark.parametrize(
    ("path", "content", "message"),
    [
        ("metrics/squad.json", None, "Run the stage evaluate@squad"),
        ("metrics/squad.json", '{"f1": "high", "exact_match": 1, "files": []}', "f1, exact_match"),
        ("metrics/squad.json", '{"f1": 1, "exact_match": 1, "files": []}', "SHA-256"),
        ("evaluation/squad/predictions.json", None, "not found"),
        ("evaluation/squad/predictions.json", "[]", "predictions.json must be"),
        ("data/examples/squad/dev.parquet", None, "the examples stage"),
        ("inputs/released/predictions.json", '{"q0": 3}', "released/predictions.json.* string"),
    ],
)
def test_without_scores_nothing_is_decided(checkout, path, content, message):
    if content is None:
        (checkout / path).unlink()
    else:
        write_text(checkout / path, content)
    with pytest.raises(InputError, match=message):
        decide_on(checkout)
    assert not (checkout / artifacts.metrics_file("squad", "gate")).exists()


def test_the_stage_ends_well_either_way(checkout, monkeypatch, capsys):
    tracked = (ROOT / "params.yaml").read_text(encoding="utf-8").replace("backends: []", "backends: [tensorboard]")
    write_text(checkout / "params.yaml", tracked)
    change(checkout / artifacts.metrics_file("squad", "finetune"), fingerprint="ab" * 32, steps=3)
    monkeypatch.chdir(checkout)
    run_stage(gate, "gate@squad")
    assert [*(checkout / "runs/tracking").rglob("events.out.tfevents*")], "the verdict is in the run of the training"
    assert capsys.readouterr().out.startswith("gate of squad: accepted, 12 of 12 ")
    change(checkout / artifacts.validation_report("phase2"), valid=False)
    run_stage(gate, "gate@squad")
    said = capsys.readouterr().out
    assert said.startswith("gate of squad: rejected, 11 of 12 ")
    assert "phase2" in said
