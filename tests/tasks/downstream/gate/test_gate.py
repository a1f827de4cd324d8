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
from tests.tasks.downstream.gate.gate_checkout import LIMITS as VALUES
from tests.tasks.downstream.gate.gate_checkout import (
    TRAININGS,
    VERDICTS,
    decide_on,
    passing_checkout,  # noqa: F401 (the fixture `checkout`)
)
from tests.tasks.downstream.texts.glue_checkout import run_stage

LIMITS = SquadGateParams(**VALUES)
GOOD = Evidence(
    own=ScoreEvidence({"exact_match": 91.0, "f1": 93.5}, None, None, "3 questions"),
    examples=3,
    answered=3,
    scores_belong=True,
    verdicts=dict.fromkeys(VERDICTS, True),
    trainings=dict.fromkeys(TRAININGS, {"final_loss": 0.5, "steps": 100}),
)


def decide(limits=None, released=None, **changes):
    """On evidence in which scores may be other ones."""
    scores = {name: changes.pop(name, value) for name, value in GOOD.own.values.items()}
    scored = dataclasses.replace(GOOD.own, values=scores, released=released)
    task = task_with("squad", "scores", gate=LIMITS.model_copy(update=limits or {}))
    return gate.decide(task, dataclasses.replace(GOOD, own=scored, **changes))


def compare(candidate, released, exact=None, **limits):
    """F1 as given; exact where it is 1, unless that is given as well."""
    both = [{"dev": np.stack([f1, np.equal(f1, 1.0)], 1)[:, ::-1]} for f1 in (candidate, released)]
    if exact is not None:
        both = [{"dev": np.stack([match, f1], 1)} for match, f1 in zip(exact, (candidate, released), strict=True)]
    task = task_with("squad", "scores", gate=LIMITS.model_copy(update=limits))
    return ReleasedComparison(*paired_differences(task, *both))


@pytest.mark.parametrize(
    ("scores", "limits", "reason", "note"),
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
        ({}, {"min_f1": None, "min_exact_match": 50.0}, None, None),
        ({"answered": 2}, {"min_f1": None}, "1 of 3", None),  # a rejection says nothing of floors
    ],
)
def test_a_score_below_its_floor_is_rejected_and_one_without_a_floor_is_noted(scores, limits, reason, note):
    decision = decide(limits, **scores)
    assert decision["accepted"] is (reason is None)
    assert [bool(re.match(reason or "", text)) for text in decision["reasons"]] == [True] * (reason is not None)
    assert ("without_floor" in decision) == (note is not None)
    assert (note or "") in decision.get("without_floor", "")
    json.dumps(decision, allow_nan=False)


@pytest.mark.parametrize(
    ("candidate", "released", "tolerated", "confidence", "accepted"),
    [
        # 20 points lost on every one of 40 questions: an interval without width at -20.
        ([0.5] * 40, [0.7] * 40, 20.5, 0.95, True),
        ([0.5] * 40, [0.7] * 40, 19.5, 0.95, False),
        ([0.5] * 40, [0.75] * 40, 25.0, 0.95, True),  # exactly as much as is tolerated
        # One question of 40 lost: 2.5 points, but among the resamples 1 in e has no such question (upper bound 0).
        ([1.0] * 39 + [0.0], [1.0] * 40, 0.0, 0.95, True),
        # Ten of 40 lost, none won: standard error sqrt(.25 * .75 / 40) = 6.8 points, upper bound about -12.
        ([1.0] * 30 + [0.0] * 10, [1.0] * 40, 10.0, 0.95, False),
        ([1.0] * 30 + [0.0] * 10, [1.0] * 40, 14.0, 0.95, True),
        ([1.0] * 30 + [0.0] * 10, [0.0] * 10 + [1.0] * 30, 0.0, 0.95, True),  # ten lost and ten others won
        # Four of 40 lost: at 80% the upper bound is about -5 points, at 99.9% some resample has lost none.
        ([1.0] * 36 + [0.0] * 4, [1.0] * 40, 0.0, 0.8, False),
        ([1.0] * 36 + [0.0] * 4, [1.0] * 40, 0.0, 0.999, True),
    ],
)
def test_only_a_significant_drop_beyond_the_tolerated_one_is_rejected(
    candidate, released, tolerated, confidence, accepted
):
    limits = {"max_f1_drop": tolerated, "max_exact_match_drop": tolerated, "confidence": confidence}
    decision = decide(limits, compare(candidate, released, confidence=confidence))
    assert decision["accepted"] is accepted
    assert accepted or decision["reasons"][0].startswith("F1 dropped significantly")


def test_exact_match_falls_significantly_only_if_mcnemar_agrees():
    # F1 stays. Five lost, none won: the interval ends below 0, but of five coins all fall alike 2 in 32 times.
    exact = {n: ([1.0] * 20 + [0.0] * 20, [1.0] * (20 + n) + [0.0] * (20 - n)) for n in (5, 6)}
    five, six = (compare([0.9] * 40, [0.9] * 40, exact[n]) for n in (5, 6))
    assert decide(released=five)["accepted"]
    [reason] = decide(released=six)["reasons"]
    # Six of 40: standard error sqrt(.15 * .85 / 40) = 5.6 points, 1.96 of them 11.1; so few questions show no less.
    shown = re.match(r"Exact match dropped.* -15\.00 .*6 lost and 0 won .*p = 0\.03125.* about ([\d.]+) points", reason)
    assert shown is not None
    assert 9 < float(shown[1]) < 13
    assert decide({"max_exact_match_drop": 15.0}, six)["accepted"]


@pytest.mark.parametrize(
    ("lost", "won", "same", "tolerated", "accepted", "needed"),
    [
        (20, 0, 20, 1.0, False, False),  # a drop beyond the limit, with any number of examples
        (1, 1, 38, 2.0, False, True),  # no difference, but 40 examples exclude none of 2 points
        (10, 10, 3980, 2.0, True, False),
        (0, 0, 40, 2.0, False, True),  # equal answers of 40 examples neither: others may differ in up to 9 of 100
        (0, 0, 400, 2.0, True, False),
        (0, 30, 10, 0.0, True, False),
    ],
)
def test_a_student_must_be_shown_not_to_be_worse_than_its_teacher(lost, won, same, tolerated, accepted, needed):
    ours, theirs = ([0.0] * lost + [1.0] * (won + same), [1.0] * lost + [0.0] * won + [1.0] * same)
    both = ({"dev": np.array([scores, scores]).T} for scores in (ours, theirs))
    compared = compare_teacher(task_with("squad", "scores", gate=LIMITS), *both)
    decision = decide({"max_teacher_drop": tolerated}, teacher=compared)
    assert decision["accepted"] is accepted
    [check] = [check for check in decision["checks"] if check["name"] == "teacher"]
    assert check["difference"]["mean"] == round(100 * (won - lost) / len(ours), 4)
    if not accepted:
        [reason] = decision["reasons"]
        assert f"on {len(ours)} questions" in reason
        assert f"at least {0 - tolerated:g} (downstream.squad.gate.max_teacher_drop)" in reason
        assert ("would be needed" in reason) is needed


def test_nothing_excludes_a_drop_without_a_common_question_and_resamples_alone_do_of_correlations():
    """One added extreme example may turn a correlation around, so its bounds would exclude nothing."""
    assert not decide({"max_teacher_drop": 90.0}, teacher=ReleasedComparison(0, {}))["accepted"]
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
    decision = decide(is_opposed=opposed)
    assert decision["accepted"] != opposed
    failed = [check["name"] for check in decision["checks"] if not check["ok"]]
    assert failed == ["released_model_opposed"] * opposed


def test_the_evidence_is_copied_where_no_other_user_looks_and_removed(tmp_path):
    write_text(tmp_path / "metrics.json", "{}")
    for _ in range(2):
        with copy_privately({"a/b": tmp_path / "metrics.json", "c": tmp_path / "c"}, tmp_path / "new/place") as copied:
            folder, hashes = copied
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


OFF = {"pretrain": {"enabled": False}, "tokenizer": {"source": "file"}}  # of which no corpus is needed
ALONE = {"data_squad", "data_squad-rows", "loss_squad-finetune", "predictions_complete", "scores_belong_to_predictions"}


@pytest.mark.parametrize(
    ("entry", "sections", "phases"),
    [
        ({}, OFF, set()),
        ({}, {**OFF, "base_model": {"source": "folder"}}, set()),
        ({"start": "phase1"}, {}, {"data_phase1", "loss_pretrain-phase1", "data_corpus"}),
    ],
)
def test_no_phase_is_judged_that_the_entry_does_not_start_from_whatever_lies_there(checkout, entry, sections, phases):
    for phase in ("phase2",) if phases else ("phase1", "phase2"):
        change(checkout / "metrics" / f"pretrain-{phase}.json", final_loss=None, steps=3)
        change(checkout / artifacts.validation_report(phase), valid=False)
    assert not decide_on(checkout)["accepted"]
    decision = gate.gate(values_with({"squad": entry}, **sections), "squad", checkout)
    assert decision["accepted"], decision["reasons"]
    names = {check["name"] for check in decision["checks"] if "_" in check["name"]}
    assert names == {"beats_constant_answer", *ALONE, *phases}
    judged = read_json(checkout / "metrics/squad-gate.json")["judged"]
    assert phases or [name for name in judged if "phase" in name or "corpus" in name] == []
    assert ("models/base/base_model.json" in judged) == ("base_model" in sections)


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
    failures = {check["name"]: check["found"] for check in decision["checks"] if not check["ok"]}
    assert failures.keys() == set(failed)
    assert failures == failed or name == FIGURES
    assert decision["accepted"] is not bool(failed)


METRICS, PREDICTIONS = "metrics/squad.json", "evaluation/squad/predictions.json"


@pytest.mark.parametrize(
    ("path", "content", "message"),
    [
        *((METRICS, change, rf"(?s){message}.*dvc repro --force --single-item evaluate@squad") for change, message in (
            (("f1", "NaN"), "f1=nan, computed 88.8889"),
            (("f1", "98.8889"), "f1=98.8889, computed 88.8889"),
            (("f1_low", "88.8"), "f1_low=88.8, computed 25.1103"),
            (("total", "10570"), "total=10570, computed 3"),
        )),
        (METRICS, None, "Run the stage evaluate@squad"),
        (METRICS, '{"f1": "high", "exact_match": 1, "files": []}', "f1, exact_match"),
        (METRICS, '{"f1": 1, "exact_match": 1, "files": []}', "SHA-256"),
        (PREDICTIONS, None, "not found"),
        (PREDICTIONS, "[]", "predictions.json must be"),
        ("data/examples/squad/dev.parquet", None, "the examples stage"),
        ("inputs/released/predictions.json", '{"q0": 3}', "released/predictions.json.* string"),
    ],
)  # fmt: skip
def test_without_scores_or_with_others_than_the_predictions_have_nothing_is_decided(checkout, path, content, message):
    if content is None:
        (checkout / path).unlink()
    elif isinstance(content, tuple):
        name, value = content
        text = (checkout / path).read_text()
        write_text(checkout / path, re.sub(rf'"{name}": [\d.]+', f'"{name}": {value}', text, count=1))
    else:
        write_text(checkout / path, content)
    with pytest.raises(InputError, match=message):
        decide_on(checkout, min_f1=0.0)
    assert not (checkout / artifacts.metrics_file("squad", "gate")).exists()


def test_predictions_or_weights_that_were_changed_after_scoring_are_rejected(checkout):
    scored = (checkout / PREDICTIONS).read_text()
    (checkout / PREDICTIONS).write_text('{"q0": "the red house", "q1": "two dogs"}')
    floor, baseline, complete, belongs = decide_on(checkout)["reasons"]
    assert "F1 is 66.67" in floor, "counted on what lies there"
    assert "no better" in baseline
    assert "1 of 3 dev" in complete
    assert "does not belong" in belongs
    (checkout / PREDICTIONS).write_text(scored)
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
    predictions = task.read_predictions(checkout / PREDICTIONS, examples)
    write_text(checkout / artifacts.teacher_folder("squad", SCORES), scores_json(task, examples, predictions))
    distill = DistillParams(teacher="inputs/teacher").model_dump()
    entry = {"distill": distill, "gate": {**VALUES, "max_teacher_drop": 90.0}}
    decision = gate.gate(values_with({"squad": entry}), "squad", checkout)
    assert decision["accepted"], decision["reasons"]
    [check] = [check for check in decision["checks"] if check["name"] == "teacher"]
    assert check["difference"]["mean"] == 0


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
    assert re.match("(?s)gate of squad: rejected, 11 of 12 .*phase2", capsys.readouterr().out)
