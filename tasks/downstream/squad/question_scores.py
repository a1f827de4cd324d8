"""What a release says of every question without a word of it: a hash -> exact match and F1 of the model's answer.

Enough to compare another model with the released one, question by question, for whoever has the same questions.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tasks.downstream.squad.files import Question
from tasks.downstream.squad.metrics import score
from tasks.project import artifacts
from tasks.project.errors import InputError
from tasks.project.files import read_json

SCORES = "scores.json"
KEY = re.compile(r"[0-9a-f]{64}")
ABOUT = "SHA-256 of the JSON list [id, question, context, [reference answers]] -> [exact match, F1], 0 to 1"


def key_of(question: Question) -> str:
    """SHA-256 of id, question, context and reference answers: equal keys mean the very same question."""
    parts = [question.id, question.question, question.context, list(question.answers)]
    return hashlib.sha256(json.dumps(parts).encode("ascii")).hexdigest()


def scores_json(questions: Sequence[Question], predictions: Mapping[str, str]) -> str:
    """scores.json of a release; in order of the keys, which tells nothing of the order of the questions."""
    found = score([(question.id, question.answers) for question in questions], predictions)
    of_keys = {
        key_of(question): [exact, overlap]
        for question, exact, overlap in zip(questions, found.exact_match, found.f1, strict=True)
        if question.id in predictions
    }
    return f'{{"about": {json.dumps(ABOUT)}, "scores": {by_line(of_keys)}}}\n'


def by_line(scores: Mapping[str, Any]) -> str:
    """A JSON object in order of its keys, one a line."""
    return "{\n" + ",\n".join(f"{json.dumps(key)}: {json.dumps(scores[key])}" for key in sorted(scores)) + "\n}"


def read_scores(path: Path) -> dict[str, tuple[float, float]]:
    """Key -> exact match and F1, 0 to 1.

    Raises:
        InputError: not JSON, or no such scores.
    """
    again = f"take evaluation/{SCORES} of a release"
    try:
        scores = dict(read_json(path)["scores"])
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path} holds no scores of questions ({error!r}): {again}") from None
    for key, pair in scores.items():
        if not KEY.fullmatch(key) or not _is_score(pair):
            raise InputError(
                f"{path}: {key!r:.80} has {pair!r:.40}; required are a SHA-256 and [0 or 1, 0 to 1]: {again}"
            )
    return {key: (float(exact), float(overlap)) for key, (exact, overlap) in scores.items()}


def _is_score(pair: Any) -> bool:
    numbers = isinstance(pair, list) and len(pair) == 2 and all(type(one) in (int, float) for one in pair)
    return numbers and pair[0] in (0, 1) and 0 <= pair[1] <= 1


def released_file(folder: Path) -> Path | None:
    """scores.json or predictions.json in the folder of a released model; None: neither is there.

    Raises:
        InputError: both are there, which may be of different models.
    """
    found = [folder / name for name in (SCORES, artifacts.SQUAD_PREDICTIONS.name) if (folder / name).is_file()]
    if len(found) > 1:
        raise InputError(f"{folder} holds {SCORES} and {found[1].name}, which may be of two models: leave one of them")
    return found[0] if found else None
