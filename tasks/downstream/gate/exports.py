"""Decision on each exported file of a model: it is published only if its own answers are as good as required.

An exported file that fails is not published; the model and the other files are.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ipu_model.files import find_object
from tasks.downstream.gate.recipe import GateCheck, ReasonedCheck, ScoreEvidence, check_scores, format_points
from tasks.downstream.gate.subject import Hashes, ReleaseSubject
from tasks.downstream.scoring.metrics import Outcomes
from tasks.downstream.scoring.scores import AnyScores
from tasks.downstream.scoring.significance import PairedDifference
from tasks.stage import artifacts
from tasks.stage.errors import InputError

MAX_DROP: Mapping[Any, float] = {"onnx": 0.0, "int8": 1.0}
"""Tolerated drop in points, if the parameters state none."""
MAX_LOGIT_DIFFERENCE = {"onnx": 1e-4}
"""Format -> largest difference of a logit from transformers; another format computes other numbers."""


@dataclass(frozen=True)
class ExportEvidence:
    """Evidence for the decision on one exported file."""

    form: str
    scores: Mapping[str, float]
    """Every metric, percent, from its predictions."""
    answered: int
    examples: int
    belongs: bool
    """True if the metrics of the exports are of this file and of these predictions."""
    differences: Mapping[str, PairedDifference]
    """Metric -> gain over the model, in points, with its test."""
    parity: float | None
    """Largest difference of a logit from transformers; None if unknown or not finite."""


def gather_exports(
    task: AnyScores, subject: ReleaseSubject, examples: Mapping[str, Any], own: Outcomes, hashes: Hashes, root: Path
) -> dict[str, ExportEvidence]:
    """Read the evidence of every exported file of the checkout `root`.

    Args:
        own: outcomes of the model itself.

    Raises:
        InputError: a file is missing or damaged.
    """
    if not subject.exports:
        return {}
    again = f"Run the stage {task.entry.stage('export')}"
    listed = (find_object(root / subject.export_metrics) or {}).get("exports")
    stated = {one.get("name"): one for one in listed or () if isinstance(one, dict)}
    found = {}
    for name, path in subject.exports.items():
        one, answers = stated.get(name), artifacts.exported_predictions(subject.name, name)
        if one is None or hashes.get(path.as_posix()) is None:
            raise InputError(f"{root / subject.export_metrics} or {root / path} lacks {name}. {again}")
        predictions = task.read_predictions(root / answers, examples)
        outcomes = task.outcomes_of(examples, predictions)
        scores = {metric: round(value, 4) for metric, value in task.metrics.compute(outcomes).items()}
        parity = one.get("transformers_difference")
        found[name] = ExportEvidence(
            form=one.get("format", ""),
            scores=scores,
            answered=sum(answer is not None for split in predictions.values() for answer in split),
            examples=sum(map(len, outcomes.values())),
            belongs=one.get("sha256") == hashes[path.as_posix()]
            and all(_is_equal(one.get(metric), value) for metric, value in scores.items()),
            differences=task.metrics.differences(outcomes, own, task.confidence),
            parity=float(parity) if isinstance(parity, float | int) and math.isfinite(parity) else None,
        )
    return found


def _is_equal(stated: Any, value: float) -> bool:
    return isinstance(stated, float | int) and (abs(stated - value) <= 1e-3 or math.isnan(value))


def decide_export(task: AnyScores, found: ExportEvidence) -> dict[str, Any]:
    """Accept an exported file if all checks pass; return the verdict as plain values.

    - Its scores meet the floors of the model.
    - No metric with a floor is significantly more than the tolerated drop below the model (paired, same examples).
    - In fp32, no logit differs from transformers by more than 1e-4.
    - Every example has a prediction, and the file is the one that was scored.
    """
    title = f" of {artifacts.EXPORT_FILES[found.form]}"
    checks = check_scores(task, ScoreEvidence(found.scores, None, None, f"{found.examples} {task.record}s"))
    most = {**MAX_DROP, **(task.entry.params.gate.max_export_drop or {})}[found.form]
    checks += [_check_drop(task, limit.metric, most, found, title) for limit in task.limits if limit.tolerated_key]
    if (limit := MAX_LOGIT_DIFFERENCE.get(found.form)) is not None:
        apart = math.nan if found.parity is None else found.parity
        shown = "not a number" if found.parity is None else f"{apart:.2g}"
        reason = f"The largest difference of a logit{title} from transformers is {shown}; {limit:g} is the limit."
        checks.append((GateCheck("logits", apart <= limit, shown, f"{limit:g}"), reason))
    lacking = f"{found.examples - found.answered} of {found.examples} {task.record}s have no prediction{title}."
    checks.append(
        (GateCheck("predictions_complete", found.answered == found.examples, found.answered, found.examples), lacking)
    )
    other = f"The scores{title} do not belong to this file. Run the stage {task.entry.stage('export')} again."
    checks.append((GateCheck("scores_belong", found.belongs, "same" if found.belongs else "other", "same"), other))
    reasons = [reason for check, reason in checks if not check.ok]
    return {
        "accepted": not reasons,
        "reasons": reasons,
        "checks": [check.as_values() for check, _ in checks],
        "metrics": {name: value if math.isfinite(value) else None for name, value in found.scores.items()},
        "differences": {
            name: {"mean": round(one.mean, 4), "low": round(one.low, 4), "high": round(one.high, 4)}
            for name, one in found.differences.items()
            if math.isfinite(one.mean)
        },
    }


def _check_drop(task: AnyScores, metric: str, most: float, found: ExportEvidence, title: str) -> ReasonedCheck:
    difference, key = found.differences[metric], task.entry.key("gate", f"max_export_drop.{found.form}")
    fell, shown = not round(difference.high, 4) >= -most, format_points(difference)
    if difference.mcnemar is not None:
        fell = fell and difference.mcnemar.p_value < 1 - task.confidence
    reason = (
        f"{task.metrics.titles[metric].capitalize()}{title} dropped significantly against the model: {shown}; {most:g} "
        f"points are tolerated ({key})."
    )
    return GateCheck(f"drop_{metric}", not fell or math.isnan(difference.mean), shown, f"{most:g} points"), reason
