"""Stage gate: may this model be released? A pure decision, with reasons for people.

python -m tasks.downstream.gate.gate NAME    decide, write the verdict; exit code 0 also when rejected
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ipu_model.files import write_json
from tasks.downstream.gate.checks import Check, Judged, Scored, no_drop_of, score_checks
from tasks.downstream.gate.evidence import Evidence, Loss, gather
from tasks.downstream.gate.recipe import recipe_checks, recipe_record
from tasks.downstream.gate.recipe_words import WITHOUT_FLOOR
from tasks.downstream.gate.subject import Hashes, Subject, hashes_of, subject_of
from tasks.downstream.scoring.scores import Task
from tasks.params.downstream import PUBLISHED
from tasks.params.entries import entry_argument, entry_of
from tasks.params.schema import check, load_params, parameter_values
from tasks.plan.code_state import git_state
from tasks.plan.kinds import part_of
from tasks.plan.main import run_main
from tasks.stage import artifacts
from tasks.tracking.trackers import record_verdict

JUDGED, CODE = "judged", "code"
"""What a verdict is about, by SHA-256, and the code that decided."""


@dataclass(frozen=True)
class GateDecision:
    """The verdict; `reasons` are full sentences, one per failed check, none when accepted."""

    accepted: bool
    reasons: tuple[str, ...]
    checks: tuple[Check, ...]
    recipe: Mapping[str, Any]
    """What the verdict says of all seeds; empty where the model was judged alone."""
    without_floor: str | None = None
    """That it was accepted though no floor is set, in words."""


def decide(task: Task, evidence: Evidence) -> GateDecision:
    """Accept if every check holds; every failed one gives a reason.

    - Every metric with a floor lies at or above it; a number that is not finite fails.
    - Unless the parameters say otherwise, the leading metric is significantly above what the baseline scores, the best
      answer that needs no model: the lower bound of the two-sided `confidence` interval of the difference is above 0.
    - Released model: with d = metric of the candidate - metric of the released model, in points, on the examples that
      both answered, reject when the upper bound of the two-sided `confidence` paired-bootstrap interval of d lies below
      what is tolerated, that is, when the drop beyond that is significant. A released model without a common example is
      rejected: no drop can be ruled out. Of a metric that is the share of right answers McNemar's exact test must find
      the two unequal, too (p < 1 - confidence): with few examples that changed, it is the stricter of the two.
    - Every data verdict is there and valid.
    - Every training made no update, or ended with a finite loss.
    - Every example has a prediction, and the scores belong to these predictions.
    - Where there are other seeds of the recipe, it is asked beside the model, see `recipe_checks`: they can add reasons
      against a release and take none away, as what is published is this one model.
    """
    compared = evidence.released
    own = Scored(
        evidence.scores,
        evidence.over_baseline,
        {} if compared is None else compared.differences,
        0 if compared is None else compared.common,
        f"{evidence.examples} {task.record}s",
        {} if compared is None else compared.tests,
    )
    found = score_checks(task, own)
    if compared is not None and not compared.common:
        found.append(_nothing_in_common(task))
    found += [verdict_check(name, valid) for name, valid in evidence.verdicts.items()]
    found += [loss_check(name, figures) for name, figures in evidence.losses.items()]
    if evidence.recipe is not None:
        found += recipe_checks(task, evidence.recipe)
    found.append(_complete(task, evidence))
    found.append(_scores_belong(task, evidence))
    reasons = tuple(reason for check, reason in found if not check.ok)
    of_recipe = {} if evidence.recipe is None else recipe_record(task, evidence.recipe)
    checks = tuple(check for check, _ in found)
    return GateDecision(not reasons, reasons, checks, of_recipe, None if reasons else _without_floor(task))


def _without_floor(task: Task) -> str | None:
    if any(limit.floor is not None for limit in task.limits):
        return None
    keys = " or ".join(task.entry.key("gate", limit.floor_key) for limit in task.limits)
    also = "" if task.entry.params.gate.above_baseline else " or a baseline"
    return f"published without a floor{also}: set {keys} to require a score"


def _nothing_in_common(task: Task) -> Judged:
    reason = (
        f"The released model's scores in {task.entry.released} share no {task.record} with the dev {task.record}s, "
        f"so a drop cannot be ruled out; with {task.entry.key('gate', 'released')}={PUBLISHED} the model that was "
        f"published answers these {task.record}s; or empty that folder."
    )
    return Check("released_model", False, f"no common {task.record}", no_drop_of(task, task.limits[0])), reason


def verdict_check(name: str, valid: bool | None) -> tuple[Check, str]:
    """Whether a data set is valid, and the reason where it is not; None: there is no readable verdict."""
    where = artifacts.validation_report(name)
    if valid is None:
        return Check(f"data_{name}", False, "no verdict", "valid"), (
            f"The data set {name} has no readable verdict ({where}); run its stage of validation."
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


def _complete(task: Task, evidence: Evidence) -> Judged:
    reason = (
        f"{evidence.examples - evidence.answered} of {evidence.examples} dev {task.record}s have no prediction; "
        f"run {task.entry.stage('predict')} and {task.entry.stage('evaluate')} again."
    )
    complete = evidence.answered == evidence.examples
    return Check("predictions_complete", complete, evidence.answered, evidence.examples), reason


def _scores_belong(task: Task, evidence: Evidence) -> Judged:
    name = task.entry.name
    reason = (
        f"{artifacts.metrics_file(name)} was counted on other predictions than {artifacts.predictions_file(name)} "
        f"holds now, or on other weights; run {task.entry.stage('evaluate')} again."
    )
    same = evidence.scores_belong
    return Check("scores_belong_to_predictions", same, "same" if same else "other", "same"), reason


def gate(parameters: Mapping[str, Any], name: str, root: Path = Path()) -> GateDecision:
    """Decide on the model of an entry in the checkout `root` and write the verdict.

    Args:
        parameters: the whole of params.yaml, checked, as plain values.
        name: of the entry.
        root: the checkout.

    Raises:
        InputError: see `tasks.downstream.gate.evidence.gather`.
    """
    params = check(dict(parameters))
    task: Task = part_of(entry_of(params, name), "scores")
    subject, released, seeds = subject_of(task, params), task.entry.released, task.entry.seeds
    hashes = hashes_of(subject.judged(released, root, seeds))
    decision, verdict = judge(task, subject, hashes, root, released, seeds)
    write_json(root / subject.gate, {**verdict, CODE: git_state(root)})
    return decision


def judge(
    task: Task, subject: Subject, hashes: Hashes, root: Path, released: Path, seeds: Path | None
) -> tuple[GateDecision, dict[str, Any]]:
    """Decide on the evidence in `root`, a checkout or copies of its files; returns the verdict as plain values, too.

    Args:
        task: scores the entry.
        subject: what the release is about.
        hashes: SHA-256 of all that is judged, by the names of `Subject.judged`.
        root: holds the evidence.
        released: folder of the released model's scores, from `root`.
        seeds: folder of the scores of other seeds, from `root`, where there is one.

    Raises:
        InputError: see `tasks.downstream.gate.evidence.gather`.
    """
    evidence = gather(task, subject, released, hashes, root, seeds)
    decision = decide(task, evidence)
    return decision, {**record(decision, evidence), JUDGED: dict(hashes)}


def record(decision: GateDecision, evidence: Evidence) -> dict[str, Any]:
    """The decision and its scores, for the verdict; a score that is not finite becomes null."""
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
    entry = entry_of(params, entry_argument("Decide whether the evaluated model may be released."))
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
