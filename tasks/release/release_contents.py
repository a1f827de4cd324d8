"""What every release says of the evaluation: scores and hashes, and not a word of the data."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tasks.downstream.glue import released as glue_released
from tasks.downstream.glue.answers import read_examples
from tasks.downstream.glue.answers import read_predictions as read_glue_predictions
from tasks.downstream.glue.tasks import glue_task
from tasks.downstream.squad import question_scores
from tasks.downstream.squad.files import read_dev_questions, read_predictions
from tasks.downstream.squad.slices import TITLE
from tasks.project import artifacts
from tasks.release.release_subject import Subject


def released_metrics(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """The metrics without the slices that are named after articles: their titles are the user's text."""
    if "slices" not in metrics:
        return dict(metrics)
    return {**metrics, "slices": [part for part in metrics["slices"] if part.get("by") != TITLE]}


def scores_text(subject: Subject, root: Path) -> str:
    """scores.json, counted from the predictions and the examples that they answer.

    Raises:
        InputError: predictions or examples are missing or damaged.
    """
    if not subject.glue_task:
        questions = read_dev_questions(root / artifacts.QUESTIONS / "dev.parquet")
        return question_scores.scores_json(questions, read_predictions(root / subject.predictions))
    task = glue_task(subject.glue_task)
    examples = {split: read_examples(task, split, root) for split in task.splits[1:]}
    return glue_released.scores_json(task, examples, read_glue_predictions(task, root / subject.predictions))
