"""From logits to answers to questions, scored as SQuAD v1.1's official script does."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from tasks.downstream.scoring.metrics import Array, Metric, Metrics, mean_of, weighted_mean_of
from tasks.downstream.scoring.scores import Limit, ScoresTask
from tasks.downstream.squad import about
from tasks.downstream.squad.answers import Answer, best_answers
from tasks.downstream.squad.files import Question, read_dev_questions, read_predictions
from tasks.downstream.squad.metrics import exact_match, f1
from tasks.downstream.squad.params import AnswerParams, GateParams
from tasks.downstream.squad.windows import Windows, read_windows
from tasks.project import artifacts

EXACT, OVERLAP = range(2)


class Task(about.Task, ScoresTask[list[Question], Windows, list[list[Answer]]]):
    """Spans, chosen by the sum of their two logits; exact match and F1 of each."""

    quantities: ClassVar[tuple[str, ...]] = ("exact", "f1")
    counted: ClassVar[str] = "total"

    def read_examples(self, path: Path) -> list[Question]:
        return read_dev_questions(path)

    def names(self, examples: list[Question]) -> Sequence[str]:
        return [question.id for question in examples]

    def keys(self, examples: list[Question]) -> list[str]:
        return [key_of(question) for question in examples]

    def read_logits(self, examples: list[Question], rows: Path, logits: Path) -> Windows:
        return read_windows(rows / artifacts.FEATURES, logits, [question.id for question in examples])

    def flat_logits(self, logits: Windows) -> tuple[Array, np.ndarray]:
        """Those of the context's tokens and [CLS], start and end alike."""
        return flat_logits(logits)

    def answer(self, examples: list[Question], logits: Windows) -> list[list[Answer]]:
        params = self.entry.params.evaluate
        assert isinstance(params, AnswerParams)
        contexts = [question.context for question in examples]
        return best_answers(logits, contexts, n_best=params.n_best, max_answer_length=params.max_answer_length)

    def predictions(self, answers: list[list[Answer]]) -> Sequence[Any]:
        return [found[0].text for found in answers]

    def margin(self, answers: list[list[Answer]], number: int) -> float | None:
        return margin(answers[number])

    def confidences(self, answers: list[list[Answer]]) -> Sequence[float] | None:
        return [found[0].probability for found in answers]

    def predictions_json(
        self, examples: Mapping[str, list[Question]], predictions: Mapping[str, Sequence[Any]]
    ) -> dict[str, str]:
        """{id: text}, as the official script reads it."""
        [(split, questions)] = examples.items()
        return {question.id: text for question, text in zip(questions, predictions[split], strict=True)}

    def read_predictions(self, path: Path, examples: Mapping[str, list[Question]]) -> dict[str, list[Any]]:
        found = read_predictions(path)
        return {split: [found.get(question.id) for question in one] for split, one in examples.items()}

    def outcomes(self, examples: list[Question], predictions: Sequence[Any]) -> Array:
        scores = [
            (0.0, 0.0) if text is None else (exact_match(text, question.answers), f1(text, question.answers))
            for question, text in zip(examples, predictions, strict=True)
        ]
        return np.array(scores, dtype=np.float64).reshape(-1, 2)

    @property
    def metrics(self) -> Metrics:
        return Metrics(
            (
                Metric("exact_match", "exact match", mean_of(EXACT), weighted_mean_of(EXACT), right=EXACT),
                Metric("f1", "F1", mean_of(OVERLAP), weighted_mean_of(OVERLAP)),
            )
        )

    @property
    def limits(self) -> tuple[Limit, ...]:
        gate = self.entry.params.gate
        assert isinstance(gate, GateParams)
        return (
            Limit("f1", gate.min_f1, "min_f1", gate.max_f1_drop, "max_f1_drop"),
            Limit(
                "exact_match",
                gate.min_exact_match,
                "min_exact_match",
                gate.max_exact_match_drop,
                "max_exact_match_drop",
            ),
        )

    @property
    def confidence(self) -> float:
        assert isinstance(self.entry.params.gate, GateParams)
        return self.entry.params.gate.confidence

    def allows(self, quantities: Sequence[float]) -> bool:
        return quantities[EXACT] in (0, 1) and 0 <= quantities[OVERLAP] <= 1


def flat_logits(logits: Windows) -> tuple[Array, np.ndarray]:
    """Logits of the context's tokens and [CLS], start and end alike, and the question of each."""
    window = np.repeat(np.arange(len(logits)), np.diff(logits.bounds))
    where = np.concatenate([window, window, np.repeat(np.arange(len(logits)), 2)])
    values = np.concatenate([logits.start_logits, logits.end_logits, logits.cls_logits.reshape(-1)])
    return values.astype(np.float64), logits.example_index[where]


def margin(answers: Sequence[Answer]) -> float | None:
    """By how much the best answer's score leads that of the next answer with another text; None where there is none."""
    others = [answer.score for answer in answers[1:] if answer.text != answers[0].text]
    return round(answers[0].score - others[0], 4) if others else None


def key_of(question: Question) -> str:
    """SHA-256 of id, question, context and reference answers: equal keys mean the very same question."""
    parts = [question.id, question.question, question.context, list(question.answers)]
    return hashlib.sha256(json.dumps(parts).encode("ascii")).hexdigest()
