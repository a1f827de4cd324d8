"""Stage glue_gate@TASK: may this classifier be released? A decision with reasons, as the stage gate makes it.

python -m tasks.downstream.glue.gate sst2
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasks.downstream.evidence import read_loss, read_verdict, require_counted
from tasks.downstream.gate import Check, GateDecision, decision_values, loss_check, verdict_check
from tasks.downstream.glue.answers import read_labels, read_predictions
from tasks.downstream.glue.released import read_released
from tasks.downstream.glue.scores import Values, best_constant, figures, interval, resampled_scores, scores_of
from tasks.downstream.glue.tasks import TASKS, GlueTask, glue_task
from tasks.project import artifacts
from tasks.project.errors import InputError
from tasks.project.files import read_json, write_json
from tasks.project.given import require_readable
from tasks.project.main import run_main
from tasks.project.param_glue import GlueGateParams
from tasks.project.params import load_params, parameter_values
from tasks.project.process import item
from tasks.release.release_subject import RELEASED, Subject, glue_subject
from tasks.release.seal import Hashes, hashes_of, judged_values
from tasks.statistics.significance import Interval

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
    """The scores were counted on the predictions and the weights that lie there now."""


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
    reason = f"the scores are of other predictions or weights than lie there now; run glue_evaluate@{task.name} again."
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


def subject_of(task: GlueTask) -> Subject:
    """What the release of a task is about."""
    return glue_subject(task.name, task.splits)


def gather(task: GlueTask, released: Path, confidence: float, hashes: Hashes, root: Path = Path()) -> GlueEvidence:
    """Read the evidence of the checkout `root`.

    Args:
        task: of GLUE.
        released: folder of the released models.
        confidence: of the intervals of differences.
        hashes: SHA-256 of the files, by their paths in the checkout.
        root: the checkout.

    Raises:
        InputError: scores, examples or predictions are missing or damaged, the released model answered others, or the
            metrics state other scores than the predictions have.
    """
    labels, subject = read_labels(task, root), subject_of(task)
    if os.path.lexists(root / released):
        require_readable(root / released, "glue_gate.released")  # a lost link is not "none released"
    answers = _all_of(root / subject.predictions, read_predictions(task, root / subject.predictions), labels)
    place = root / released / task.name
    theirs = read_released(task, place, root)
    metrics = root / subject.metrics
    belong = _scored(task, metrics) == {name: hashes[name] for name in _scored_files(subject)}
    if belong:  # else there is a better word for it
        stated: dict[str, Any] = read_json(metrics)
        require_counted(metrics, stated, figures(task, labels, answers), subject.stages["evaluate"])
    models = [answers, best_constant(task, labels), *([] if theirs is None else [_all_of(place, theirs, labels)])]
    scores = [scores_of(task, labels, one)["score"] for one in models]
    drawn = [one["score"] for one in resampled_scores(task, labels, models)]
    differences = [_difference(scores, drawn, other, confidence) for other in range(1, len(models))]
    return GlueEvidence(scores[0], differences[0], differences[1] if len(differences) > 1 else None, belong)


def _all_of(where: Path, found: dict[str, Values], labels: Mapping[str, Values]) -> dict[str, Values]:
    for split, truth in labels.items():
        if len(found[split]) != len(truth):
            raise InputError(
                f"{where} holds {len(found[split])} predictions of {split}, which has {len(truth)} examples"
            )
    return found


def _difference(scores: list[float], drawn: list[Values], other: int, confidence: float) -> Interval:
    return interval(drawn[0] - drawn[other], scores[0] - scores[other], confidence)


def _scored_files(subject: Subject) -> tuple[str, str]:
    return str(subject.model / "model.safetensors"), str(subject.predictions)


def _scored(task: GlueTask, path: Path) -> dict[str, str]:
    """SHA-256 of the files that the scores were counted on."""
    try:
        return {entry["path"]: entry["sha256"] for entry in read_json(path)["files"]}
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        raise InputError(f"{path} is missing or damaged; run the stage glue_evaluate@{task.name}") from None


def judge(task: GlueTask, limits: GlueGateParams, found: GlueEvidence, root: Path) -> GateDecision:
    """The decision, with the data verdicts and the losses of the checkout `root`."""
    subject = subject_of(task)
    others = [
        verdict_check(one, read_verdict(root / artifacts.validation_report(one), one)) for one in subject.verdicts
    ]
    others += [loss_check(one, read_loss(root / artifacts.METRICS / f"{one}.json")) for one in subject.trainings]
    return decide(task, found, others, limits)


def gate(task: GlueTask, parameters: Mapping[str, Any], root: Path = Path()) -> GateDecision:
    """Decide on the classifier of the checkout `root` and write metrics/glue-<task>-gate.json.

    Args:
        task: of GLUE.
        parameters: the whole of params.yaml, checked, as plain values.
        root: the checkout.

    Raises:
        InputError: see `gather`.
    """
    limits, subject = GlueGateParams(**parameters["glue_gate"]), subject_of(task)
    released = Path(limits.released)
    hashes = hashes_of(subject.judged(released, root))
    found = gather(task, released, limits.confidence, hashes, root)
    decision = judge(task, limits, found, root)
    values: dict[str, Any] = {
        **decision_values(decision),
        "metrics": {"score": round(found.score, 4)},
        **judged_values(hashes, parameters, subject.parameters),
    }
    write_json(root / subject.gate, values)
    return decision


def decide_again(task: GlueTask, parameters: Mapping[str, Any], hashes: Hashes, held: Path) -> GateDecision:
    """The decision on copies of what the gate judged, the released model's in the folder RELEASED among them.

    Raises:
        InputError: see `gather`.
    """
    limits = GlueGateParams(**parameters["glue_gate"])
    return judge(task, limits, gather(task, RELEASED, limits.confidence, hashes, held), held)


def main() -> None:
    parser = argparse.ArgumentParser(description="Decide whether a GLUE classifier may be released.")
    parser.add_argument("task", type=item, choices=sorted(TASKS))
    task = glue_task(parser.parse_args().task)
    decision = gate(task, parameter_values(load_params()))
    passed, word = sum(check.ok for check in decision.checks), "accepted" if decision.accepted else "rejected"
    print(f"glue gate, {task.title}: {word}, {passed} of {len(decision.checks)} checks passed")
    for reason in decision.reasons:
        print(f"  - {reason}")


if __name__ == "__main__":
    run_main(main)
