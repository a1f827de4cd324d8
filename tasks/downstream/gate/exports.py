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
    task: Scores,
    subject: ReleaseSubject,
    examples: Mapping[str, object],
    reference: Outcomes,
    hashes: Hashes,
    root: Path,
) -> dict[str, ExportEvidence]:
    """Read the evidence of every exported file of the checkout `root`.

    Args:
        reference: outcomes of the model itself.

    Raises:
        InputError: a file is missing or damaged.
    """
    if not subject.exports:
        return {}
    again = f"Run the stage {task.entry.stage('export')}"
    listed = (find_object(root / subject.export_metrics) or {}).get("exports")
    records = {item.get("name"): item for item in listed or () if isinstance(item, dict)}
    exports = {}
    for name, path in subject.exports.items():
        record, answers = records.get(name), artifacts.exported_predictions(subject.name, name)
        if record is None or hashes.get(path.as_posix()) is None:
            raise InputError(f"{root / subject.export_metrics} or {root / path} lacks {name}. {again}")
        predictions = task.read_predictions(root / answers, examples)
        outcomes = task.outcomes_of(examples, predictions)
        scores = task.metrics.figures(outcomes)
        parity, apart = record.get("transformers_difference"), record.get("logit_difference")
        finite = all(isinstance(x, float | int) and math.isfinite(x) for x in (parity, apart))
        exports[name] = ExportEvidence(
            form=record.get("format", ""),
            size=(root / path).stat().st_size,
            scores=scores,
            answered=sum(answer is not None for split in predictions.values() for answer in split),
            examples=sum(map(len, outcomes.values())),
            belongs=record.get("sha256") == hashes[path.as_posix()]
            and all(_is_equal(record.get(metric), value) for metric, value in scores.items()),
            differences=task.metrics.differences(outcomes, reference, task.confidence),
            parity=float(parity or 0.0) if finite else None,
        )
    return exports


def _is_equal(recorded: object, value: float) -> bool:
    return isinstance(recorded, float | int) and (abs(recorded - value) <= 1e-3 or math.isnan(value))


def decide_export(task: Scores, evidence: ExportEvidence) -> dict[str, object]:
    """Accept an exported file if all checks pass; return the verdict as plain values.

    - Its scores meet the floors of the model.
    - No metric with a floor is significantly more than the tolerated drop below the model (paired, same examples).
    - All logits are finite; in fp32, none differs from transformers by more than 1e-4.
    - Every example has a prediction, and the file is the one that was scored.
    """
    title = f" of {artifacts.EXPORT_FILES[evidence.form]}"
    checks = check_scores(task, ScoreEvidence(evidence.scores, None, None, f"{evidence.examples} {task.record}s"))
    most = {**MAX_DROP, **(task.entry.params.gate.max_export_drop or {})}[evidence.form]
    compared = {bound.metric: evidence.differences[bound.metric] for bound in task.limits if bound.tolerated_key}
    checks += [_check_drop(task, metric, most, difference, evidence.form) for metric, difference in compared.items()]
    limit, shown = MAX_LOGIT_DIFFERENCE.get(evidence.form, math.inf), "not finite"
    if evidence.parity is not None:
        shown = f"{evidence.parity:.2g}"
    required = f"{limit:g}" if math.isfinite(limit) else "finite"
    reason = f"The largest difference of a logit{title} from transformers is {shown}; required: {required}."
    checks.append(
        GateCheck("logits", evidence.parity is not None and evidence.parity <= limit, shown, required, reason)
    )
    lacking = (
        f"{evidence.examples - evidence.answered} of {evidence.examples} {task.record}s have no prediction{title}."
    )
    complete = evidence.answered == evidence.examples
    checks.append(GateCheck("predictions_complete", complete, evidence.answered, evidence.examples, lacking))
    other = f"The scores{title} do not belong to this file. Run the stage {task.entry.stage('export')} again."
    checks.append(GateCheck("scores_belong", evidence.belongs, "same" if evidence.belongs else "other", "same", other))
    reasons = [check.reason for check in checks if not check.ok]
    return {
        "accepted": not reasons,
        NOT_WORSE: all(
            difference.excludes_drop(most) or math.isnan(difference.mean) for difference in compared.values()
        ),
        "bytes": evidence.size,
        "reasons": reasons,
        "checks": [check.as_values() for check in checks],
        "metrics": round_finite(evidence.scores),
        "differences": {
            name: round_finite({"mean": difference.mean, "low": difference.low, "high": difference.high})
            for name, difference in evidence.differences.items()
            if math.isfinite(difference.mean)
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
    model = {"accepted": True, NOT_WORSE: True, "bytes": size, "metrics": metrics, "differences": {}, "checks": []}
    files = {weights.name: model, **verdicts}
    fitting = [name for name, verdict in files.items() if verdict["accepted"] and verdict[NOT_WORSE]]
    preferred = min(fitting, key=lambda name: files[name]["bytes"]) if prefer == "smallest" else None
    rows = [
        {
            "name": name,
            "metric": task.metrics.titles[lead],
            "megabytes": verdict["bytes"] / 1e6,
            "accepted": verdict["accepted"],
            "failed": [check for check in verdict["checks"] if not check["ok"]],
            "score": verdict["metrics"][lead],
            "low": verdict["metrics"][f"{lead}_low"],
            "high": verdict["metrics"][f"{lead}_high"],
            "difference": verdict["differences"].get(lead),
        }
        for name, verdict in files.items()
    ]
    return sorted(rows, key=lambda row: row["name"] != preferred), preferred
