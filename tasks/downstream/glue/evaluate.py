"""Stage glue_evaluate@TASK: from logits to GLUE's official metrics, with 95% intervals, a page and the predictions.

python -m tasks.downstream.glue.evaluate sst2
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

from tasks.downstream.glue.answers import predictions_json, predictions_of, read_examples, read_logits
from tasks.downstream.glue.page import page
from tasks.downstream.glue.scores import figures
from tasks.downstream.glue.tasks import TASKS, GlueTask, glue_task
from tasks.project import artifacts
from tasks.project.errors import InputError
from tasks.project.files import new_folder, sha256_of, write_json, write_text
from tasks.project.main import run_main
from tasks.project.process import item

PREDICTIONS, REPORT = "predictions.json", "report.html"


def evaluate(task: GlueTask, root: Path = Path()) -> dict[str, Any]:
    """Score the logits of a task's development sets; write glue/<task>/evaluation and metrics/glue-<task>.json.

    Returns:
        The content of the metrics file: every official metric and `score` (their mean) in percent with the bounds of
        their 95% bootstrap intervals, the score of the best constant answer, examples, and the SHA-256 of the weights
        and predictions.

    Raises:
        InputError: a file that is missing, damaged, or belongs to another run.
    """
    weights = root / artifacts.glue_model(task.name) / "model.safetensors"
    if not weights.is_file():
        raise InputError(f"{weights} is not there; run the stage glue_finetune@{task.name}")
    examples = {split: read_examples(task, split, root) for split in task.splits[1:]}
    logits = {split: read_logits(task, split, len(one.labels), root) for split, one in examples.items()}
    predictions = {split: predictions_of(task, values) for split, values in logits.items()}
    labels = {split: one.labels for split, one in examples.items()}
    metrics: dict[str, Any] = {**figures(task, labels, predictions)}
    with new_folder(root / artifacts.glue_evaluation(task.name)) as folder:
        write_json(folder / PREDICTIONS, predictions_json(task, predictions))
        metrics["files"] = _files(task, weights, folder / PREDICTIONS)
        sets = {split: (examples[split], logits[split]) for split in examples}
        write_text(folder / REPORT, page(task, metrics, sets))
    write_json(root / artifacts.glue_metrics(task.name), metrics)
    return metrics


def _files(task: GlueTask, weights: Path, predictions: Path) -> list[dict[str, str]]:
    return [
        {"path": str(artifacts.glue_model(task.name) / weights.name), "sha256": sha256_of(weights)},
        {"path": str(artifacts.glue_evaluation(task.name) / PREDICTIONS), "sha256": sha256_of(predictions)},
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description="Score the development sets of a GLUE task.")
    parser.add_argument("task", type=item, choices=sorted(TASKS))
    task, started_at = glue_task(parser.parse_args().task), time.perf_counter()
    found = evaluate(task)
    names = [name for name in found if f"{name}_low" in found]
    said = [f"{name} {found[name]:.2f} ({found[f'{name}_low']:.2f} to {found[f'{name}_high']:.2f})" for name in names]
    print(
        f"{task.title}: {', '.join(said)}; the best constant answer has {found['constant_score']:.2f}; "
        f"{found['examples']:,} examples, {time.perf_counter() - started_at:.1f} s"
    )


if __name__ == "__main__":
    run_main(main)
