"""What a verdict says beside its checks, in a line; of plain values, so that commands need no numpy for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

RECIPE = ("seeds", "recipe", "chosen_by")
"""What a verdict on several seeds holds beside that on one model (tasks/downstream/judging/recipe.py)."""
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
