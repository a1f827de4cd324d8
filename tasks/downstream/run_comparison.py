"""Paired comparison of two runs on the examples that both predicted.

Examples are matched by their keys, so runs on overlapping files, in any order, are compared on what they share.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ipu_model.core.files import read_json
from tasks.downstream.gate.gate import paired_differences
from tasks.downstream.gate.released_scores import find_scores_file, mark_unanswered, read_released_outcomes
from tasks.downstream.kind import kind_of
from tasks.downstream.scoring.metrics import Array, Outcomes
from tasks.downstream.scoring.scores import Scores
from tasks.params.entries import Entry
from tasks.stage import artifacts
from tasks.stage.errors import InputError


@dataclass(frozen=True)
class EvaluatedRun:
    """Scores of an entry in one run."""

    task: Scores
    examples: Mapping[str, object]
    outcomes: Outcomes
    """Outcomes of the examples, NaN without a prediction."""
    figures: Mapping[str, float]
    """Content of metrics/<name>.json: every metric with its interval, on all examples of the run."""


def read_run(entry: Entry, root: Path) -> EvaluatedRun | None:
    """Read the evaluation of an entry from the run in the folder `root`; None if it was not evaluated.

    Raises:
        InputError: files are damaged.
    """
    metrics = root / artifacts.metrics_file(entry.name)
    if not metrics.is_file():
        return None
    task, examples = kind_of(entry).scores(entry).read_all(root)
    predictions = task.read_predictions(root / artifacts.predictions_file(entry.name), examples)
    outcomes = mark_unanswered(task.outcomes_of(examples, predictions), predictions)
    return EvaluatedRun(task, examples, outcomes, read_json(metrics))


def select_figures(task: Scores, figures: Mapping[str, float]) -> dict[str, dict[str, float]]:
    """Return metric -> value and interval from the content of a metrics file; metrics without an interval are
    omitted."""
    return {
        name: {"value": figures[name], "low": figures[f"{name}_low"], "high": figures[f"{name}_high"]}
        for name in task.metrics.titles
        if f"{name}_low" in figures
    }


def compare_runs(first: EvaluatedRun, second: EvaluatedRun) -> dict[str, Any]:
    """Compare the second run with the first; see `_against`. Entries of different kinds are not compared."""
    ours, theirs = first.task, second.task
    entry, other = ours.entry, theirs.entry
    if (entry.kind, entry.development) != (other.kind, other.development):
        return {
            "why": f"{entry.name} has kind {entry.kind} and development sets {', '.join(entry.development)}, "
            f"{other.name} has kind {other.kind} and {', '.join(other.development)}. Name entries of one kind."
        }
    aligned = {}
    for split, examples in first.examples.items():
        rows = dict(zip(theirs.keys(second.examples[split]), second.outcomes[split], strict=True))
        nothing = np.full(len(ours.quantities), np.nan)
        aligned[split] = np.array([rows.get(key, nothing) for key in ours.keys(examples)])
    files = [getattr(side.entry.params.data, "dev_path", None) for side in (ours, theirs)]
    named = f" ({files[0]}, {files[1]})" if files[0] != files[1] else ""
    return _against(first, aligned, sum(map(len, second.outcomes.values())), f"Development sets differ{named}: ")


def compare_scores(first: EvaluatedRun, folder: Path) -> dict[str, Any]:
    """Compare the scores.json or predictions.json in a folder with a run; see `_against`.

    Raises:
        InputError: the file is missing or damaged.
    """
    source = next(
        (path for path in (folder, folder / artifacts.EVALUATION) if find_scores_file(path) is not None), folder
    )
    theirs = read_released_outcomes(first.task, first.examples, source)
    if theirs is None:
        raise InputError(f"{folder} is neither a run nor a folder with scores.json or predictions.json")
    return _against(first, theirs, None)


def _against(
    first: EvaluatedRun, theirs: Mapping[str, Array], examples: int | None, cause: str = ""
) -> dict[str, object]:
    """Compare other outcomes with those of a run on their common examples.

    Args:
        theirs: outcomes on the examples of the run, NaN without a prediction.
        examples: number of examples of the other run; None if unknown.
        cause: probable reason for having no example in common.

    Returns:
        The numbers of examples; for each metric the gain in points with its interval, its test and the verdict. Or
        `why`, the reason for not comparing them.
    """
    task = first.task
    common, intervals = paired_differences(task, theirs, first.outcomes)
    if not common:
        return {"why": f"{cause}no {task.record} was predicted by both. A paired test needs common {task.record}s."}
    differences = {
        name: {**asdict(difference), "verdict": difference.verdict(task.confidence)}
        for name, difference in intervals.items()
    }
    tests = {name: record.pop("mcnemar") for name, record in differences.items()}
    return {
        "common": common,
        "examples": [sum(map(len, first.outcomes.values())), examples],
        "confidence": task.confidence,
        "differences": differences,
        "mcnemar": {name: test for name, test in tests.items() if test is not None},
    }
