"""Models of one recipe that differ in the seed of their training: the one that is judged, and what others scored.

The others are files `seed-<N>.json` of a folder, each a scores.json as a release has it. `podium sweep` also states in
them which model it was (`weights_sha256`), what it was trained with (`finetune`) and how it did on held-out examples
(`held_out`); what is stated is held to be so, and whoever puts a bare scores.json there answers for it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from ipu_model.files import read_json
from tasks.downstream.gate.recipe_words import held_out_score
from tasks.downstream.gate.released import read_outcomes
from tasks.downstream.scoring.metrics import Outcomes
from tasks.downstream.scoring.scores import Task
from tasks.plan.named_files import require_readable
from tasks.stage.errors import InputError

FILE = re.compile(r"seed-(0|[1-9][0-9]{0,18})\.json")
SEED, WEIGHTS, FINETUNE, HELD_OUT = "seed", "weights_sha256", "finetune", "held_out"
"""What a file may state beside the scores."""


@dataclass(frozen=True)
class Trained:
    """One model of a recipe."""

    seed: int
    outcomes: Outcomes
    """Of every dev example."""
    held_out: tuple[str, float] | None
    """The figure that it was judged by on held-out examples, larger being better; None: that is not known."""
    weights: str | None
    """SHA-256 of its weights; None: that is not known."""


def file_name(seed: int) -> str:
    """The file of a seed's scores."""
    return f"seed-{seed}.json"


def read_seeds(task: Task, examples: Mapping[str, Any], folder: Path, own: Trained) -> list[Trained]:
    """The model that is judged, and the others of its recipe, in order of their seeds.

    Args:
        task: the entry, as its kind sees it.
        examples: by development set.
        folder: holds the files of the others.
        own: the model that is judged.

    Raises:
        InputError: there are no others, a file is damaged, lacks answers, states another recipe or other metrics, or is
            of the model that is judged.
    """
    require_readable(folder, task.entry.key("gate", "seeds"))
    files = {path: FILE.fullmatch(path.name) for path in sorted(folder.glob("*.json"))}
    if wrong := [path.name for path, match in files.items() if match is None]:
        raise InputError(f"{folder} holds {wrong[0]}: the scores of another seed are called {file_name(43)}")
    found = [_read(task, examples, path, int(match[1])) for path, match in files.items() if match is not None]
    if not found:
        raise InputError(
            f"{folder} holds no {file_name(43)}: put scores.json of the same recipe with other seeds there, or set "
            f"{task.entry.key('gate', 'seeds')}=null"
        )
    for other in found:
        if other.seed == own.seed:
            path = folder / file_name(other.seed)
            raise InputError(f"{path} is of seed {own.seed}, which is that of the model itself: take the file out")
    every = sorted([own, *found], key=lambda one: one.seed)
    for first, second in combinations(every, 2):
        if first.weights is not None and first.weights == second.weights:
            raise InputError(
                f"{folder}: the seeds {first.seed} and {second.seed} are the same model (SHA-256 of its weights "
                f"{first.weights}): a model counts once, take one of them out"
            )
    return every


def _read(task: Task, examples: Mapping[str, Any], path: Path, seed: int) -> Trained:
    outcomes, stated = read_outcomes(task, examples, path), read_json(path)
    missing = sum(int(np.isnan(one).any(axis=1).sum()) for one in outcomes.values())
    if missing:
        total = sum(map(len, outcomes.values()))
        raise InputError(
            f"{path} lacks answers to {missing} of {total} dev {task.record}s: all models of a recipe answer the same "
            f"ones, so evaluate that seed on them, or take the file out"
        )
    if stated.get(SEED, seed) != seed:
        raise InputError(f"{path} is of seed {stated[SEED]!r:.40}: a file is called by its seed")
    _require_recipe(task, path, stated.get(FINETUNE))
    weights = stated.get(WEIGHTS)
    return Trained(seed, outcomes, _held_out(path, stated.get(HELD_OUT)), None if weights is None else str(weights))


def _held_out(path: Path, figures: Any) -> tuple[str, float] | None:
    if figures is None:
        return None
    try:
        return held_out_score(dict(figures))
    except (ValueError, TypeError) as error:
        raise InputError(f"{path} states held-out figures that are none ({error})") from None


def recipe_of(task: Task) -> dict[str, Any]:
    """What the model of an entry is trained with, the seed aside."""
    values = task.entry.params.finetune.model_dump(mode="json")
    return {name: value for name, value in values.items() if name != SEED}


def _require_recipe(task: Task, path: Path, stated: Any) -> None:
    if stated is None:
        return
    own = recipe_of(task)
    theirs = stated if isinstance(stated, dict) else {}
    differing = [name for name in own if theirs.get(name) != own[name]]
    if differing:
        shown = ", ".join(f"{name} {theirs.get(name)!r:.40} in place of {own[name]!r}" for name in differing[:5])
        raise InputError(f"{path} is of another recipe: {shown} ({task.entry.key('finetune')})")
