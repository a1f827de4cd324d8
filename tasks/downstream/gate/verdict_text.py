"""Text and figures of a verdict as plain values, so that commands can format them without numpy."""

import math
from collections.abc import Mapping
from typing import Any

RECIPE = ("seeds", "recipe", "chosen_by")
"""Additional keys of a verdict on several seeds (tasks/downstream/gate/recipe.py)."""
WITHOUT_FLOOR = "without_floor"
"""Key of the note that no floor was set."""
COMPARED = "compared"
"""Key of the text that names the released model that the gate compared with, or says why there is none."""
EXPORTS = "exports"
"""Key of the verdicts on exported files: path in the release -> accepted, reasons, checks, metrics, differences."""
ADVICE = "advice"
"""Key of what to do after a rejection: a list of objects with `text` and `set`, parameters of a next run."""


def format_recipe(verdict: Mapping[str, Any], published: bool) -> str | None:
    """Return a line with every metric over all seeds and the candidate's seed; None for a verdict on one model.

    Args:
        verdict: content of the gate's file.
    """
    seeds = verdict.get("seeds")
    if not seeds:
        return None
    scores = ", ".join(map(_score, verdict["recipe"]))
    seed = next(record["seed"] for record in seeds if record["this_model"])
    best = ", best held-out" if verdict["chosen_by"] else ""
    return f"recipe over {len(seeds)} seeds: {scores}; {'published' if published else 'candidate'}: seed {seed}{best}"


def format_advice(verdict: Mapping[str, Any], name: str) -> list[str]:
    """Return what to do after a rejection, each point with the command that does it; points without one come first.

    Args:
        verdict: content of the gate's file.
        name: name of the run; "." for a run without one.
    """
    run = "Try podium run" if name == "." else f"Try podium run --like {name}"
    lines = []
    for advice in sorted(verdict.get(ADVICE, ()), key=lambda item: bool(item["set"])):
        sets = [
            f"--set {key}={value:g}" if isinstance(value, float) else f"--set {key}={value}"
            for key, value in advice["set"].items()
        ]
        lines.append(" ".join([advice["text"], *([run, *sets] if sets else [])]))
    return lines


def _score(record: Mapping[str, object]) -> str:
    mean, low, high = ("none" if record[name] is None else f"{record[name]:.2f}" for name in ("mean", "low", "high"))
    return f"{record['title']} {mean} ({low} to {high})"


def held_out_score(figures: Mapping[str, object]) -> tuple[str, float]:
    """Return the name and value of the figure that selects models; larger is better.

    Args:
        figures: `held_out` of metrics/<entry>-finetune.json.

    Raises:
        ValueError: there is no finite figure.
    """
    name = figures.get("judged_by")
    value = figures.get(str(name))
    if not isinstance(name, str) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"judged_by={name!r} is not a finite figure")
    return name, signed_figure(name, value)


def signed_figure(name: str, score: float) -> float:
    """Convert a figure to the value of `held_out_score`, or back."""
    return -score if name.endswith("loss") else score


def format_figure(name: str, value: float) -> str:
    """Return a held-out figure as text, an accuracy in percent as all scores are."""
    return f"{100 * value:.2f} %" if name.endswith("accuracy") else f"{value:.4f}"
