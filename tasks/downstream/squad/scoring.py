"""Scores of any predictions for questions in files (`podium score`)."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tasks.downstream.squad.files import read_predictions, read_references
from tasks.downstream.squad.metrics import Scores, score

if TYPE_CHECKING:
    pass

log = logging.getLogger(__name__)

SHOWN_IDS = 5
"""Ids that a warning names before it only counts."""


def score_files(questions: Path, predictions: Path) -> Scores:
    """Score a {id: text} file against a SQuAD v1.1 file.

    Missing predictions count 0 and superfluous ones nothing; both are logged as warnings.

    Raises:
        InputError: one of the files cannot be used.
    """
    scores = score(read_references(questions), read_predictions(predictions))
    if scores.unanswered:
        log.warning(
            "%d of %d questions have no prediction and count 0: %s",
            len(scores.unanswered),
            scores.total,
            _some(scores.unanswered),
        )
    if scores.extra:
        log.warning("%d predictions belong to no question and are ignored: %s", len(scores.extra), _some(scores.extra))
    return scores


def _some(ids: Sequence[str]) -> str:
    return ", ".join(ids[:SHOWN_IDS]) + (", ..." if len(ids) > SHOWN_IDS else "")
