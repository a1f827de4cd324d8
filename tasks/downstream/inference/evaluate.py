"""Evaluation of a fine-tuned model on a labelled file: official scores, report and predictions in one folder."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ipu_model.files import new_folder, write_json, write_text
from tasks.downstream.evaluate import PageTask, score_logits, write_evaluation
from tasks.downstream.gate.released_scores import SCORES, scores_json
from tasks.downstream.inference.inference_task import InferenceTask
from tasks.downstream.inference.job import InferenceOptions, run_inference, scratch_checkout
from tasks.downstream.inference.model import InferenceModel
from tasks.downstream.jobs.entry_jobs import prediction_figures, prediction_measurements
from tasks.params.entries import Entry
from tasks.plan.kinds import load_part
from tasks.plan.named_files import escape_name
from tasks.records.text_files import ReadLog
from tasks.stage import artifacts
from tasks.stage.errors import InputError

METRICS = "metrics.json"


@dataclass(frozen=True)
class EvaluationResult:
    """Result of an evaluation."""

    metrics: dict[str, Any]
    """Content of metrics.json."""
    words: str
    """Text for the terminal: the number of examples, then each official metric with its interval on a line."""
    page: str
    """File name of the report."""
    reading: ReadLog


def evaluate(entry: Entry, model: InferenceModel, path: Path, folder: Path, how: InferenceOptions) -> EvaluationResult:
    """Evaluate `model` on the examples of the file `path` and write `folder`, completely or not at all.

    The folder contains report.html, metrics.json, predictions.json, scores.json (keyed by example hashes, for
    comparisons) and the additional files of this kind.

    Raises:
        InputError: unusable examples, or the folder exists.
        DeviceJobFailed: the model cannot run on this device.
    """
    task: InferenceTask[Any, Any, Any] = load_part(entry, "inference")
    judge: PageTask[Any, Any, Any] = load_part(entry, "page")
    if folder.exists():
        raise InputError(f"{folder} already exists. Move it away, or pass another folder with --output")
    model, split, reading = model.with_absolute_paths(), task.development[0], ReadLog()
    with new_folder(folder) as made, scratch_checkout(task, model):
        task.write_labelled(path, task.examples_file(split), reading)
        result = run_inference(task, model, split, how)
        found = score_logits(judge, development=[split])
        predictions = artifacts.predictions_file(entry.name).name
        judged = {file.name: file for file in (*model.weights, path)} | {predictions: made / predictions}
        write_evaluation(judge, found, made, {Path(name): file for name, file in judged.items()})
        write_text(made / SCORES, scores_json(judge, found.examples, found.predictions))
        metrics = {**found.metrics, "predict": {**prediction_figures(result), **prediction_measurements(result)}}
        write_json(made / METRICS, metrics)
    return EvaluationResult(
        metrics, _in_words(judge, path, metrics), artifacts.evaluation_page(entry.name).name, reading
    )


def _in_words(judge: PageTask[Any, Any, Any], path: Path, metrics: dict[str, Any]) -> str:
    titles = judge.metrics.for_split(judge.development[0]).titles
    width = max(map(len, titles.values()))
    lines = [
        f"{title:{width}}  {metrics[name]:6.2f}  ({metrics[f'{name}_low']:.2f} to {metrics[f'{name}_high']:.2f})"
        for name, title in titles.items()
        if name in metrics
    ]
    if "constant_score" in metrics:
        lines.append(f"{judge.baseline}: {metrics['constant_score']:.2f}")
    return "\n".join([f"{metrics[judge.counted]:,} {judge.record}s of {escape_name(path.name)}", *lines])
