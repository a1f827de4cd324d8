"""What a verdict says beside its checks, in a line, and the figure on held-out examples that models of a recipe are
chosen by; of plain values, so that commands need no numpy for it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

RECIPE = ("seeds", "recipe", "chosen_by")
"""What a verdict on several seeds holds beside that on one model (tasks/downstream/gate/recipe.py)."""
WITHOUT_FLOOR = "without_floor"
"""What says of an accepted model that no floor is set."""


def recipe_in_words(verdict: Mapping[str, Any], published: bool) -> str | None:
    """Every metric over all seeds with its interval, and which of them the model is; None of a verdict on one model.

    Args:
        verdict: content of the gate's file.
        published: whether the model was.
    """
    seeds = verdict.get("seeds")
    if not seeds:
        return None
    scores = ", ".join(map(_score, verdict["recipe"]))
    own = next(one["seed"] for one in seeds if one["this_model"])
    best = ", best held-out" if verdict["chosen_by"] else ""
    return f"recipe over {len(seeds)} seeds: {scores}; {'published' if published else 'judged'}: seed {own}{best}"


def _score(one: Mapping[str, Any]) -> str:
    mean, low, high = ("none" if one[name] is None else f"{one[name]:.2f}" for name in ("mean", "low", "high"))
    return f"{one['title']} {mean} ({low} to {high})"


def held_out_score(figures: Mapping[str, Any]) -> tuple[str, float]:
    """The name of the figure that the head is judged by, and its value, larger being better.

    Args:
        figures: `held_out` of metrics/<entry>-finetune.json.

    Raises:
        ValueError: they do not name a finite figure.
    """
    name = figures.get("judged_by")
    value = figures.get(str(name))
    if not isinstance(name, str) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"judged_by={name!r} is no finite figure among them")
    return name, figure_of(name, value)


def figure_of(name: str, score: float) -> float:
    """The figure as it is stated, from what `held_out_score` makes of it, and the other way round."""
    return -score if name == "loss" else score
