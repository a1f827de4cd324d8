import dataclasses
import json
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ipu_model.core.files import write_json
from tasks.downstream.gate import gate
from tasks.downstream.gate.gate import Evidence, compare_teacher, paired_differences
from tasks.downstream.gate.recipe import ReleasedComparison, ScoreEvidence, check_scores
from tasks.downstream.gate.released_scores import mark_unanswered, read_released_outcomes
from tasks.downstream.scoring.significance import McNemar, PairedDifference
from tasks.downstream.squad.params import SquadGateParams
from tests.tasks.downstream.entries import make_question, task_with
from tests.tasks.downstream.gate import gate_checkout
from tests.tasks.downstream.gate.gate_checkout import TRAININGS, VERDICTS

LIMITS = SquadGateParams(**gate_checkout.LIMITS)
GOOD = Evidence(
    own=ScoreEvidence({"exact_match": 91.0, "f1": 93.5}, None, None, "3 questions"),
    examples=3,
    answered=3,
    scores_belong=True,
    verdicts=dict.fromkeys(VERDICTS, True),
    trainings=dict.fromkeys(TRAININGS, {"final_loss": 0.5, "steps": 100}),
)


def limits(**changes: Any) -> SquadGateParams:
    return LIMITS.model_copy(update=changes)


def decide(found: Evidence, limits: SquadGateParams) -> dict[str, Any]:
    return gate.decide(task_with("squad", "scores", gate=limits), found)


def evidence(**changes: Any) -> Evidence:
    """Scores, and what they are compared with, may be stated by themselves."""
    values = {name: changes.pop(name, value) for name, value in GOOD.own.values.items()}
    compared = {name: changes.pop(name) for name in ("over_baseline", "baseline", "released") if name in changes}
    return dataclasses.replace(GOOD, own=dataclasses.replace(GOOD.own, values=values, **compared), **changes)


def compared_with(
    candidate: Sequence[float],
    released: Sequence[float],
    exact: tuple[Sequence[float], Sequence[float]] | None = None,
    limits: SquadGateParams = LIMITS,
) -> ReleasedComparison:
    """F1 as given; exact where it is 1, unless that is given as well."""
    exact = exact or tuple([float(f1 == 1.0) for f1 in scores] for scores in (candidate, released))
    ours, theirs = (
        {"dev": np.array([*zip(*pair, strict=True)])} for pair in zip(exact, (candidate, released), strict=True)
    )
    return ReleasedComparison(*paired_differences(task_with("squad", "scores", gate=limits), ours, theirs))


@pytest.mark.parametrize(
    ("changes", "answered", "said"),
    [
        ({"min_f1": None, "above_baseline": True}, 3, "published without a floor: set"),
        ({"min_f1": None, "above_baseline": False}, 3, "published without a floor or a baseline: set"),
        ({"min_f1": None}, 2, None),  # rejected
        ({"min_f1": 0.0}, 3, None),
        ({"min_f1": None, "min_exact_match": 50.0}, 3, None),
        ({"min_f1": 85.0, "above_baseline": False}, 3, None),
    ],
)
def test_what_is_accepted_without_a_floor_says_so(changes: dict[str, Any], answered: int, said: str | None) -> None:
    decision = decide(evidence(answered=answered), limits(**changes))
    assert decision["accepted"] == (answered == 3), "it is reported, and decides nothing"
    assert ("without_floor" in decision) == (said is not None)
    assert decision.get("without_floor", "").startswith(said or "")


@pytest.mark.parametrize(("f1", "accepted"), [(85.0, True), (84.9999, False), (0.0, False), (100.0, True)])
def test_a_score_exactly_at_the_floor_passes(f1: float, accepted: bool) -> None:
    assert decide(evidence(f1=f1), LIMITS)["accepted"] is accepted


def test_the_floor_under_exact_match_is_asked_only_when_it_is_set() -> None:
    low = evidence(exact_match=10.0)
    assert decide(low, LIMITS)["accepted"]
    decision = decide(low, limits(min_exact_match=50.0))
    assert decision["reasons"] == [
        "Exact match is 10.00, below the floor of 50 (downstream.squad.gate.min_exact_match)."
    ]
    assert decide(low, limits(min_exact_match=10.0))["accepted"]
    [reason] = decide(evidence(exact_match=9.9999), limits(min_exact_match=10.0))["reasons"]
    assert reason.startswith("Exact match is 9.9999, below the floor of 10 "), "not 10.00"


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_score_that_is_no_number_is_rejected(value: float) -> None:
    # NaN compares false with every floor: a careless test of "f1 < floor" would let it pass.
    decision = decide(evidence(f1=value), limits(min_f1=0.0))
    assert not decision["accepted"]
    assert "not a score" in decision["reasons"][0]
    assert decision["metrics"]["f1"] is None
    json.dumps(decision, allow_nan=False)


@pytest.mark.parametrize(
    ("candidate", "released", "tolerated", "accepted"),
    [
        # 30 of 40 right for both, the same ones: no difference, no doubt.
        ([1.0] * 30 + [0.0] * 10, [1.0] * 30 + [0.0] * 10, 0.0, True),
        # Better everywhere.
        ([1.0] * 40, [0.0] * 40, 0.0, True),
        # 20 points lost on every one of 40 questions: an interval without width at -20.
        ([0.5] * 40, [0.7] * 40, 0.0, False),
        ([0.5] * 40, [0.7] * 40, 20.5, True),
        ([0.5] * 40, [0.7] * 40, 19.5, False),
        # Exactly as much as is tolerated is tolerated.
        ([0.5] * 40, [0.75] * 40, 25.0, True),
        # One question of 40 lost: 2.5 points, but among the resamples 1 in e has no such question (upper bound 0).
        ([1.0] * 39 + [0.0], [1.0] * 40, 0.0, True),
        # Ten of 40 lost, none won: standard error sqrt(.25 * .75 / 40) = 6.8 points, upper bound about -12.
        ([1.0] * 30 + [0.0] * 10, [1.0] * 40, 0.0, False),
        ([1.0] * 30 + [0.0] * 10, [1.0] * 40, 10.0, False),
        ([1.0] * 30 + [0.0] * 10, [1.0] * 40, 14.0, True),
        # Ten lost and ten others won: no drop.
        ([1.0] * 30 + [0.0] * 10, [0.0] * 10 + [1.0] * 30, 0.0, True),
    ],
)
def test_only_a_significant_drop_beyond_the_tolerated_one_is_rejected(
    candidate: list[float], released: list[float], tolerated: float, accepted: bool
) -> None:
    compared = evidence(released=compared_with(candidate, released))
    decision = decide(compared, limits(max_f1_drop=tolerated, max_exact_match_drop=tolerated))
    assert decision["accepted"] is accepted
    if not accepted:
        assert decision["reasons"][0].startswith("F1 dropped significantly against the released model: -")


def test_exact_match_falls_significantly_only_if_mcnemar_agrees() -> None:
    # F1 stays. Five lost, none won: the interval ends below 0, but of five coins all fall alike 2 in 32 times.
    five = compared_with((0.9,) * 40, (0.9,) * 40, ((1.0,) * 20 + (0.0,) * 20, (1.0,) * 25 + (0.0,) * 15))
    assert decide(evidence(released=five), LIMITS)["accepted"]
    six = compared_with((0.9,) * 40, (0.9,) * 40, ((1.0,) * 20 + (0.0,) * 20, (1.0,) * 26 + (0.0,) * 14))
    decision = decide(evidence(released=six), LIMITS)
    assert len(decision["reasons"]) == 1
    assert decision["reasons"][0].startswith(
        "Exact match dropped significantly against the released model: -15.00 points"
    )
    assert "6 lost and 0 won (McNemar's exact test: p = 0.03125)" in decision["reasons"][0]
    # Six of 40: standard error sqrt(.15 * .85 / 40) = 5.6 points, 1.96 of them 11.1; so few questions show no less.
    shown = re.search(r"With 40 questions, a drop must reach about ([\d.]+) points to count\.$", decision["reasons"][0])
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
        (0, 1, 39, 0.0, False, True),
        (0, 0, 400, 2.0, True, False),
        (0, 30, 10, 0.0, True, False),
    ],
)
def test_a_student_must_be_shown_not_to_be_worse_than_its_teacher(
    lost: int, won: int, same: int, tolerated: float, accepted: bool, needed: bool
) -> None:
    task = task_with("squad", "scores", gate=LIMITS)
    ours, theirs = ([0.0] * lost + [1.0] * (won + same), [1.0] * lost + [0.0] * won + [1.0] * same)
    both = ({"dev": np.array([scores, scores]).T} for scores in (ours, theirs))
    decision = decide(evidence(teacher=compare_teacher(task, *both)), limits(max_teacher_drop=tolerated))
    assert decision["accepted"] is accepted
    [check] = [check for check in decision["checks"] if check["name"] == "teacher"]
    assert check["required"] == f"F1 at most {tolerated:g} points below the teacher's"
    assert check["difference"]["mean"] == round(100 * (won - lost) / len(ours), 4)
    if not accepted:
        [reason] = decision["reasons"]
        assert re.fullmatch(
            rf"F1 may be more than {tolerated:g} points below the teacher's: [-+]\d+\.\d\d points \(-.* to .*\) on "
            rf"{len(ours)} questions at confidence 0.95; the lower bound must be at least {0 - tolerated:g} "
            r"\(downstream\.squad\.gate\.max_teacher_drop\)\.( With .* up to [\d,]+ questions would be needed\.)?",
            reason,
        )
        assert ("would be needed" in reason) is needed


def test_the_gain_over_the_baseline_has_one_verdict() -> None:
    """The interval decides the check, so it decides the word on the page too; McNemar's test would find none."""
    task = task_with("classification", "scores")
    gain = PairedDifference(12.5, 2.5, 22.5, p_value=0.0625, mcnemar=McNemar(5, 0, 0.0625))
    scored = ScoreEvidence({task.limits[0].metric: 62.5}, gain, None, "40 examples")
    found = {check.name: check for check in check_scores(task, scored)}["beats_constant_answer"]
    assert found.ok
    assert found.difference is not None
    assert found.difference["verdict"] == "better"


def test_the_correlation_of_a_student_is_compared_by_resamples_alone() -> None:
    """One added extreme example may turn a correlation around, so its bounds would exclude nothing."""
    task = task_with("classification", "scores", regression=True)
    values, generator = np.arange(100.0), np.random.default_rng(2)
    noisy = [{"dev": np.stack([values, values + generator.normal(0, 5, 100)], 1)} for _ in range(2)]
    difference = compare_teacher(task, *noisy).differences["pearson"]
    assert difference.excludes_drop(2.0)
    assert not difference.excludes_drop(0.0)


def test_nothing_is_excluded_without_a_common_question() -> None:
    decision = decide(evidence(teacher=ReleasedComparison(0, {})), limits(max_teacher_drop=90.0))
    assert not decision["accepted"]
    assert "+nan points" in decision["reasons"][0]
    assert "on 0 questions" in decision["reasons"][0]


def test_more_confidence_rejects_less() -> None:
    # Four of 40 lost: at 80% the upper bound is about -5 points, at 99.9% some resample has lost none.
    for confidence, accepted in ((0.8, False), (0.999, True)):
        own = limits(confidence=confidence)
        compared = evidence(released=compared_with([1.0] * 36 + [0.0] * 4, [1.0] * 40, limits=own))
        assert decide(compared, own)["accepted"] is accepted


def test_both_models_are_compared_on_the_questions_that_both_answered(tmp_path: Path) -> None:
    questions = [make_question(i, "?", "c", (answer,)) for i, answer in (("1", "a dog"), ("2", "Paris"), ("3", "red"))]
    write_json(tmp_path / "predictions.json", {"2": "Paris", "1": "big dog", "3": "red"})
    task, ours = task_with("squad", "scores"), {"dev": ["dog", "Rome", None]}
    theirs = read_released_outcomes(task, {"dev": questions}, tmp_path)
    assert theirs is not None
    answered = mark_unanswered({"dev": task.outcomes(questions, ours["dev"])}, ours)
    common, differences = paired_differences(task, answered, theirs)
    assert common == 2
    assert differences["f1"].mean == pytest.approx(100 * ((1 + 0) - (2 / 3 + 1)) / 2)


@pytest.mark.parametrize(
    ("figures", "accepted"),
    [
        ({"final_loss": 0.0, "steps": 1}, True),
        ({"final_loss": None, "steps": 0}, True),  # epochs: 0
        ({"final_loss": None, "steps": 5}, False),
        ({"final_loss": math.nan, "steps": 5}, False),
        ({"final_loss": math.inf, "steps": 5}, False),
        ({"final_loss": True, "steps": 5}, False),
        ({"steps": 5}, False),
        (None, False),
    ],
)
@pytest.mark.parametrize("name", TRAININGS)
def test_every_training_must_end_with_a_finite_loss_or_without_an_update(
    name: str, figures: dict[str, Any] | None, accepted: bool
) -> None:
    decision = decide(evidence(trainings={**GOOD.trainings, name: figures}), LIMITS)
    assert decision["accepted"] is accepted
    assert all(name in reason for reason in decision["reasons"])


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
def test_a_released_model_that_contradicts_the_labels_stops_a_release(
    labels: list[float], answers: list[float], regression: bool, opposed: bool
) -> None:
    task = task_with("classification", "scores", regression=regression)
    rows = np.array([*zip(labels, answers, strict=True), (0, math.nan)], np.float64)
    assert gate.is_opposed(task, {"dev": rows}) == opposed
    decision = decide(evidence(is_opposed=opposed), LIMITS)
    assert decision["accepted"] != opposed
    assert [one["name"] for one in decision["checks"] if not one["ok"]] == ["released_model_opposed"] * opposed


def test_all_failures_are_named_at_once_in_full_sentences() -> None:
    bad = evidence(
        f1=10.0,
        answered=0,
        scores_belong=False,
        verdicts=dict.fromkeys(VERDICTS, False),
        trainings=dict.fromkeys(TRAININGS, None),
        released=compared_with([0.0] * 9, [1.0] * 9),
    )
    decision = decide(bad, LIMITS)
    assert len(decision["reasons"]) == 1 + 2 + len(VERDICTS) + len(TRAININGS) + 2
    assert all(reason.endswith(".") for reason in decision["reasons"])
