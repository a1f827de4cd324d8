"""Decision on each exported file of a model: it is published only if its own answers are as good as required.

An exported file that fails is not published; the model and the other files are.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ipu_model.core.files import find_object
from tasks.downstream.gate.recipe import GateCheck, ScoreEvidence, check_scores, format_points, round_finite
from tasks.downstream.gate.subject import Hashes, ReleaseSubject
from tasks.downstream.gate.verdict_text import EXPORTS
from tasks.downstream.scoring.metrics import Outcomes
from tasks.downstream.scoring.scores import Scores
from tasks.downstream.scoring.significance import PairedDifference
from tasks.stage import artifacts
from tasks.stage.errors import InputError

MAX_DROP: Mapping[Any, float] = {"onnx": 0.0, "int8": 1.0}
"""Tolerated drop in points, if the parameters state none."""
NOT_WORSE = "not_worse"
"""Key of a verdict: True if the drop is shown to be at most the tolerated one, which acceptance does not require."""
MAX_LOGIT_DIFFERENCE = {"onnx": 1e-4}
"""Format -> largest difference of a logit from transformers; another format computes other numbers."""


@dataclass(frozen=True)
class ExportEvidence:
    """Evidence for the decision on one exported file."""

    form: str
    size: int
    """Bytes."""
    scores: Mapping[str, float]
    """Every metric with its interval, percent, from its predictions."""
    answered: int
    examples: int
    belongs: bool
    """True if the metrics of the exports are of this file and of these predictions."""
    differences: Mapping[str, PairedDifference]
    """Metric -> gain over the model, in points, with its test."""
    parity: float | None
    """Largest difference of a logit from transformers; None if unknown, or if a logit is not finite."""


def gather_exports(
    task: Scores, subject: ReleaseSubject, examples: Mapping[str, object], own: Outcomes, hashes: Hashes, root: Path
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
        scores = task.metrics.figures(outcomes)
        parity, apart = one.get("transformers_difference"), one.get("logit_difference")
        finite = all(isinstance(x, float | int) and math.isfinite(x) for x in (parity, apart))
        found[name] = ExportEvidence(
            form=one.get("format", ""),
            size=(root / path).stat().st_size,
            scores=scores,
            answered=sum(answer is not None for split in predictions.values() for answer in split),
            examples=sum(map(len, outcomes.values())),
            belongs=one.get("sha256") == hashes[path.as_posix()]
            and all(_is_equal(one.get(metric), value) for metric, value in scores.items()),
            differences=task.metrics.differences(outcomes, own, task.confidence),
            parity=float(parity or 0.0) if finite else None,
        )
    return found


def _is_equal(stated: object, value: float) -> bool:
    return isinstance(stated, float | int) and (abs(stated - value) <= 1e-3 or math.isnan(value))


def decide_export(task: Scores, found: ExportEvidence) -> dict[str, object]:
    """Accept an exported file if all checks pass; return the verdict as plain values.

    - Its scores meet the floors of the model.
    - No metric with a floor is significantly more than the tolerated drop below the model (paired, same examples).
    - All logits are finite; in fp32, none differs from transformers by more than 1e-4.
    - Every example has a prediction, and the file is the one that was scored.
    """
    title = f" of {artifacts.EXPORT_FILES[found.form]}"
    checks = check_scores(task, ScoreEvidence(found.scores, None, None, f"{found.examples} {task.record}s"))
    most = {**MAX_DROP, **(task.entry.params.gate.max_export_drop or {})}[found.form]
    compared = {one.metric: found.differences[one.metric] for one in task.limits if one.tolerated_key}
    checks += [_check_drop(task, metric, most, one, found.form) for metric, one in compared.items()]
    limit, shown = MAX_LOGIT_DIFFERENCE.get(found.form, math.inf), "not finite"
    if found.parity is not None:
        shown = f"{found.parity:.2g}"
    required = f"{limit:g}" if math.isfinite(limit) else "finite"
    reason = f"The largest difference of a logit{title} from transformers is {shown}; required: {required}."
    checks.append(GateCheck("logits", found.parity is not None and found.parity <= limit, shown, required, reason))
    lacking = f"{found.examples - found.answered} of {found.examples} {task.record}s have no prediction{title}."
    complete = found.answered == found.examples
    checks.append(GateCheck("predictions_complete", complete, found.answered, found.examples, lacking))
    other = f"The scores{title} do not belong to this file. Run the stage {task.entry.stage('export')} again."
    checks.append(GateCheck("scores_belong", found.belongs, "same" if found.belongs else "other", "same", other))
    reasons = [check.reason for check in checks if not check.ok]
    return {
        "accepted": not reasons,
        NOT_WORSE: all(one.excludes_drop(most) or math.isnan(one.mean) for one in compared.values()),
        "bytes": found.size,
        "reasons": reasons,
        "checks": [check.as_values() for check in checks],
        "metrics": round_finite(found.scores),
        "differences": {
            name: round_finite({"mean": one.mean, "low": one.low, "high": one.high})
            for name, one in found.differences.items()
            if math.isfinite(one.mean)
        },
    }


def _check_drop(task: Scores, metric: str, most: float, difference: PairedDifference, form: str) -> GateCheck:
    key, shown = task.entry.key("gate", f"max_export_drop.{form}"), format_points(difference)
    reason = (
        f"{task.metrics.titles[metric].capitalize()} of {artifacts.EXPORT_FILES[form]} dropped significantly against "
        f"the model: {shown}; {most:g} points are tolerated ({key})."
    )
    kept = math.isnan(difference.mean) or not difference.shows_drop(most, task.confidence)
    return GateCheck(f"drop_{metric}", kept, shown, f"{most:g} points", reason)


def list_model_files(
    task: Scores, gate: Mapping[str, Any], metrics: Mapping[str, object], weights: Path, prefer: str
) -> tuple[list[dict[str, Any]], str | None]:
    """Return the weights and the exported files with their scores, and the name of the preferred file.

    There are no files for a model without exports. The preferred file comes first. With publish.prefer `smallest` it is
    the smallest one whose interval excludes a larger drop than the tolerated one; the weights always qualify.
    """
    verdicts, lead = gate.get(EXPORTS, {}), task.limits[0].metric
    if not verdicts:
        return [], None
    size = weights.stat().st_size
    own = {"accepted": True, NOT_WORSE: True, "bytes": size, "metrics": metrics, "differences": {}, "checks": []}
    files = {weights.name: own, **verdicts}
    fitting = [name for name, one in files.items() if one["accepted"] and one[NOT_WORSE]]
    preferred = min(fitting, key=lambda name: files[name]["bytes"]) if prefer == "smallest" else None
    rows = [
        {
            "name": name,
            "metric": task.metrics.titles[lead],
            "megabytes": one["bytes"] / 1e6,
            "accepted": one["accepted"],
            "failed": [check for check in one["checks"] if not check["ok"]],
            "score": one["metrics"][lead],
            "low": one["metrics"][f"{lead}_low"],
            "high": one["metrics"][f"{lead}_high"],
            "difference": one["differences"].get(lead),
        }
        for name, one in files.items()
    ]
    return sorted(rows, key=lambda one: one["name"] != preferred), preferred
