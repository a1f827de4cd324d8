"""From logits to tags, and precision, recall and F1 of entities as conlleval counts them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from tasks.downstream.ner import about
from tasks.downstream.ner.logits import WordLogits, read_word_logits
from tasks.downstream.ner.tags import OUTSIDE, entities, problem_of
from tasks.downstream.scoring.logits import FeatureFiles
from tasks.downstream.scoring.metrics import Array, Metric, Metrics, Outcomes, ratio_metric
from tasks.downstream.scoring.scores import Limit, ScoresTask, keys_of
from tasks.records.parquet import read_batches
from tasks.stage import artifacts
from tasks.stage.errors import InputError

GOLD, WORDS, FOUND, CORRECT, RIGHT = range(5)
"""Columns of outcomes."""
READ_AT_ONCE = 16384


@dataclass(frozen=True)
class Examples:
    """A development set."""

    tokens: list[list[str]]
    tags: list[list[str]]
    """Of IOB2."""


@dataclass(frozen=True)
class Answers:
    """Tags of every sentence, and how sure the model is of each."""

    tags: list[list[str]]
    sureness: list[Array]
    """Probability of the tag of each word."""
    margins: list[Array]
    """By how much the logit of each word's tag leads the next one."""

    @cached_property
    def texts(self) -> list[str]:
        """The tags of each sentence, apart by blanks."""
        return [" ".join(tags) for tags in self.tags]


class Task(about.Task, ScoresTask[Examples, WordLogits, Answers]):
    """Outcomes are counts of each sentence: entities there are, words, entities found, those that are correct, and
    words whose tag is right. Sums of them give the metrics."""

    quantities: ClassVar[tuple[str, ...]] = ("gold", "words", "found", "correct", "right")
    given: ClassVar[int] = 2

    def read_examples(self, path: Path) -> Examples:
        made_by = self.entry.stage("examples")
        tokens: list[list[str]] = []
        tags: list[list[str]] = []
        for batch in read_batches(path, ("tokens", "tags"), READ_AT_ONCE, made_by):
            tokens += batch.column("tokens").to_pylist()
            tags += batch.column("tags").to_pylist()
        if not tokens:
            raise InputError(f"{path} holds no sentence; run the stage {made_by} again")
        return Examples(tokens, tags)

    def names(self, examples: Examples) -> Sequence[str]:
        return [str(number) for number in range(len(examples.tokens))]

    def keys(self, examples: Examples) -> list[str]:
        return keys_of(map(json.dumps, zip(examples.tokens, examples.tags, strict=True)))

    def read_logits(self, examples: Examples, rows: Path, logits: Path) -> WordLogits:
        files = FeatureFiles(rows / artifacts.FEATURES, logits, self.entry.stage)
        return read_word_logits(files, [len(words) for words in examples.tokens])

    def flat_logits(self, logits: WordLogits) -> tuple[Array, np.ndarray]:
        classes = logits.values.shape[1]
        sentence = np.repeat(np.arange(len(logits.bounds) - 1), np.diff(logits.bounds) * classes)
        return logits.values.reshape(-1).astype(np.float64), sentence

    def answer(self, examples: Examples, logits: WordLogits) -> Answers:
        """The most probable tag of each word, whatever its neighbours have, as the model gives it."""
        best = logits.values.argmax(axis=1)
        names, inner = np.array(logits.labels, dtype=object)[best], logits.bounds[1:-1]
        values = logits.values.astype(np.float64)
        odds = np.exp(values - values.max(axis=1, keepdims=True))
        first, second = np.sort(values, axis=1)[:, :-3:-1].T
        return Answers(
            [one.tolist() for one in np.split(names, inner)],
            np.split(1 / odds.sum(axis=1), inner),
            np.split(first - second, inner),
        )

    def predictions(self, answers: Answers) -> Sequence[Any]:
        """The tags of a sentence, apart by blanks."""
        return answers.texts

    def margin(self, answers: Answers, number: int) -> float | None:
        """Of the word whose tag turns first."""
        return round(float(answers.margins[number].min()), 4)

    def confidences(self, answers: Answers) -> Sequence[float] | None:
        """That all tags of a sentence are right, as the model takes its words for independent."""
        return [float(sure.prod()) for sure in answers.sureness]

    def right(self, outcomes: Array) -> Array:
        found: Array = (outcomes[:, RIGHT] == outcomes[:, WORDS]).astype(np.float64)
        return found

    def check_predictions(self, path: Path, split: str, examples: Examples, values: Any) -> list[Any]:
        """Tags for each word of each sentence, or null for all of it."""
        found = list(values)
        if len(found) != len(examples.tokens):
            raise InputError(
                f"{path} holds tags of {len(found)} sentences of {split}, which has {len(examples.tokens)}"
            )
        for number, (words, text) in enumerate(zip(examples.tokens, found, strict=True)):
            if text is None:
                continue
            tags = text.split(" ") if isinstance(text, str) else []
            if len(tags) != len(words) or any(map(problem_of, tags)):
                raise InputError(
                    f"{path}: sentence {number} of {split} has {text!r:.60}, required are {len(words)} tags (O, B-type "
                    "or I-type), apart by blanks"
                )
        return found

    def outcomes(self, examples: Examples, predictions: Sequence[Any]) -> Array:
        return outcomes_of(examples.tags, predictions)

    @property
    def metrics(self) -> Metrics:
        return METRICS

    @property
    def limits(self) -> tuple[Limit, ...]:
        return (self.limit_of("f1", "min_f1", "max_f1_drop"),)

    def allows(self, quantities: Sequence[float]) -> bool:
        found, correct, right = quantities
        return all(one >= 0 and one == int(one) for one in quantities) and correct <= found and correct <= right

    def constant(self, examples: Mapping[str, Examples]) -> Outcomes | None:
        """What finds no entity."""
        nothing = {split: [" ".join([OUTSIDE] * len(words)) for words in one.tokens] for split, one in examples.items()}
        return self.outcomes_of(examples, nothing)


def outcomes_of(gold: Sequence[Sequence[str]], predictions: Sequence[str | None], only: str | None = None) -> Array:
    """The counts of each sentence; nothing is found or right where the prediction is None.

    Args:
        gold: tags of each sentence.
        predictions: tags of each sentence, apart by blanks.
        only: entities of this type alone.
    """
    rows = []
    for tags, text in zip(gold, predictions, strict=True):
        answered = [] if text is None else text.split(" ")
        there, found = ({one for one in entities(some) if only in (None, one.type)} for some in (tags, answered))
        right = sum(one == other for one, other in zip(tags, answered, strict=False))
        rows.append((len(there), len(tags), len(found), len(there & found), right))
    return np.array(rows, dtype=np.float64).reshape(-1, 5)


def _extremes(outcomes: Array) -> tuple[Array, Array]:
    """A sentence with all wrong, and one with all right, with as many entities and words as those have on average that
    have entities."""
    some = outcomes[outcomes[:, GOLD] > 0]
    gold, words = (some if len(some) else np.ones((1, 2)))[:, [GOLD, WORDS]].mean(axis=0)
    return np.array([gold, words, gold, 0.0, 0.0]), np.array([gold, words, gold, gold, words])


def _metric(name: str, title: str, above: int, *below: int) -> Metric:
    """A metric of sums of quantities: 100 * above / (mean of those below), or 0."""
    return ratio_metric(
        name,
        title,
        lambda outcomes: len(below) * outcomes[:, above],
        lambda outcomes: outcomes[:, below].sum(axis=1),
        empty=0.0,
        extremes=_extremes,
    )


ENTITY_METRICS = (
    _metric("f1", "F1", CORRECT, FOUND, GOLD),
    _metric("precision", "precision", CORRECT, FOUND),
    _metric("recall", "recall", CORRECT, GOLD),
)
"""F1 is 2 * correct / (found + gold), which is the harmonic mean of the other two."""
METRICS = Metrics((*ENTITY_METRICS, _metric("token_accuracy", "accuracy of tags", RIGHT, WORDS)))
