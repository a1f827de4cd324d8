"""Stage gate: decide whether a model may be released, with reasons.

python -m tasks.downstream.gate.gate NAME    write the verdict; exit code 0 even if rejected
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ipu_model.files import write_json
from tasks.downstream.gate.checks import GateCheck, ReasonedCheck, ScoreEvidence, check_scores, no_drop_requirement
from tasks.downstream.gate.evidence import Evidence, gather_evidence, is_number
from tasks.downstream.gate.recipe import check_recipe, recipe_record
from tasks.downstream.gate.subject import Hashes, ReleaseSubject, hash_files, make_subject
from tasks.downstream.gate.verdict_text import WITHOUT_FLOOR
from tasks.downstream.scoring.scores import AnyScores
from tasks.params.downstream import PUBLISHED
from tasks.params.entries import entry_argument, find_entry
from tasks.params.schema import load_params, parameter_values, validate_params
from tasks.plan.code_state import git_state
from tasks.plan.kinds import load_part
from tasks.plan.main import run_main
from tasks.stage import artifacts
from tasks.tracking.trackers import record_verdict

JUDGED, CODE = "judged", "code"
"""Keys of the verdict: SHA-256 of the evaluated files, and the version of the code."""


@dataclass(frozen=True)
class GateDecision:
    """Decision of the gate; `reasons` has a sentence for each failed check."""

    accepted: bool
    reasons: tuple[str, ...]
    checks: tuple[GateCheck, ...]
    recipe: Mapping[str, Any]
    """Figures of all seeds; empty without other seeds."""
    without_floor: str | None = None
    """Note for a model accepted without a floor."""


def decide(task: AnyScores, evidence: Evidence) -> GateDecision:
    """Accept if all checks pass; each failed check gives a reason.

    - Every metric with a floor is at or above it; a value that is not finite fails.
    - Unless disabled, the leading metric is significantly above the baseline, the best answer without a model: the
      lower bound of the two-sided `confidence` interval of the difference is above 0.
    - Released model: let d = metric of the candidate - metric of the released model, in points, on the examples that
      both predicted. Reject if the upper bound of the two-sided `confidence` paired-bootstrap interval of d is below
      the tolerated drop, that is, if the drop is significant. Without a common example, reject: no drop can be ruled
      out. For a metric that is a share of correct answers, McNemar's exact test must also find the models unequal (p <
      1 - confidence); it is the stricter test if few examples changed.
    - Every data verdict exists and is valid.
    - Every training made no update or ended with a finite loss.
    - Every example has a prediction, and the scores belong to these predictions.
    - With other seeds of the recipe, the recipe is also checked, see `check_recipe`. This can add reasons against a
      release but never remove one, because this one model is published.
    """
    compared = evidence.released
    own = ScoreEvidence(
        evidence.scores,
        evidence.over_baseline,
        {} if compared is None else compared.differences,
        0 if compared is None else compared.common,
        f"{evidence.examples} {task.record}s",
        {} if compared is None else compared.tests,
    )
    found = check_scores(task, own)
    if compared is not None and not compared.common:
        found.append(_nothing_in_common(task))
    found += [check_verdict(name, valid) for name, valid in evidence.verdicts.items()]
    found += [check_loss(name, figures) for name, figures in evidence.trainings.items()]
    if evidence.recipe is not None:
        found += check_recipe(task, evidence.recipe)
    found.append(_complete(task, evidence))
    found.append(_scores_belong(task, evidence))
    reasons = tuple(reason for check, reason in found if not check.ok)
    of_recipe = {} if evidence.recipe is None else recipe_record(task, evidence.recipe)
    checks = tuple(check for check, _ in found)
    return GateDecision(not reasons, reasons, checks, of_recipe, None if reasons else _without_floor(task))


def _without_floor(task: AnyScores) -> str | None:
    if any(limit.floor is not None for limit in task.limits):
        return None
    keys = " or ".join(task.entry.key("gate", limit.floor_key) for limit in task.limits)
    also = "" if task.entry.params.gate.above_baseline else " or a baseline"
    return f"published without a floor{also}: set {keys} to require a score"


def _nothing_in_common(task: AnyScores) -> ReasonedCheck:
    reason = (
        f"The released model's scores in {task.entry.released} have no {task.record} in common with the dev set, so a "
        f"drop cannot be ruled out. Set {task.entry.key('gate', 'released')}={PUBLISHED} to predict these "
        f"{task.record}s with the published model, or empty that folder."
    )
    return GateCheck(
        "released_model", False, f"no common {task.record}", no_drop_requirement(task, task.limits[0])
    ), reason


def check_verdict(name: str, valid: bool | None) -> tuple[GateCheck, str]:
    """Check the verdict on a data set; None: there is no readable verdict."""
    where = artifacts.validation_report(name)
    if valid is None:
        return GateCheck(f"data_{name}", False, "no verdict", "valid"), (
            f"Data set {name} has no readable verdict ({where}). Run its validation stage."
        )
    reason = f"Data set {name} is not valid. See {where.with_suffix('.html')}."
    return GateCheck(f"data_{name}", valid, "valid" if valid else "not valid", "valid"), reason


def check_loss(name: str, figures: Mapping[str, Any] | None) -> tuple[GateCheck, str]:
    """Check the final loss of a training, from its metrics; None: they are not readable."""
    required, values = "finite, or no updates", figures or {}
    loss, steps = values.get("final_loss", ""), values.get("steps")
    if not isinstance(steps, int) or not (loss is None or is_number(loss)):
        reason = f"Training {name} has no readable figures (metrics/{name}.json). Run its stage."
        return GateCheck(f"loss_{name}", False, "no figures", required), reason
    if loss is None:
        reason = f"Training {name} made {steps} updates but reports no loss. Run its stage again."
        return GateCheck(f"loss_{name}", steps == 0, f"none after {steps} updates", required), reason
    finite = math.isfinite(loss)
    reason = f"Training {name} ended with loss {loss}. Lower its learning rate and run it again."
    return GateCheck(f"loss_{name}", finite, loss if finite else str(loss), required), reason


def _complete(task: AnyScores, evidence: Evidence) -> ReasonedCheck:
    reason = (
        f"{evidence.examples - evidence.answered} of {evidence.examples} dev {task.record}s have no prediction. "
        f"Run {task.entry.stage('predict')} and {task.entry.stage('evaluate')} again."
    )
    complete = evidence.answered == evidence.examples
    return GateCheck("predictions_complete", complete, evidence.answered, evidence.examples), reason


def _scores_belong(task: AnyScores, evidence: Evidence) -> ReasonedCheck:
    name = task.entry.name
    reason = (
        f"{artifacts.metrics_file(name)} does not belong to the current {artifacts.predictions_file(name)} or weights. "
        f"Run {task.entry.stage('evaluate')} again."
    )
    same = evidence.scores_belong
    return GateCheck("scores_belong_to_predictions", same, "same" if same else "other", "same"), reason


def gate(parameters: Mapping[str, Any], name: str, root: Path = Path()) -> GateDecision:
    """Decide on the model of an entry in the checkout `root` and write the verdict.

    Args:
        parameters: all checked parameters as plain values.

    Raises:
        InputError: see `tasks.downstream.gate.evidence.gather_evidence`.
    """
    params = validate_params(dict(parameters))
    task: AnyScores = load_part(find_entry(params, name), "scores")
    subject, released, seeds = make_subject(task, params), task.entry.released, task.entry.seeds
    hashes = hash_files(subject.judged(released, root, seeds))
    decision, verdict = decide_on_files(task, subject, hashes, root, released, seeds)
    write_json(root / subject.gate, {**verdict, CODE: git_state(root)})
    return decision


def decide_on_files(
    task: AnyScores, subject: ReleaseSubject, hashes: Hashes, root: Path, released: Path, seeds: Path | None
) -> tuple[GateDecision, dict[str, Any]]:
    """Decide on the evidence in `root`, a checkout or copies of its files; also return the verdict as plain values.

    Args:
        hashes: SHA-256 of all evaluated files by the names of `Subject.judged`.
        root: folder of the evidence.
        released: folder of the released model's scores, relative to `root`.
        seeds: folder of the scores of other seeds, relative to `root`, or None.

    Raises:
        InputError: see `tasks.downstream.gate.evidence.gather_evidence`.
    """
    evidence = gather_evidence(task, subject, released, hashes, root, seeds)
    decision = decide(task, evidence)
    return decision, {**decision_record(decision, evidence), JUDGED: dict(hashes)}


def decision_record(decision: GateDecision, evidence: Evidence) -> dict[str, Any]:
    """Return the decision and its scores as plain values; a score that is not finite becomes null."""
    return {
        "accepted": decision.accepted,
        "reasons": list(decision.reasons),
        "checks": [asdict(check) for check in decision.checks],
        **decision.recipe,
        **({WITHOUT_FLOOR: decision.without_floor} if decision.without_floor else {}),
        "metrics": {name: value if math.isfinite(value) else None for name, value in evidence.scores.items()},
    }


def main() -> None:
    params = load_params()
    entry = find_entry(params, entry_argument("Decide whether a model may be released."))
    decision = gate(parameter_values(params), entry.name)
    passed = sum(check.ok for check in decision.checks)
    word = "accepted" if decision.accepted else "rejected"
    print(f"gate of {entry.name}: {word}, {passed} of {len(decision.checks)} checks passed")
    for reason in decision.reasons:
        print(f"  - {reason}")
    if decision.without_floor:
        print(f"  {decision.without_floor}")
    files = (artifacts.metrics_file(entry.name), artifacts.metrics_file(entry.name, "gate"))
    record_verdict(params.tracking, artifacts.job_name(entry.name, "finetune"), files)


if __name__ == "__main__":
    run_main(main)
