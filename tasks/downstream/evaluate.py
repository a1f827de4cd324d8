"""Stage evaluate: decode logits to answers; write the official metrics with intervals and slices, a report and plots.

python -m tasks.downstream.evaluate NAME
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, fields, replace
from pathlib import Path

import numpy as np

from ipu_model.core.files import find_object, new_folder, sha256_of, write_json, write_text
from tasks.downstream.kind import kind_of
from tasks.downstream.scoring.calibration import Bin, Calibration, calibrate
from tasks.downstream.scoring.metrics import Array, Slice
from tasks.downstream.scoring.near_duplicates import score_without_duplicates
from tasks.downstream.scoring.report import EvaluationView, Report
from tasks.downstream.scoring.scores import AGAINST, BASELINE, A, E, L, P, Scores
from tasks.downstream.scoring.thresholds import RiskCoverage, risk_coverage
from tasks.pages.markup import csv_text
from tasks.params.entries import ENTRY_SECTIONS, TRAIN, Entry, entry_argument, find_entry, learns_text
from tasks.params.schema import Params, load_sections
from tasks.plan.main import run_main
from tasks.records.duplicate_report import NearDuplicateReport
from tasks.records.interpretation import read_reading
from tasks.records.parquet import read_batches
from tasks.stage import artifacts
from tasks.stage.errors import InputError
from tasks.validation.near_duplicates import find_near_duplicates

READ_AT_ONCE = 8192
CONFIDENCE = 0.95
NOT_SEARCHED = NearDuplicateReport(None, ())


def search_near_duplicates(page: Report, params: Params, root: Path = Path()) -> NearDuplicateReport:
    """Find the development examples with a near-duplicate in the training data or pre-training corpus of an entry.

    Raises:
        InputError: examples or corpus are missing or damaged.
    """
    threshold = params.validate_.near_duplicates
    if threshold is None:
        return NOT_SEARCHED

    entry = page.scores.entry

    def read(split: str) -> Iterator[list[str]]:
        path, made_by = entry.examples_file(split, root), entry.stage("examples")
        return map(page.compared_texts, read_batches(path, page.compared_columns, READ_AT_ONCE, made_by))

    corpus = root / artifacts.CORPUS if learns_text(entry, params) else None
    return find_near_duplicates(read, TRAIN, entry.development, corpus, threshold, entry.record)


def evaluate(
    page: Report[E, L, A, P], root: Path = Path(), report: NearDuplicateReport = NOT_SEARCHED
) -> EvaluationView[E, A, P]:
    """Score the logits of an entry's development sets; write its predictions, scores, plots and report.

    Args:
        report: the near-duplicates of its development examples.

    Returns:
        The results; their metrics are the content of the metrics file: every official metric in percent with its 95%
        interval, the score of the baseline, the number of examples, calibration, slices, and the SHA-256 of weights and
        predictions.

    Raises:
        InputError: a file is missing, damaged, or from another run.
    """
    entry, name = page.scores.entry, page.scores.entry.name
    weights = root / artifacts.model_folder(name) / "model.safetensors"
    if not weights.is_file():
        raise InputError(f"{weights} not found. Run the stage {entry.stage('finetune')}")
    rule = page.scores.choose_rule(root)
    page = page.prepare(root)
    view = score_logits(page, root, rule=rule)
    near = score_without_duplicates(page.scores, report, view.outcomes)
    metrics = {**view.metrics, **({BASELINE: rule} if rule else {}), **near.record()}
    if (other := entry.params.against) is not None:
        metrics[AGAINST] = compare_with_entry(page.scores, view, other, root)
    view = replace(view, near=near, metrics=metrics, about=describe_run(entry, root))
    with new_folder(root / artifacts.EVALUATION / name) as folder:
        predictions = artifacts.predictions_file(name)
        judged = {artifacts.model_folder(name) / weights.name: weights, predictions: folder / predictions.name}
        write_evaluation(page, view, folder, judged)
    for what, table in plot_tables(page.scores, view).items():
        write_text(root / artifacts.PLOTS / f"{name}-{what}.csv", table)
    write_json(root / artifacts.metrics_file(name), view.metrics)
    return view


def compare_with_entry(
    task: Scores[E, L, A, P], view: EvaluationView[E, A, P], other: str, root: Path
) -> list[dict[str, object]]:
    """Compare an evaluation with that of the entry `other`, which has the same examples.

    Returns:
        For each metric: its title, `entry`, the name of the other, and `before`, the score of the other; `score`, and
        the difference in points with its interval, its test and the verdict.

    Raises:
        InputError: its predictions are missing or damaged.
    """
    predictions = task.read_predictions(root / artifacts.predictions_file(other), view.examples)
    theirs = task.outcomes_of(view.examples, predictions)
    ours, before = (task.metrics.compute(outcomes) for outcomes in (view.outcomes, theirs))
    return [
        {
            "metric": name,
            "title": task.metrics.titles[name],
            "entry": other,
            "before": round(before[name], 4),
            "score": round(ours[name], 4),
            **{key: round(getattr(difference, key), 4) for key in ("mean", "low", "high", "p_value")},
            "verdict": difference.verdict(CONFIDENCE),
        }
        for name, difference in task.metrics.differences(view.outcomes, theirs, CONFIDENCE).items()
    ]


def describe_run(entry: Entry, root: Path) -> dict[str, str]:
    """Return the head of a page of a run: the base model and the development file.

    The page itself finds the run's name and its date, so that equal runs write equal pages.
    """
    base, data = find_object(root / artifacts.BASE_MODEL / "base_model.json") or {}, dict(entry.params.data)
    origin = base.get("repository") or Path(base.get("path") or "").name if entry.start == "base" else ""
    path = data.get("dev_path") or data.get("train_path") or data.get("path") or ""
    source = {"files": Path(str(path)).name, "hub": data.get("dataset")}.get(str(data["source"]))
    model = f"fine-tuned {origin or 'encoder of this run'}" if entry.start else "a model trained from random weights"
    file = str(source or data["source"])
    return {"Model": model, "File": file}


def write_evaluation(
    page: Report[E, L, A, P], view: EvaluationView[E, A, P], folder: Path, judged: Mapping[Path, Path]
) -> None:
    """Write predictions, report and additional files of an evaluation to a folder.

    Args:
        view: the results; hashes of the evaluated files are added to its metrics.
        judged: recorded path -> actual path of each evaluated file, predictions included.
    """
    name = page.scores.entry.name
    predictions = page.scores.predictions_json(view.examples, view.predictions)
    write_json(folder / artifacts.predictions_file(name).name, predictions)
    view.metrics["files"] = [
        {"path": str(recorded_path), "sha256": sha256_of(path)} for recorded_path, path in judged.items()
    ]
    texts = {
        artifacts.evaluation_page(name).name: page.page(view),
        artifacts.MISTAKES: csv_text(*page.mistakes(view)),
        **page.more_files(view),
    }
    for file, text in texts.items():
        write_text(folder / file, text)


def plot_tables(task: Scores, view: EvaluationView[E, A, P]) -> dict[str, str]:
    """Return name -> CSV of the plots in dvc.yaml: the leading metric of every slice in percent with its interval, and
    predicted probabilities with observed accuracy."""
    slices = []
    for group in view.slices:
        part, names = group.record(), (task.limits[0].metric, *task.metrics.titles, *group.figures)
        lead = next(name for name in names if name in group.figures)
        slices.append((part["by"], part["slice"], lead, part[lead], part[f"{lead}_low"], part[f"{lead}_high"]))
    bins = [] if view.calibrated is None else [astuple(interval) for interval in view.calibrated.bins if interval.count]
    return {
        "slices": csv_text(("by", "slice", "metric", "score", "score_low", "score_high"), slices),
        "calibration": csv_text([field.name for field in fields(Bin)], bins),
    }


def score_logits(
    page: Report[E, L, A, P], root: Path = Path(), development: Sequence[str] | None = None, rule: str = ""
) -> EvaluationView[E, A, P]:
    """Decode and score the logits of all development sets, or of those named, with a prepared report."""
    task, entry = page.scores, page.scores.entry
    examples: dict[str, E] = {}
    answers: dict[str, A] = {}
    predictions: dict[str, Sequence[P]] = {}
    outcomes: dict[str, Array] = {}
    slices: list[Slice] = []
    for split in entry.development if development is None else development:
        dev_set, logits = task.read_split(split, root)
        examples[split] = dev_set
        answers[split] = task.answer(dev_set, logits)
        predictions[split] = task.predictions(answers[split])
        outcomes[split] = task.outcomes(dev_set, predictions[split])
        slices += page.slices(split, dev_set, logits, answers[split], outcomes[split])
    baselines = task.baselines(examples, rule)
    baseline = task.best_of(baselines)
    calibrated, curve = judge_confidences(task, examples, answers, outcomes)
    view = EvaluationView(
        examples,
        answers,
        predictions,
        outcomes,
        slices,
        calibrated,
        {},
        curve=curve,
        own_curve=page.own_curve(examples, answers),
        baselines=baselines,
        baseline=baseline.name if baseline else "",
    )
    # Lists, not objects: `dvc metrics show` makes a column of every number and string in an object.
    metrics = {
        "leading": [task.limits[0].metric],
        **task.figures(outcomes, baseline),
        **page.more_figures(view),
        "answered": sum(prediction is not None for split in predictions.values() for prediction in split),
        **({} if calibrated is None else calibrated.record()),
        "slices": [part.record() for part in slices],
    }
    reading = read_reading(root / artifacts.EXAMPLES / entry.name)
    note = "; ".join(f"{reading['numbers'].get(what, 0):,} {what}" for what in reading["notes"])
    return replace(view, metrics=metrics, note=note)


def judge_confidences(
    task: Scores[E, L, A, P], examples: Mapping[str, E], answers: Mapping[str, A], outcomes: Mapping[str, Array]
) -> tuple[Calibration, RiskCoverage] | tuple[None, None]:
    """Return calibration of the answers' probabilities, and the risk-coverage curve by probability."""
    scaled = [scale for part in answers.values() if (scale := task.scaled_confidences(part)) is not None]
    right = np.concatenate(
        [task.correctness(dev_set, answers[split], outcomes[split]) for split, dev_set in examples.items()]
    )
    if not scaled or not len(right):
        return None, None

    def confidences(temperature: float) -> Array:
        return np.concatenate([rescale(temperature) for rescale in scaled])

    return calibrate(confidences, right), risk_coverage(-confidences(1.0), right)


def format_scores(task: Scores, metrics: Mapping[str, object], baseline: str, split: str = "") -> list[str]:
    """Return a line for each official metric of all development sets, or of one, and for the baseline."""
    titles = (task.metrics.for_split(split) if split else task.metrics).titles
    width = max(map(len, titles.values()))
    lines = [
        f"{title:{width}}  {metrics[name]:6.2f}  ({metrics[f'{name}_low']:.2f} to {metrics[f'{name}_high']:.2f})"
        for name, title in titles.items()
        if name in metrics
    ]
    return [*lines, *([f"{baseline}: {metrics['constant_score']:.2f}"] if "constant_score" in metrics else [])]


def main() -> None:
    name = entry_argument(
        "Score the logits of a downstream task and write its report. To score a file of answers: podium evaluate"
    )
    params = load_sections(*ENTRY_SECTIONS, "tokenizer", "pretrain_rows", "validate_")
    entry = find_entry(params, name)
    page = kind_of(entry).report(entry)
    started_at = time.perf_counter()
    view = evaluate(page, report=search_near_duplicates(page, params))
    took = f"{view.metrics[page.scores.counted]:,} {entry.record}s in {time.perf_counter() - started_at:.1f} s"
    print(f"{entry.name}: {took}", *format_scores(page.scores, view.metrics, view.baseline), sep="\n")


if __name__ == "__main__":
    run_main(main)
