"""Scores of a released model by example hash, without any text of the examples.

Anyone who has the same examples can compare another model with the released one, example by example.
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ipu_model.core.files import read_json
from tasks.downstream.scoring.metrics import Array, Outcomes
from tasks.downstream.scoring.scores import Scores
from tasks.stage.errors import InputError

SCORES, PREDICTIONS = "scores.json", "predictions.json"
KEY = re.compile(r"[0-9a-f]{64}")


def scores_json(task: Scores, examples: Mapping[str, object], predictions: Mapping[str, Sequence[object]]) -> str:
    """Return scores.json of a release by development set, sorted by key to hide the order of the examples.

    Quantities known from the examples themselves are omitted.
    """
    sets = {}
    for split, dev_set in examples.items():
        rows = task.outcomes(dev_set, predictions[split])[:, task.known_quantities :].tolist()
        answered = zip(task.keys(dev_set), rows, predictions[split], strict=True)
        sets[split] = {key: row for key, row, prediction in answered if prediction is not None}
    about = f"SHA-256 of an example -> {', '.join(task.quantities[task.known_quantities :])} of its answer"
    lines = ",\n".join(f"{json.dumps(split)}: {_by_line(scores)}" for split, scores in sorted(sets.items()))
    return f'{{"about": {json.dumps(about)}, "scores": {{\n{lines}\n}}}}\n'


def _by_line(scores: Mapping[str, object]) -> str:
    return "{\n" + ",\n".join(f"{json.dumps(key)}: {json.dumps(scores[key])}" for key in sorted(scores)) + "\n}"


def read_released_outcomes(task: Scores, examples: Mapping[str, object], folder: Path) -> dict[str, Array] | None:
    """Return outcomes of the released model on these examples, NaN without a prediction; None before the first release.

    Raises:
        InputError: a damaged file, or both scores.json and predictions.json, which may be of different models.
    """
    path = find_scores_file(folder)
    if path is None:
        return None
    if path.name == PREDICTIONS:
        predictions = task.read_predictions(path, examples)
        return mark_unanswered(task.outcomes_of(examples, predictions), predictions)
    return read_outcomes(task, examples, path)


def mark_unanswered(outcomes: Outcomes, predictions: Mapping[str, Sequence[object]]) -> dict[str, Array]:
    """Return outcomes with NaN for the examples without a prediction."""
    return {
        split: np.where([[prediction is None] for prediction in predictions[split]], np.nan, rows)
        for split, rows in outcomes.items()
    }


def read_outcomes(task: Scores, examples: Mapping[str, object], path: Path) -> dict[str, Array]:
    """Read outcomes on these examples from a scores.json, NaN without a prediction; raises the errors of
    `read_scores`."""
    scores, nothing, outcomes = read_scores(task, path), [math.nan] * (len(task.quantities) - task.known_quantities), {}
    for split, dev_set in examples.items():
        keys = task.keys(dev_set)
        outcomes[split] = task.outcomes(dev_set, [None] * len(keys))
        outcomes[split][:, task.known_quantities :] = [scores[split].get(key, nothing) for key in keys]
    return outcomes


def read_scores(task: Scores, path: Path) -> dict[str, dict[str, list[float]]]:
    """Return development set -> key -> quantities.

    Raises:
        InputError: not JSON, or scores of another task.
    """
    again = f"Use evaluation/{SCORES} of a release"
    try:
        sets = dict(read_json(path)["scores"])
        sets = {split: dict(sets[split]) for split in task.entry.development}
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path} has no scores of {', '.join(task.entry.development)} ({error!r}). {again}") from None
    names = task.quantities[task.known_quantities :]
    if not names:
        first = next((row for rows in sets.values() for row in rows.values() if isinstance(row, list)), [])
        names = tuple(f"number {number}" for number in range(1, len(first) + 1))
    return {
        split: {key: _read_row(task, names, path, key, row) for key, row in rows.items()}
        for split, rows in sets.items()
    }


def _read_row(task: Scores, names: Sequence[str], path: Path, key: str, row: Any) -> list[float]:
    good = (
        KEY.fullmatch(key)
        and isinstance(row, list)
        and 0 < len(row) == len(names)
        and all(type(value) in (int, float) and math.isfinite(value) for value in row)
        and task.is_possible(row)
    )
    if not good:
        raise InputError(
            f"{path}: {key!r:.80} has {row!r:.40}, required is a SHA-256 with {', '.join(names)}. Use "
            f"evaluation/{SCORES} of a release of the same task"
        )
    return [float(value) for value in row]


def find_scores_file(folder: Path) -> Path | None:
    """Return scores.json or predictions.json in the folder of a released model, or None.

    Raises:
        InputError: both exist, which may be of different models.
    """
    files = [folder / name for name in (SCORES, PREDICTIONS) if (folder / name).is_file()]
    if len(files) > 1:
        raise InputError(f"{folder} contains {SCORES} and {files[1].name}, which may differ. Remove one of them")
    return files[0] if files else None
