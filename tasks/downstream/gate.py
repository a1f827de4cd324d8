"""Stage gate: may this model be released? A pure decision, with reasons for people.

python -m tasks.downstream.gate    decide, write metrics/gate.json; exit code 0 also when rejected
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tasks.project import artifacts
from tasks.project.files import write_json
from tasks.project.main import run_main
from tasks.project.params import GateParams
from tasks.project.process import takes_no_words
from tasks.release.release_subject import QUESTIONS, RELEASED
from tasks.release.seal import Hashes, hashes_of, judged_values

if TYPE_CHECKING:
    from tasks.downstream.evidence import Evidence, Loss, Released


@dataclass(frozen=True)
class Check:
    """One condition: what was found, what is required."""

    name: str
    ok: bool
    found: float | str | None
    required: float | str | None


@dataclass(frozen=True)
class GateDecision:
    """The verdict; `reasons` are full sentences, one per failed check, none when accepted."""

    accepted: bool
    reasons: tuple[str, ...]
    checks: tuple[Check, ...]


def decide(evidence: Evidence, limits: GateParams) -> GateDecision:
    """Accept if every check holds; every failed one gives a reason.

    - f1 (and exact_match, if given a floor) at or above the floor; a number that is not finite fails.
    - Released model: with d = F1 of the candidate - F1 of the released model, in points, per question that
      both answered, reject when the upper bound of the two-sided `confidence` paired-bootstrap interval of
      mean d lies below -max_f1_drop, that is, when the drop beyond what is tolerated is significant.
      A released model without a common question is rejected: no drop can be ruled out.
    - The same of exact match and max_exact_match_drop, where McNemar's exact test must find the two unequal, too
      (p < 1 - confidence): with few questions that changed, it is the stricter of the two.
    - Every data verdict is there and valid.
    - Every training made no update, or ended with a finite loss.
    - Every dev question has a prediction, and the scores belong to these predictions.
    """
    found: list[tuple[Check, str]] = [_floor("f1", evidence.f1, limits.min_f1)]
    if limits.min_exact_match is not None:
        found.append(_floor("exact_match", evidence.exact_match, limits.min_exact_match))
    if evidence.released is not None:
        found.append(_no_drop(evidence.released, limits))
        if evidence.released.released_exact:
            found.append(_no_exact_drop(evidence.released, limits))
    found += [verdict_check(name, valid) for name, valid in evidence.verdicts.items()]
    found += [loss_check(name, figures) for name, figures in evidence.losses.items()]
    found.append(_complete(evidence))
    found.append(_scores_belong(evidence))
    reasons = tuple(reason for check, reason in found if not check.ok)
    return GateDecision(accepted=not reasons, reasons=reasons, checks=tuple(check for check, _ in found))


def _floor(name: str, value: float, floor: float) -> tuple[Check, str]:
    if not math.isfinite(value):
        return Check(name, False, str(value), floor), f"{name} is {value}, which is no score; run evaluate again."
    reason = f"{name} {value:.4f} is under the floor {floor:g} (gate.min_{name})."
    return Check(name, value >= floor, value, floor), reason


def _no_drop(released: Released, limits: GateParams) -> tuple[Check, str]:
    name, required = "released_model", f"no significant F1 drop of more than {limits.max_f1_drop:g} points"
    if not released.released_f1:
        reason = (
            f"The released model's scores in {limits.released} share no question with the dev questions, so "
            "a drop cannot be ruled out; let the released model answer these questions, or empty that folder."
        )
        return Check(name, False, "no common question", required), reason
    from tasks.statistics.significance import paired_bootstrap

    d = paired_bootstrap(released.candidate_f1, released.released_f1, confidence=limits.confidence)
    mean, low, high = (round(100 * x, 4) for x in (d.mean, d.low, d.high))
    count = len(released.released_f1)
    found = f"{mean:+.2f} points ({low:+.2f} to {high:+.2f}) on {count} questions"
    reason = (
        f"f1 fell significantly against the released model: {found} at confidence {limits.confidence:g}, "
        f"tolerated are {limits.max_f1_drop:g} points (gate.max_f1_drop)."
    )
    return Check(name, high >= -limits.max_f1_drop, found, required), reason


def _no_exact_drop(released: Released, limits: GateParams) -> tuple[Check, str]:
    from tasks.statistics.significance import mcnemar_exact, paired_bootstrap

    ours, theirs = released.candidate_exact, released.released_exact
    d, test = paired_bootstrap(ours, theirs, confidence=limits.confidence), mcnemar_exact(theirs, ours)
    mean, low, high = (round(100 * x, 4) for x in (d.mean, d.low, d.high))
    found = (
        f"{mean:+.2f} points ({low:+.2f} to {high:+.2f}) on {len(ours)} questions, {test.first_only} lost and "
        f"{test.second_only} won (McNemar's exact test: p = {test.p_value:.4g})"
    )
    reason = (
        f"exact match fell significantly against the released model: {found} at confidence {limits.confidence:g}, "
        f"tolerated are {limits.max_exact_match_drop:g} points (gate.max_exact_match_drop)."
    )
    required = f"no significant exact match drop of more than {limits.max_exact_match_drop:g} points"
    fell = high < -limits.max_exact_match_drop and test.p_value < 1 - limits.confidence
    return Check("released_model_exact_match", not fell, found, required), reason


def verdict_check(name: str, valid: bool | None) -> tuple[Check, str]:
    """Whether a data set is valid, and the reason where it is not; None: there is no readable verdict."""
    where = artifacts.validation_report(name)
    if valid is None:
        return Check(f"data_{name}", False, "no verdict", "valid"), (
            f"The data set {name} has no readable verdict ({where}); run validate@{name}."
        )
    reason = f"The data set {name} is not valid; see {where.with_suffix('.html')}."
    return Check(f"data_{name}", valid, "valid" if valid else "not valid", "valid"), reason


def loss_check(name: str, figures: Loss | None) -> tuple[Check, str]:
    """Whether a training ended well, and the reason where it did not; None: there are no readable figures."""
    required = "finite, or no update made"
    if figures is None:
        reason = f"The training {name} has no readable figures (metrics/{name}.json); run its stage."
        return Check(f"loss_{name}", False, "no figures", required), reason
    loss, steps = figures.final_loss, figures.steps
    if loss is None:
        reason = f"The training {name} made {steps} updates and reports no loss; run its stage again."
        return Check(f"loss_{name}", steps == 0, f"none after {steps} updates", required), reason
    finite = math.isfinite(loss)
    reason = f"The training {name} ended with loss {loss}; lower its learning rate and run it again."
    return Check(f"loss_{name}", finite, loss if finite else str(loss), required), reason


def _complete(evidence: Evidence) -> tuple[Check, str]:
    reason = (
        f"{evidence.questions - evidence.answered} of {evidence.questions} dev questions have no prediction; "
        "run predict and evaluate again."
    )
    complete = evidence.answered == evidence.questions
    return Check("predictions_complete", complete, evidence.answered, evidence.questions), reason


def _scores_belong(evidence: Evidence) -> tuple[Check, str]:
    reason = (
        f"{artifacts.SQUAD_METRICS} was counted on other predictions than {artifacts.SQUAD_PREDICTIONS} holds now, or "
        "on other weights; run evaluate again."
    )
    same = evidence.scores_belong
    return Check("scores_belong_to_predictions", same, "same" if same else "other", "same"), reason


def gate(parameters: Mapping[str, Any], root: Path = Path()) -> GateDecision:
    """Decide on the model of the checkout `root` and write metrics/gate.json.

    Args:
        parameters: the whole of params.yaml, checked, as plain values.
        root: the checkout.

    Raises:
        InputError: see `tasks.downstream.evidence.gather`.
    """
    from tasks.downstream.evidence import gather

    limits = GateParams(**parameters["gate"])
    released = Path(limits.released)
    hashes = hashes_of(QUESTIONS.judged(released, root))
    evidence = gather(released, hashes, root)
    decision = decide(evidence, limits)
    judged = judged_values(hashes, parameters, QUESTIONS.parameters)
    write_json(root / artifacts.GATE, {**record(decision, evidence), **judged})
    return decision


def decide_again(parameters: Mapping[str, Any], hashes: Hashes, held: Path) -> GateDecision:
    """The decision on copies of what the gate judged, the released model's in the folder RELEASED among them.

    Raises:
        InputError: see `tasks.downstream.evidence.gather`.
    """
    from tasks.downstream.evidence import gather

    return decide(gather(RELEASED, hashes, held), GateParams(**parameters["gate"]))


def record(decision: GateDecision, evidence: Evidence) -> dict[str, Any]:
    """The decision and its scores, for metrics/gate.json; a score that is not finite becomes null."""
    scores = {"exact_match": evidence.exact_match, "f1": evidence.f1}
    return {
        **decision_values(decision),
        "metrics": {name: value if math.isfinite(value) else None for name, value in scores.items()},
    }


def decision_values(decision: GateDecision) -> dict[str, Any]:
    """The decision as plain values: accepted, reasons, checks."""
    return {
        "accepted": decision.accepted,
        "reasons": list(decision.reasons),
        "checks": [asdict(check) for check in decision.checks],
    }


def main() -> None:
    takes_no_words("Decide whether the evaluated model may be released.")
    from tasks.project.params import load_params, parameter_values
    from tasks.tracking.trackers import record_verdict

    params = load_params()
    decision = gate(parameter_values(params))
    passed = sum(check.ok for check in decision.checks)
    print(f"gate: {'accepted' if decision.accepted else 'rejected'}, {passed} of {len(decision.checks)} checks passed")
    for reason in decision.reasons:
        print(f"  - {reason}")
    record_verdict(params.tracking, "finetune", (artifacts.SQUAD_METRICS, artifacts.GATE))


if __name__ == "__main__":
    run_main(main)
