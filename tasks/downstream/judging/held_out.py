"""What a training scored on examples that it did not see: the one figure that models of a recipe are chosen by."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any


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
    return name, _turned(name, value)


def figure_of(name: str, score: float) -> float:
    """The figure as it is stated, from what `held_out_score` makes of it."""
    return _turned(name, score)


def _turned(name: str, value: float) -> float:
    return -value if name == "loss" else value
