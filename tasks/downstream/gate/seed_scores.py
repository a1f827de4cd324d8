"""Scores of models of one recipe that differ in their training seed.

The other models are files `seed-<N>.json` in a folder, in the format of a release's scores.json. `podium sweep` also
records the model (`weights_sha256`), its training parameters (`finetune`) and its held-out figures (`held_out`). These
records are trusted, as is a plain scores.json.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from ipu_model.files import read_json
from tasks.downstream.gate.released_scores import read_outcomes
from tasks.downstream.gate.verdict_text import held_out_score
from tasks.downstream.scoring.metrics import Outcomes
from tasks.downstream.scoring.scores import AnyScores
from tasks.plan.named_files import require_readable
from tasks.stage.errors import InputError

FILE = re.compile(r"seed-(0|[1-9][0-9]{0,18})\.json")
SEED, WEIGHTS, FINETUNE, HELD_OUT = "seed", "weights_sha256", "finetune", "held_out"
"""Optional keys of a file of scores."""


@dataclass(frozen=True)
class SeedModel:
    """One model of a recipe."""

    seed: int
    outcomes: Outcomes
    """Outcomes of every dev example."""
    held_out: tuple[str, float] | None
    """Figure on held-out examples, larger is better; None if unknown."""
    weights: str | None
    """SHA-256 of the weights; None if unknown."""


def seed_file_name(seed: int) -> str:
    """Return the file name of a seed's scores."""
    return f"seed-{seed}.json"


def read_seeds(task: AnyScores, examples: Mapping[str, Any], folder: Path, own: SeedModel) -> list[SeedModel]:
    """Return the candidate and the other models of its recipe, sorted by seed.

    Args:
        folder: folder of the other models' files.

    Raises:
        InputError: there are no other models, or a file is damaged, lacks predictions, has another recipe or other
            metrics, or is of the candidate.
    """
    require_readable(folder, task.entry.key("gate", "seeds"))
    files = {path: FILE.fullmatch(path.name) for path in sorted(folder.glob("*.json"))}
    if wrong := [path.name for path, match in files.items() if match is None]:
        raise InputError(f"{folder} contains {wrong[0]}. Files of other seeds are named like {seed_file_name(43)}")
    found = [_read(task, examples, path, int(match[1])) for path, match in files.items() if match is not None]
    if not found:
        raise InputError(
            f"{folder} contains no file like {seed_file_name(43)}. Copy scores.json of other seeds there, or "
            f"set {task.entry.key('gate', 'seeds')}=null"
        )
    for other in found:
        if other.seed == own.seed:
            path = folder / seed_file_name(other.seed)
            raise InputError(f"{path} has seed {own.seed}, the seed of the candidate. Remove the file")
    every = sorted([own, *found], key=lambda one: one.seed)
    for first, second in combinations(every, 2):
        if first.weights is not None and first.weights == second.weights:
            raise InputError(
                f"{folder}: seeds {first.seed} and {second.seed} are the same model (SHA-256 of its weights "
                f"{first.weights}). Remove one of them"
            )
    return every


def _read(task: AnyScores, examples: Mapping[str, Any], path: Path, seed: int) -> SeedModel:
    outcomes, stated = read_outcomes(task, examples, path), read_json(path)
    missing = sum(int(np.isnan(one).any(axis=1).sum()) for one in outcomes.values())
    if missing:
        total = sum(map(len, outcomes.values()))
        raise InputError(
            f"{path} lacks predictions for {missing} of {total} dev {task.record}s. All models of a recipe need "
            "the same examples: evaluate that seed on them, or remove the file"
        )
    if stated.get(SEED, seed) != seed:
        raise InputError(f"{path} records seed {stated[SEED]!r:.40}. Its name must have the same seed")
    _require_recipe(task, path, stated.get(FINETUNE))
    weights = stated.get(WEIGHTS)
    return SeedModel(seed, outcomes, _held_out(path, stated.get(HELD_OUT)), None if weights is None else str(weights))


def _held_out(path: Path, figures: Any) -> tuple[str, float] | None:
    if figures is None:
        return None
    try:
        return held_out_score(dict(figures))
    except (ValueError, TypeError) as error:
        raise InputError(f"{path} has invalid held-out figures ({error})") from None


def recipe_params(task: AnyScores) -> dict[str, Any]:
    """Return the training parameters of an entry without the seed."""
    values = task.entry.params.finetune.model_dump(mode="json")
    return {name: value for name, value in values.items() if name != SEED}


def _require_recipe(task: AnyScores, path: Path, stated: Any) -> None:
    if stated is None:
        return
    own = recipe_params(task)
    theirs = stated if isinstance(stated, dict) else {}
    differing = [name for name in own if theirs.get(name) != own[name]]
    if differing:
        shown = ", ".join(f"{name} {theirs.get(name)!r:.40} instead of {own[name]!r}" for name in differing[:5])
        raise InputError(f"{path} has another recipe: {shown} ({task.entry.key('finetune')})")
