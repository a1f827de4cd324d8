"""How much better one run judged its entry than another: the paired test on the examples that both answered.

Examples are told by their keys, so that runs on overlapping files, in any order, are compared on what they share.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ipu_model.files import read_json
from tasks.downstream.gate.evidence import compare
from tasks.downstream.gate.released import read_released, released_file
from tasks.downstream.scoring.metrics import Array, Outcomes
from tasks.downstream.scoring.scores import Task
from tasks.params.entries import Entry
from tasks.plan.kinds import part_of
from tasks.stage import artifacts
from tasks.stage.errors import InputError


@dataclass(frozen=True)
class Judged:
    """What an entry of a run answered, and what that scores."""

    task: Task
    examples: Mapping[str, Any]
    predictions: Mapping[str, Sequence[Any]]
    outcomes: Outcomes
    figures: Mapping[str, float]
    """metrics/<name>.json: every metric with its bounds, on all examples of the run."""


def judged(entry: Entry, root: Path) -> Judged:
    """Read an entry of the run in the folder `root`.

    Raises:
        InputError: it was not evaluated there, or its files are damaged.
    """
    task: Task = part_of(entry, "scores")
    metrics = root / artifacts.metrics_file(entry.name)
    if not metrics.is_file():
        raise InputError(f"{metrics} is missing: run the stage {entry.stage('evaluate')} first")
    examples = task.read_all(root)
    predictions = task.read_predictions(root / artifacts.predictions_file(entry.name), examples)
    return Judged(task, examples, predictions, task.outcomes_of(examples, predictions), read_json(metrics))


def figures_of(task: Task, figures: Mapping[str, float]) -> dict[str, dict[str, float]]:
    """Metric -> value and bounds, as `metrics` states them; what it does not state is left out."""
    return {
        name: {"value": figures[name], "low": figures[f"{name}_low"], "high": figures[f"{name}_high"]}
        for name in task.metrics.titles
        if f"{name}_low" in figures
    }


def against_run(first: Judged, second: Judged) -> dict[str, Any]:
    """The second run against the first, see `_against`.

    Raises:
        InputError: they are of other kinds, or have no example in common.
    """
    ours, theirs = first.task, second.task
    if (ours.entry.kind, ours.development) != (theirs.entry.kind, theirs.development):
        raise InputError(
            f"{ours.entry.name} is of kind {ours.entry.kind} and judged on {', '.join(ours.development)}, "
            f"{theirs.entry.name} is of kind {theirs.entry.kind} and judged on {', '.join(theirs.development)}: name "
            "entries of one kind"
        )
    found = {}
    for split, examples in first.examples.items():
        answered = zip(
            theirs.keys(second.examples[split]), second.outcomes[split], second.predictions[split], strict=True
        )
        rows = {key: row for key, row, prediction in answered if prediction is not None}
        nothing = np.full(len(ours.quantities), np.nan)
        found[split] = np.array([rows.get(key, nothing) for key in ours.keys(examples)])
    return _against(first, found, sum(map(len, second.outcomes.values())))


def against_scores(first: Judged, folder: Path) -> dict[str, Any]:
    """The scores.json or predictions.json in a folder against a run, see `_against`.

    Raises:
        InputError: there is none, it is damaged, or has no example in common with the run.
    """
    place = next((one for one in (folder, folder / artifacts.EVALUATION) if released_file(one) is not None), folder)
    theirs = read_released(first.task, first.examples, place)
    if theirs is None:
        raise InputError(f"{folder} is no run, and holds no scores.json or predictions.json")
    return _against(first, theirs, None)


def _against(first: Judged, theirs: Mapping[str, Array], examples: int | None) -> dict[str, Any]:
    """How much better others answered than a run did, on the examples of both.

    Args:
        theirs: outcomes on the examples of the run, NaN where they answered nothing.
        examples: how many they have; None: that is not known.

    Returns:
        The numbers of examples; for each metric the points by which they are better, with bounds; and McNemar's test,
        where it applies.
    """
    found = compare(first.task, first.predictions, first.outcomes, theirs)
    if not found.common:
        raise InputError(
            f"no example of {first.task.entry.name} was answered by both: runs are compared on the same examples"
        )
    return {
        "common": found.common,
        "examples": [sum(map(len, first.outcomes.values())), examples],
        "confidence": first.task.confidence,
        # What is compared there is the run against the others: turned round here (0.0 - 0.0 has no sign).
        "differences": {
            name: {"mean": 0.0 - one.mean, "low": 0.0 - one.high, "high": 0.0 - one.low}
            for name, one in found.differences.items()
        },
        "mcnemar": {
            name: {"first_only": test.second_only, "second_only": test.first_only, "p_value": test.p_value}
            for name, test in found.tests.items()
        },
    }
