"""Stage glue_gate@TASK: may this classifier be released? A decision with reasons, as the stage gate makes it.

python -m tasks.glue_gate sst2
"""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasks.common import artifacts
from tasks.common.errors import InputError, run_main
from tasks.common.param_glue import GlueGateParams
from tasks.common.params import load_params
from tasks.evidence import read_loss, read_verdict
from tasks.gate import Check, GateDecision, decision_values, loss_check, verdict_check
from tasks.given import require_readable
from tasks.glue_answers import read_labels, read_predictions
from tasks.glue_evaluate import PREDICTIONS
from tasks.glue_scores import Values, best_constant, interval, resampled_scores, scores_of
from tasks.glue_tasks import TASKS, GlueTask, glue_task
from tasks.statistics import Interval

Judged = tuple[Check, str]


@dataclass(frozen=True)
class GlueEvidence:
    """What the decision rests on; scores in percent."""

    score: float
    over_constant: Interval
    """Score above that of the best constant answer."""
    over_released: Interval | None
    """Score above that of the released model; None where nothing was released."""
    scores_belong: bool
    """The scores were counted on the predictions that lie there now."""


def decide(task: GlueTask, found: GlueEvidence, others: list[Judged], limits: GlueGateParams) -> GateDecision:
    """Accept if every check holds; every failed one gives a reason.

    - score at or above glue_gate.min_score, where that is stated.
    - The score is significantly above that of the best constant answer: the lower bound of the two-sided `confidence`
      bootstrap interval of the difference lies above 0.
    - No significant drop of more than max_drop below the released model: the upper bound of the same interval of the
      difference lies at or above -max_drop.
    - `others`: verdicts of the data, the loss of training.
    """
    judged: list[Judged] = [_over_constant(task, found.over_constant, limits)]
    if limits.min_score is not None:
        reason = f"score {found.score:.4f} is under the floor {limits.min_score:g} (glue_gate.min_score)."
        judged.insert(0, (Check("score", found.score >= limits.min_score, found.score, limits.min_score), reason))
    if found.over_released is not None:
        judged.append(_no_drop(found.over_released, limits))
    same = "same" if found.scores_belong else "other"
    reason = f"the scores are of other predictions than lie there now; run glue_evaluate@{task.name} again."
    judged += [*others, (Check("scores_belong_to_predictions", found.scores_belong, same, "same"), reason)]
    reasons = tuple(reason for check, reason in judged if not check.ok)
    return GateDecision(accepted=not reasons, reasons=reasons, checks=tuple(check for check, _ in judged))


def _shown(difference: Interval) -> str:
    return f"{difference.mean:+.2f} points ({difference.low:+.2f} to {difference.high:+.2f})"


def _over_constant(task: GlueTask, difference: Interval, limits: GlueGateParams) -> Judged:
    found = _shown(difference)
    baseline = "a constant value" if task.is_regression else "the best answer that is always the same class"
    reason = f"the score is not significantly above {baseline}: {found} at confidence {limits.confidence:g}."
    return Check("beats_constant_answer", difference.low > 0, found, "significantly more than 0 points"), reason


def _no_drop(difference: Interval, limits: GlueGateParams) -> Judged:
    found, required = _shown(difference), f"no significant drop of more than {limits.max_drop:g} points"
    reason = (
        f"the score fell significantly against the released model: {found} at confidence {limits.confidence:g}, "
        f"tolerated are {limits.max_drop:g} points (glue_gate.max_drop)."
    )
    return Check("released_model", difference.high >= -limits.max_drop, found, required), reason


def gather(task: GlueTask, limits: GlueGateParams, root: Path = Path()) -> GlueEvidence:
    """Read the evidence of the checkout `root`.

    Raises:
        InputError: scores, examples or predictions are missing or damaged, or the released model answered others.
    """
    labels = read_labels(task, root)
    path = root / artifacts.glue_evaluation(task.name) / PREDICTIONS
    models = [read_predictions(task, path), best_constant(task, labels)]
    released = root / limits.released / task.name / PREDICTIONS
    if os.path.lexists(root / limits.released):
        require_readable(root / limits.released, "glue_gate.released")  # a lost link is not "none released"
    if released.is_file():
        models.append(read_predictions(task, released))
    for split, truth in labels.items():
        for model, where in zip(models, (path, path, released), strict=False):
            if len(model[split]) != len(truth):
                raise InputError(
                    f"{where} holds {len(model[split])} predictions of {split}, which has {len(truth)} examples"
                )
    scores = [scores_of(task, labels, one)["score"] for one in models]
    drawn = [one["score"] for one in resampled_scores(task, labels, models)]
    differences = [_difference(scores, drawn, other, limits.confidence) for other in range(1, len(models))]
    belong = _hashes(task, root).get(str(artifacts.glue_evaluation(task.name) / PREDICTIONS)) == artifacts.sha256_of(
        path
    )
    return GlueEvidence(scores[0], differences[0], differences[1] if len(differences) > 1 else None, belong)


def _difference(scores: list[float], drawn: list[Values], other: int, confidence: float) -> Interval:
    return interval(drawn[0] - drawn[other], scores[0] - scores[other], confidence)


def _hashes(task: GlueTask, root: Path) -> dict[str, str]:
    path = root / artifacts.glue_metrics(task.name)
    try:
        return {entry["path"]: entry["sha256"] for entry in artifacts.read_json(path)["files"]}
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        raise InputError(f"{path} is missing or damaged; run the stage glue_evaluate@{task.name}") from None


def gate(task: GlueTask, limits: GlueGateParams, root: Path = Path()) -> GateDecision:
    """Decide on the classifier of the checkout `root` and write metrics/glue-<task>-gate.json.

    Raises:
        InputError: see `gather`.
    """
    found, name = gather(task, limits, root), f"glue-{task.name}"
    verdicts = ("corpus", "phase1", "phase2", name, f"{name}-rows")
    trainings = ("pretrain-phase1", "pretrain-phase2", f"{name}-finetune")
    others = [verdict_check(one, read_verdict(root / artifacts.validation_report(one), one)) for one in verdicts]
    others += [loss_check(one, read_loss(root / artifacts.METRICS / f"{one}.json")) for one in trainings]
    decision, hashes = decide(task, found, others, limits), _hashes(task, root)
    values: dict[str, Any] = {
        **decision_values(decision),
        "metrics": {"score": round(found.score, 4)},
        "model_sha256": hashes.get(str(artifacts.glue_model(task.name) / "model.safetensors")),
        "predictions_sha256": hashes.get(str(artifacts.glue_evaluation(task.name) / PREDICTIONS)),
    }
    artifacts.write_json(root / artifacts.glue_metrics(task.name, "gate"), values)
    return decision


def main() -> None:
    parser = argparse.ArgumentParser(description="Decide whether a GLUE classifier may be released.")
    parser.add_argument("task", choices=sorted(TASKS))
    task = glue_task(parser.parse_args().task)
    decision = gate(task, load_params().glue_gate)
    passed, word = sum(check.ok for check in decision.checks), "accepted" if decision.accepted else "rejected"
    print(f"glue gate, {task.title}: {word}, {passed} of {len(decision.checks)} checks passed")
    for reason in decision.reasons:
        print(f"  - {reason}")


if __name__ == "__main__":
    run_main(main)
