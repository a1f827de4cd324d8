"""Stage gate: decide whether a model may be released, with reasons.

python -m tasks.downstream.gate.gate NAME    write the verdict; exit code 0 even if rejected
"""

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np

from ipu_model.core.files import find_object, write_json
from tasks.downstream.gate.advice import Advice, TrainingFacts, advise, read_losses
from tasks.downstream.gate.exports import ExportEvidence, decide_export, gather_exports
from tasks.downstream.gate.recipe import (
    GateCheck,
    RecipeScores,
    ReleasedComparison,
    ScoreEvidence,
    SeedModel,
    check_recipe,
    check_scores,
    check_teacher,
    find_least_gain,
    no_drop_requirement,
    read_seeds,
    recipe_record,
    score_recipe,
)
from tasks.downstream.gate.released_scores import SCORES, mark_unanswered, read_outcomes, read_released_outcomes
from tasks.downstream.gate.subject import Hashes, ReleaseSubject, hash_files, make_subject
from tasks.downstream.gate.verdict_text import ADVICE, COMPARED, EXPORTS, WITHOUT_FLOOR, held_out_score
from tasks.downstream.kind import kind_of
from tasks.downstream.scoring.metrics import Outcomes, keep_common
from tasks.downstream.scoring.scores import Scores
from tasks.downstream.scoring.significance import ConfidenceInterval, PairedDifference
from tasks.params.downstream import PUBLISHED, UNCOMPARED
from tasks.params.entries import entry_argument, find_entry
from tasks.params.schema import load_params, parameter_values, validate_params
from tasks.plan.code_state import git_state
from tasks.plan.main import run_main
from tasks.plan.named_files import require_readable
from tasks.stage import artifacts
from tasks.stage.errors import InputError
from tasks.tracking.trackers import record_verdict

CUT = "and are cut to them"
"""Part of the note of a verdict on rows that texts are cut."""
COUNTED_ALIKE = 1e-3
"""Tolerance in percent: scores have four decimals, and hosts may differ in the last one."""
OPPOSED = 4.0
"""Standard errors below chance from which the labels of the examples are taken to be swapped."""
JUDGED, CODE = "judged", "code"
"""Keys of the verdict: SHA-256 of the evaluated files, and the version of the code."""


@dataclass(frozen=True)
class Evidence:
    """Evidence for a decision."""

    own: ScoreEvidence
    """Scores of the model, and their differences from baseline and released model."""
    examples: int
    answered: int
    """Number of examples with a prediction."""
    scores_belong: bool
    """True if the scores were computed from the current predictions and weights."""
    verdicts: Mapping[str, bool | None]
    """Data set -> valid; None: no readable verdict."""
    trainings: Mapping[str, Mapping[str, object] | None]
    """Training -> its metrics; None: not readable."""
    teacher: ReleasedComparison | None = None
    """None without gate.max_teacher_drop."""
    recipe: RecipeScores | None = None
    """Scores of all models of the recipe; None without other seeds."""
    exports: Mapping[str, ExportEvidence] = field(default_factory=dict)
    """Path in the release -> evidence of an exported file."""
    compared: str = "not compared with a released model"
    """Names the released model, or says why there is none."""
    is_opposed: bool = False
    """True if the released model answers these examples as if their labels were swapped."""


def gather_evidence(
    task: Scores,
    subject: ReleaseSubject,
    released: Path | None,
    hashes: Mapping[str, str | None],
    root: Path = Path(),
    seeds: Path | None = None,
) -> Evidence:
    """Read the evidence of the checkout `root`.

    A missing verdict or training becomes part of the evidence and fails its check, so that one decision names every
    problem. Without scores, examples or predictions there is nothing to decide. Scores are computed from the
    predictions and must agree with the metrics file.

    Args:
        released: folder of the released model's scores.json or predictions.json; empty before the first release. None:
            not compared.
        hashes: SHA-256 of the files by path in the checkout.
        seeds: folder with the scores of other seeds of the recipe; None: evaluate this model alone.

    Raises:
        InputError: metrics, examples, predictions or the scores of another seed are missing or damaged, or the metrics
            disagree with the predictions.
    """
    scored_files = (str(subject.predictions), str(subject.model / "model.safetensors"))
    metrics = _scores(task, root / subject.metrics, scored_files)
    rule = task.read_rule(metrics, root / subject.metrics)
    task, examples = task.read_all(root)
    baselines = task.baselines(examples, rule)
    predictions = task.read_predictions(root / subject.predictions, examples)
    belong = all(file["sha256"] == hashes[file["path"]] for file in metrics["files"] if file["path"] in scored_files)
    outcomes = task.outcomes_of(examples, predictions)
    task.verify_decisions(metrics, predictions, root)
    if belong:  # otherwise the check of hashes reports it
        again = task.figures(outcomes, task.best_of(baselines))
        verify_scores(root / subject.metrics, metrics, again, subject.entry.stage("evaluate"))
    baselines = baselines if task.entry.params.gate.above_baseline else []

    def measure_gain(without: Outcomes) -> ConfidenceInterval:
        differences = task.metrics.differences(outcomes, without, task.confidence)
        return task.metrics.widen(differences, [outcomes], without, task.confidence)[task.limits[0].metric]

    gain, baseline = find_least_gain(baselines, measure_gain)
    theirs = None
    if released is not None:
        if os.path.lexists(root / released):  # a lost link is not "none released"
            require_readable(root / released, task.entry.key("gate", "released"))
        theirs = read_released_outcomes(task, examples, root / released / subject.entry.params.released_below)
    candidate = _read_judged_model(task, subject, outcomes, hashes, root)
    trained = None if seeds is None else read_seeds(task, examples, root / seeds, candidate)
    taught = None
    if subject.teacher is not None and task.entry.params.gate.max_teacher_drop is not None:
        taught = read_outcomes(task, examples, root / subject.teacher / SCORES)
    answers, count = mark_unanswered(outcomes, predictions), sum(map(len, outcomes.values()))
    return Evidence(
        own=ScoreEvidence(
            {name: round(value, 4) for name, value in task.metrics.compute(outcomes).items()},
            gain,
            None if theirs is None else ReleasedComparison(*paired_differences(task, answers, theirs)),
            f"{count} {task.record}s",
            baseline,
        ),
        examples=count,
        answered=sum(prediction is not None for split in predictions.values() for prediction in split),
        scores_belong=belong,
        verdicts={name: read_verdict(root / artifacts.validation_report(name), name) for name in subject.verdicts},
        trainings={name: find_object(root / artifacts.METRICS / f"{name}.json") for name in subject.trainings},
        teacher=None if taught is None else compare_teacher(task, answers, taught),
        recipe=None if trained is None else score_recipe(task, trained, candidate, theirs, baselines),
        exports=gather_exports(task, subject, examples, outcomes, hashes, root),
        compared=_describe_comparison(task, None if released is None else root / released, theirs is not None),
        is_opposed=theirs is not None and is_opposed(task, theirs),
    )


def is_opposed(task: Scores, outcomes: Outcomes) -> bool:
    """Tell whether classes are right clearly less often than by chance, or values are ordered the other way round.

    That is at least OPPOSED standard errors. Only answers of one class or value are judged.
    """
    if (task.known_quantities, len(task.quantities)) != (1, 2):
        return False
    rows = np.concatenate([*outcomes.values()])
    rows = rows[~np.isnan(rows).any(axis=1)]
    if len(rows) < 2:
        return False
    label, answer = rows.T
    if task.metrics.parts[0].correlate is not None:
        with np.errstate(invalid="ignore"):  # a constant answer has no correlation
            return bool(np.corrcoef(label, answer)[0, 1] < -OPPOSED / math.sqrt(len(rows)))
    chance = sum(float(np.mean(label == number) * np.mean(answer == number)) for number in np.unique(label))
    return bool(np.mean(label == answer) < chance - OPPOSED * math.sqrt(chance * (1 - chance) / len(rows)))


def _describe_comparison(task: Scores, released: Path | None, has_scores: bool) -> str:
    """Return which released model the gate compares with, or why with none, after "the model was"."""
    key, alone = task.entry.key("gate", "released"), "not compared with a released model"
    if released is None:
        return f"{alone}, as {key} is {UNCOMPARED}"
    if not task.entry.fetches_released:
        return f"compared with the scores in the folder of {key}" if has_scores else f"{alone}, as {key} has no scores"
    record = find_object(released / artifacts.RELEASED_RECORD) or {}
    if not has_scores:
        why = "its target has no other model" if record.get("fetched") else "the gate could not see its target"
        return f"{alone}, as {why}"
    how = "by the scores of that release"
    if record.get("predicted"):
        how = f"which predicted these {task.record}s, as its release does not state scores of all of them"
    return f"compared with {(record.get('release') or {}).get('tag')}, {how}"


def _read_judged_model(
    task: Scores, subject: ReleaseSubject, outcomes: Outcomes, hashes: Mapping[str, str | None], root: Path
) -> SeedModel:
    figures = find_object(root / artifacts.METRICS / f"{subject.trainings[-1]}.json") or {}
    try:
        held_out = held_out_score(figures["held_out"])
    except (KeyError, ValueError, TypeError, AttributeError):
        held_out = None
    weights = hashes[str(subject.model / "model.safetensors")]
    return SeedModel(task.entry.params.finetune.seed, outcomes, held_out, weights)


def compare_teacher(task: Scores, ours: Outcomes, theirs: Outcomes) -> ReleasedComparison:
    """Compare a student with its teacher as `paired_differences`, but with intervals for a test of non-inferiority.

    Resamples of few examples, or of few that differ, understate what other examples may show. So the lower bound adds
    one example that only the teacher has right, as the interval of a score adds one that is wrong.
    """
    common, (student, other) = keep_common(ours, theirs)
    differences = task.metrics.differences(student, other, task.confidence) if common else {}
    bounded = task.metrics.widen(differences, [student], other, task.confidence, math.inf)
    return ReleasedComparison(common, bounded)


def paired_differences(task: Scores, ours: Outcomes, theirs: Outcomes) -> tuple[int, dict[str, PairedDifference]]:
    """Return the number of examples that both models predicted, and on these every metric of the first minus that of
    the second; outcomes are NaN without a prediction."""
    common, (first, other) = keep_common(ours, theirs)
    return common, task.metrics.differences(first, other, task.confidence) if common else {}


def verify_scores(path: Path, recorded: Mapping[str, Any], counted: Mapping[str, float], stage: str) -> None:
    """Check that the scores in a metrics file agree with the predictions.

    Args:
        counted: scores computed from the predictions.
        stage: stage that writes the file.

    Raises:
        InputError: scores differ, or the file has intervals of unknown scores.
    """
    wrong = [
        f"{name}={recorded.get(name)!r}, computed {value}"
        for name, value in counted.items()
        if not (_is_number(recorded.get(name)) and abs(recorded[name] - value) <= COUNTED_ALIKE)
    ]
    wrong += [f"{name}, not a score of this task" for name in recorded if name.endswith("_low") and name not in counted]
    if wrong:
        raise InputError(
            f"{path} does not match the predictions: {'; '.join(wrong[:5])}. One of the files was changed. Rerun "
            f"`dvc repro --force --single-item {stage}`, then the gate"
        )


def _scores(task: Scores, path: Path, scored: Sequence[str]) -> dict[str, Any]:
    values, again = find_object(path), f"Run the stage {task.entry.stage('evaluate')}"
    if values is None:
        raise InputError(f"{path} is missing or not a JSON object. {again}")
    files, names = values.get("files"), list(task.metrics.titles)
    complete = (
        all(_is_number(values.get(name)) for name in names)
        and isinstance(files, list)
        and set(scored) <= {entry.get("path") for entry in files if isinstance(entry, dict) and "sha256" in entry}
    )
    if not complete:
        raise InputError(
            f"{path} must contain {', '.join(names)} and the SHA-256 of {' and '.join(sorted(scored))}. {again} again"
        )
    return values


def read_verdict(path: Path, name: str) -> bool | None:
    """Return the verdict on the data set `name`; None if there is no readable one."""
    values = find_object(path)
    if values is None or values.get("data") != name or not isinstance(values.get("valid"), bool):
        return None
    return bool(values["valid"])


def read_notes(path: Path) -> list[str]:
    """Return the notes of a verdict on a data set; empty if there is no readable one."""
    notes = (find_object(path) or {}).get("notes")
    return [str(note) for note in notes] if isinstance(notes, list) else []


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def decide(task: Scores, evidence: Evidence) -> dict[str, Any]:
    """Accept if all checks pass; each failed check gives a reason. Return the verdict as plain values.

    - Every metric with a floor is at or above it; a value that is not finite fails.
    - Unless disabled, the leading metric is significantly above each baseline, such as the best answer without a model:
      the lower bound of the two-sided `confidence` interval of the difference is above 0.
    - Released model: let d = metric of the candidate - metric of the released model, in points, on the examples that
      both predicted. Reject if the upper bound of the two-sided `confidence` paired-bootstrap interval of d is below
      the tolerated drop, that is, if the drop is significant. Without a common example, reject: no drop can be ruled
      out. For a metric that is a share of correct answers, McNemar's exact test must also find the models unequal (p <
      1 - confidence); it is the stricter test if few examples changed.
    - The released model must not contradict the labels; see `is_opposed`.
    - Teacher, with `max_teacher_drop`: the leading metric is not worse by more than that. Reject unless the lower bound
      of the interval of that difference is at or above the tolerated drop, that is, unless a larger drop is ruled out.
    - Every data verdict exists and is valid.
    - Every training made no update or ended with a finite loss.
    - Every example has a prediction, and the scores belong to these predictions.
    - With other seeds of the recipe, the recipe is also checked, see `check_recipe`. This can add reasons against a
      release but never remove one, because this one model is published.
    """
    checks = check_scores(task, evidence.own)
    if evidence.own.released is not None and not evidence.own.released.common:
        checks.append(_nothing_in_common(task))
    if evidence.is_opposed:
        checks.append(_opposed(task))
    if evidence.teacher is not None:
        checks.append(check_teacher(task, evidence.teacher))
    checks += [check_verdict(name, valid) for name, valid in evidence.verdicts.items()]
    checks += [check_loss(name, figures) for name, figures in evidence.trainings.items()]
    if evidence.recipe is not None:
        checks += check_recipe(task, evidence.recipe)
    checks += _check_predictions(task, evidence)
    reasons = [check.reason for check in checks if not check.ok]
    note = None if reasons else _without_floor(task)
    exports = {name: decide_export(task, export) for name, export in evidence.exports.items()}
    return {
        "accepted": not reasons,
        "reasons": reasons,
        "checks": [check.as_values() for check in checks],
        COMPARED: evidence.compared,
        **({} if evidence.recipe is None else recipe_record(task, evidence.recipe)),
        **({} if note is None else {WITHOUT_FLOOR: note}),
        **({EXPORTS: exports} if exports else {}),
        "metrics": {name: value if math.isfinite(value) else None for name, value in evidence.own.values.items()},
    }


def _without_floor(task: Scores) -> str | None:
    if any(limit.floor is not None for limit in task.limits):
        return None
    keys = " or ".join(task.entry.key("gate", limit.floor_key) for limit in task.limits)
    also = "" if task.entry.params.gate.above_baseline else " or a baseline"
    return f"published without a floor{also}: set {keys} to require a score"


def _nothing_in_common(task: Scores) -> GateCheck:
    reason = (
        f"The released model's scores in {task.entry.released} have no {task.record} in common with the dev set, so a "
        f"drop cannot be ruled out. Set {task.entry.key('gate', 'released')}={PUBLISHED} to predict these "
        f"{task.record}s with the published model, or empty that folder."
    )
    required = no_drop_requirement(task, task.limits[0])
    return GateCheck("released_model", False, f"no common {task.record}", required, reason)


def _opposed(task: Scores) -> GateCheck:
    reason = (
        f"The released model is wrong about these {task.record}s more often than by chance, as if their labels were "
        f"swapped since it was trained. Correct the labels, or set {task.entry.key('gate', 'released')}={UNCOMPARED} "
        "to replace it."
    )
    return GateCheck("released_model_opposed", False, "below chance", "not below chance", reason)


def check_verdict(name: str, valid: bool | None) -> GateCheck:
    """Check the verdict on a data set; None: there is no readable verdict."""
    where = artifacts.validation_report(name)
    if valid is None:
        reason = f"Data set {name} has no readable verdict ({where}). Run its validation stage."
        return GateCheck(f"data_{name}", False, "no verdict", "valid", reason)
    reason = f"Data set {name} is not valid. See {where.with_suffix('.html')}."
    return GateCheck(f"data_{name}", valid, "valid" if valid else "not valid", "valid", reason)


def check_loss(name: str, figures: Mapping[str, Any] | None) -> GateCheck:
    """Check the final loss of a training, from its metrics; None: they are not readable."""
    required, values = "finite, or no updates", figures or {}
    loss, steps = values.get("final_loss", ""), values.get("steps")
    if not isinstance(steps, int) or not (loss is None or _is_number(loss)):
        reason = f"Training {name} has no readable figures (metrics/{name}.json). Run its stage."
        return GateCheck(f"loss_{name}", False, "no figures", required, reason)
    if loss is None:
        reason = f"Training {name} made {steps} updates but reports no loss. Run its stage again."
        return GateCheck(f"loss_{name}", steps == 0, f"none after {steps} updates", required, reason)
    finite = math.isfinite(loss)
    reason = f"Training {name} ended with loss {loss}. Lower its learning rate and run it again."
    return GateCheck(f"loss_{name}", finite, loss if finite else str(loss), required, reason)


def _check_predictions(task: Scores, evidence: Evidence) -> list[GateCheck]:
    """Check that every example has a prediction, and that the scores were computed from these predictions."""
    name, evaluate = task.entry.name, task.entry.stage("evaluate")
    answered, examples, same = evidence.answered, evidence.examples, evidence.scores_belong
    lacking = (
        f"{examples - answered} of {examples} dev {task.record}s have no prediction. Run {task.entry.stage('predict')} "
        f"and {evaluate} again."
    )
    other = (
        f"{artifacts.metrics_file(name)} does not belong to the current {artifacts.predictions_file(name)} or weights. "
        f"Run {evaluate} again."
    )
    return [
        GateCheck("predictions_complete", answered == examples, answered, examples, lacking),
        GateCheck("scores_belong_to_predictions", same, "same" if same else "other", "same", other),
    ]


def gate(parameters: Mapping[str, object], name: str, root: Path = Path()) -> dict[str, Any]:
    """Decide on the model of an entry in the checkout `root` and write the verdict; return it. Raises the errors of
    `gather_evidence`.

    Args:
        parameters: all checked parameters as plain values.
    """
    params = validate_params(dict(parameters))
    entry = find_entry(params, name)
    task, subject = kind_of(entry).scores(entry), make_subject(entry, params)
    hashes = hash_files(subject.judged(entry.released, root, entry.seeds))
    evidence = gather_evidence(task, subject, entry.released, hashes, root, entry.seeds)
    verdict = {**decide(task, evidence), JUDGED: dict(hashes)}
    failed = [check["name"] for check in verdict["checks"] if not check["ok"]]
    if failed and (advice := find_advice(task, subject, evidence, failed, root)):
        verdict[ADVICE] = [item._asdict() for item in advice]
    write_json(root / subject.gate, {**verdict, CODE: git_state(root)})
    return verdict


def find_advice(
    task: Scores, subject: ReleaseSubject, evidence: Evidence, failed: Sequence[str], root: Path
) -> list[Advice]:
    """Return what to do after a rejection; see `tasks.downstream.gate.advice.advise`."""
    params, training = task.entry.params, subject.trainings[-1]
    _, examples = task.read_all(root)
    curve, finetune = read_losses(root / artifacts.PLOTS / f"{training}.csv"), params.finetune
    held_out = [] if finetune.keep == "best" else read_losses(root / artifacts.held_out_plot(training))
    facts = TrainingFacts(
        [loss for _, loss in curve],
        curve[-1][0] if curve else 0,
        finetune.epochs,
        finetune.learning_rate,
        type(finetune).model_fields["learning_rate"].default,
        held_out,
        task.count_classes(examples, task.read_predictions(root / subject.predictions, examples), root),
        evidence.own.values[task.limits[0].metric],
    )
    cut = [note for note in read_notes(root / artifacts.validation_report(task.entry.verdict("rows"))) if CUT in note]
    advice = advise(facts, failed, evidence.own.over_baseline, evidence.examples, task.record, cut)
    keys = ("finetune.learning_rate", "finetune.epochs", *(f"data.{name}" for name in params.data.model_dump()))
    names = {key: task.entry.key(*key.split(".")) for key in keys}
    return [
        item._replace(set={names[key]: value for key, value in item.set.items() if key in names}) for item in advice
    ]


def decide_on_files(
    task: Scores, subject: ReleaseSubject, hashes: Hashes, root: Path, released: Path | None, seeds: Path | None
) -> dict[str, Any]:
    """Return the verdict on the evidence in `root`, a checkout or copies of its files; see `gather_evidence`.

    Args:
        hashes: SHA-256 of all evaluated files by the names of `Subject.judged`.
    """
    return {**decide(task, gather_evidence(task, subject, released, hashes, root, seeds)), JUDGED: dict(hashes)}


def main() -> None:
    params = load_params()
    entry = find_entry(params, entry_argument("Decide whether a model may be released."))
    verdict = gate(parameter_values(params), entry.name)
    passed, word = sum(check["ok"] for check in verdict["checks"]), "accepted" if verdict["accepted"] else "rejected"
    print(f"gate of {entry.name}: {word}, {passed} of {len(verdict['checks'])} checks passed")
    for reason in verdict["reasons"]:
        print(f"  - {reason}")
    for file, export in verdict.get(EXPORTS, {}).items():
        print(f"  {file}: {'accepted' if export['accepted'] else 'rejected'}")
        for reason in export["reasons"]:
            print(f"    - {reason}")
    for item in verdict.get(ADVICE, ()):
        print(f"  {item['text']}")
    for key in (COMPARED, WITHOUT_FLOOR):
        if key in verdict:
            print(f"  {verdict[key]}")
    files = (artifacts.metrics_file(entry.name), artifacts.metrics_file(entry.name, "gate"))
    record_verdict(params.tracking, artifacts.job_name(entry.name, "finetune"), files)


if __name__ == "__main__":
    run_main(main)
