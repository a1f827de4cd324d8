"""What the models of other seeds scored, as the gate of the best one reads it (tasks/downstream/judging/seeds.py)."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from flows import dvc
from flows.dvc.session import restore
from ipu_model.files import new_folder, read_json, write_json
from tasks.downstream.entries import entry_of
from tasks.downstream.judging.released import scores_json
from tasks.downstream.judging.seeds import FINETUNE, HELD_OUT, SEED, WEIGHTS, file_name, recipe_of
from tasks.downstream.scoring.scores import ScoresTask
from tasks.downstream.task import part_of
from tasks.project import artifacts
from tasks.project.errors import PodiumError
from tasks.project.params import load_params

Say = Callable[[str], None]


def write_others(folder: Path, checkouts: Mapping[int, Path], entry: str, say: Say) -> None:
    """Make the folder that `gate.seeds` of a model names, whole or not at all.

    Args:
        folder: what was there before is replaced.
        checkouts: seed -> where that model was trained and answered the development set.
        entry: what it was trained for.
        say: told what had to be brought here.

    Raises:
        PodiumError: a model has no answers to the development set.
    """
    found = {seed: _scores_of(root, entry, say) for seed, root in checkouts.items()}
    with new_folder(folder) as fresh:
        for seed, scores in found.items():
            write_json(fresh / file_name(seed), {**scores, SEED: seed})


def _scores_of(root: Path, name: str, say: Say) -> dict[str, Any]:
    """scores.json of the model in a checkout, which model it is, and what it did on held-out examples."""
    entry = entry_of(load_params(root / artifacts.PARAMS), name)
    task: ScoresTask[Any, Any, Any] = part_of(entry, "scores")
    predictions = root / artifacts.predictions_file(name)
    needed = [predictions, *(task.examples_file(split, root) for split in task.development)]
    if not all(path.is_file() for path in needed) and dvc.has_remote(root):  # the stages ran on workers
        restore([entry.stage("examples"), entry.stage("evaluate")], root, say)
    if missing := [path for path in needed if not path.is_file()]:
        raise PodiumError(
            f"{missing[0]} is not there: the run {root.name} did not come to its evaluation, or no DVC remote has what "
            f"it made. podium runs show {root.name} says what became of it; the same sweep goes on from there"
        )
    examples = task.read_all(root)
    scores: dict[str, Any] = json.loads(scores_json(task, examples, task.read_predictions(predictions, examples)))
    weights = (artifacts.model_folder(name) / "model.safetensors").as_posix()
    files = read_json(root / artifacts.metrics_file(name))["files"]
    return {
        **scores,
        WEIGHTS: next(file["sha256"] for file in files if file["path"] == weights),
        FINETUNE: recipe_of(task),
        HELD_OUT: read_json(root / artifacts.metrics_file(name, "finetune"))["held_out"],
    }
