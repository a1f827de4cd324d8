"""What a release says of every example of a GLUE task without a word of it: a hash -> what the model answered."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from tasks.downstream.glue.answers import Examples, check_predictions, predictions_json, read_examples, read_predictions
from tasks.downstream.glue.scores import Values
from tasks.downstream.glue.tasks import GlueTask
from tasks.downstream.squad.question_scores import SCORES, by_line, released_file
from tasks.project.errors import InputError
from tasks.project.files import read_json

ABOUT = "SHA-256 of the JSON list [text, how often it came before] -> number of the class, or the value"


def keys_of(examples: Examples) -> list[str]:
    """SHA-256 of each example's text; of equal texts the first, the second and so on have keys of their own."""
    seen: Counter[str] = Counter()
    keys = []
    for text in examples.texts:
        keys.append(hashlib.sha256(json.dumps([text, seen[text]]).encode("ascii")).hexdigest())
        seen[text] += 1
    return keys


def scores_json(task: GlueTask, examples: Mapping[str, Examples], predictions: Mapping[str, Values]) -> str:
    """scores.json of a release, by development set; in order of the keys."""
    answers = predictions_json(task, predictions)
    found = {split: dict(zip(keys_of(one), answers[split], strict=True)) for split, one in examples.items()}
    sets = ",\n".join(f"{json.dumps(split)}: {by_line(scores)}" for split, scores in sorted(found.items()))
    return f'{{"about": {json.dumps(ABOUT)}, "scores": {{\n{sets}\n}}}}\n'


def read_released(task: GlueTask, folder: Path, root: Path = Path()) -> dict[str, Values] | None:
    """What the released model answered to the examples of the checkout `root`; None: there is no released model.

    Raises:
        InputError: damaged, both scores.json and predictions.json, or answers to other examples.
    """
    path = released_file(folder)
    if path is None or path.name != SCORES:
        return None if path is None else read_predictions(task, path)
    try:
        scores = {split: dict(read_json(path)["scores"][split]) for split in task.splits[1:]}
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path} holds no scores of {', '.join(task.splits[1:])} ({error!r})") from None
    found = {split: _answers(path, split, scores[split], read_examples(task, split, root)) for split in scores}
    check_predictions(task, path, found)
    return found


def _answers(path: Path, split: str, answers: Mapping[str, float], examples: Examples) -> Values:
    keys = keys_of(examples)
    if set(keys) != set(answers):
        known = sum(key in answers for key in keys)
        raise InputError(
            f"{path} holds {len(answers)} answers of {split}, {known} of them to the {len(keys)} examples there are "
            "now: a released model is compared on the very same examples; evaluate it on these, or empty the folder"
        )
    try:
        return np.array([answers[key] for key in keys], dtype=np.float64)
    except (ValueError, TypeError):
        raise InputError(f"{path}: answers of {split} must be numbers") from None
