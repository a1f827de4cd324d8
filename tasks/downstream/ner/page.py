"""Evaluation report of named entities: scores, scores by type and length, and the worst mistakes."""

from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import ClassVar, NamedTuple, Self

import numpy as np
import pyarrow as pa

from tasks.downstream.ner.scores import (
    CORRECT,
    FOUND,
    GOLD,
    NerAnswers,
    NerDevSet,
    NerScores,
    WordLogits,
    count_outcomes,
)
from tasks.downstream.scoring.metrics import Array, Slice, label_ranges, slice_by, slice_groups
from tasks.downstream.scoring.page_parts import count_confusions, sample_cells
from tasks.downstream.scoring.report import WORST, EvaluationView, Report, page_values
from tasks.pages.render import render_html
from tasks.params.entries import TRAIN
from tasks.records.tags import OUTSIDE, Entity, find_entities, split_tag

TYPE = "type"
PROBABILITY = "The probability of a predicted entity is the mean of those of its words, as in podium predict."
SHOWN_TYPES = 20
"""With more types, there is no confusion matrix."""
AROUND = 25
"""Words of a long sentence shown before and after its first mistake."""
_WORDS = ((5, "up to 5 words"), (10, "6-10 words"), (20, "11-20 words"), (40, "21-40 words"))


NerView = EvaluationView[NerDevSet, NerAnswers, str]


@dataclass(frozen=True)
class NerReport(Report[NerDevSet, WordLogits, NerAnswers, str]):
    """Report with scores by type, sentence length and known entities, and the worst mistakes."""

    scores: NerScores
    known: Set[str] | None = None
    """Entities of the training sentences; None without these."""
    compared_columns: ClassVar[tuple[str, ...]] = ("tokens",)

    def compared_texts(self, batch: pa.RecordBatch) -> list[str]:
        return [" ".join(words) for words in batch.column("tokens").to_pylist()]

    def prepare(self, root: Path) -> Self:
        if not (path := self.scores.entry.examples_file(TRAIN, root)).is_file():
            return self
        train = self.scores.read_examples(path)
        named = zip(train.tokens, map(find_entities, train.tags), strict=True)
        return replace(self, known=frozenset(_text(words, entity) for words, entities in named for entity in entities))

    def slices(
        self, split: str, examples: NerDevSet, logits: WordLogits, answers: NerAnswers, outcomes: Array
    ) -> Sequence[Slice]:
        predictions = self.scores.predictions(answers)
        names, order = label_ranges([len(words) for words in examples.tokens], _WORDS, "over 40 words")
        of_length = slice_by("length", names, order, self.scores.metrics, split, outcomes)
        of_types = type_slices(examples.tags, predictions, logits.labels)
        return [*of_types, *known_slices(examples, predictions, self.known), *of_length]

    def mistakes(self, view: NerView) -> tuple[Sequence[str], Iterable[Sequence[object]]]:
        [(split, examples)] = view.examples.items()
        answers, outcomes = view.answers[split], view.outcomes[split]
        rows = (
            (
                *(mistake.name, " ".join(examples.tokens[mistake.number])),
                *(
                    "; ".join(f"{text} ({type})" for text, type in entities)
                    for entities in (mistake.missed, mistake.invented)
                ),
                *(round(mistake.f1, 2), round(mistake.sureness, 6), self.scores.margin(answers, mistake.number)),
            )
            for mistake in worst_mistakes(examples, answers, outcomes)
        )
        return ("id", "text", "missed", "wrong", "f1", "probability", "margin"), rows

    def page(self, view: NerView) -> str:
        [(split, examples)] = view.examples.items()
        mistakes = worst_mistakes(examples, view.answers[split], view.outcomes[split])
        names, gold, seen = word_types(examples.tags, view.answers[split].tags)
        few = len(names) <= SHOWN_TYPES
        owners = np.repeat(np.arange(len(examples.tokens)), [*map(len, examples.tokens)])

        def describe(word: int) -> tuple[str, str]:
            return examples.names[owners[word]], " ".join(examples.tokens[owners[word]])

        return render_html(
            __file__,
            "ner.html.j2",
            **page_values(self.scores, view, PROBABILITY),
            confusion=count_confusions(names, gold, seen) if few else (),
            cells=sample_cells((gold, seen), describe),
            mistakes=mistakes[:WORST],
            wrong=len(mistakes),
        )


def word_types(
    gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]
) -> tuple[list[str], np.ndarray, np.ndarray]:
    """Return the types of all entities, then `OUTSIDE`, and the number of the true and of the predicted type of each
    word."""
    words = [[split_tag(tag)[1] for tags in sentences for tag in tags] for sentences in (gold, predicted)]
    names = sorted({*words[0], *words[1]} - {""})
    numbers = {name: number for number, name in enumerate([*names, ""])}
    true, seen = (np.array([numbers[name] for name in types], dtype=np.int64) for types in words)
    return [*names, OUTSIDE], true, seen


def type_slices(gold: Sequence[Sequence[str]], predictions: Sequence[str | None], labels: Sequence[str]) -> list[Slice]:
    """Return scores of every true or predicted type, sorted by name, with counts of its entities and whether it is in
    the training sentences.
    """
    answered = [[] if text is None else text.split(" ") for text in predictions]
    learned = {split_tag(label)[1] for label in labels}
    types = sorted(
        {entity.type for sentences in (gold, answered) for tags in sentences for entity in find_entities(tags)}
    )
    counted = np.array([count_outcomes(gold, predictions, only=name) for name in types]).reshape(-1, len(gold), 5)
    gold_counts, predicted, correct = (counted[:, :, column].T for column in (GOLD, FOUND, CORRECT))
    return slice_groups(
        TYPE, types, [name in learned for name in types], gold_counts, predicted, correct, counted="gold"
    )


def known_slices(examples: NerDevSet, predictions: Sequence[str | None], known: Set[str] | None) -> list[Slice]:
    """Return scores of the entities that the training sentences have, and of others; none without these sentences."""
    counts = np.zeros((3, len(examples.tokens), 2))
    for number, (words, tags, text) in enumerate(zip(examples.tokens, examples.tags, predictions, strict=True)):
        gold, predicted = set(find_entities(tags)), set(find_entities((text or "").split(" ")))
        for row, entities in zip(counts, (gold, predicted, gold & predicted), strict=True):
            for entity in entities:
                row[number, int(_text(words, entity) not in (known or ()))] += 1
    names = ("seen in train", "new")
    return [] if known is None else slice_groups("known entity", names, [True, True], *counts, counted="gold")


def _text(words: Sequence[str], entity: Entity) -> str:
    return " ".join(words[entity.first : entity.last]).casefold()


@dataclass(frozen=True)
class Piece:
    """Consecutive words in the same entities."""

    text: str
    gold: str
    """Type of the true entity, or empty."""
    found: str
    """Type of the predicted entity, or empty."""
    exact: bool = False
    """True if the predicted entity is correct."""


class NerMistake(NamedTuple):
    """Sentence with wrong entities."""

    number: int
    name: str
    pieces: list[Piece]
    missed: list[tuple[str, str]]
    """Text and type of the true entities that were not predicted."""
    invented: list[tuple[str, str]]
    """Text and type of the predicted entities that are not true."""
    f1: float
    sureness: float
    """Highest probability of a wrong tag."""


def worst_mistakes(examples: NerDevSet, answers: NerAnswers, outcomes: Array) -> list[NerMistake]:
    """Return the mistakes: lowest F1 first, then the most confident wrong tag first."""
    overlap = 2 * outcomes[:, CORRECT] / np.maximum(1, outcomes[:, GOLD] + outcomes[:, FOUND])
    wrong = np.flatnonzero((outcomes[:, CORRECT] < outcomes[:, GOLD]) | (outcomes[:, CORRECT] < outcomes[:, FOUND]))
    sure = {}
    for number in wrong.tolist():
        differs = np.array(examples.tags[number]) != np.array(answers.tags[number])
        sure[number] = float(answers.sureness[number][differs].max())
    order = sorted(sure, key=lambda number: (overlap[number], -sure[number], number))
    return [_describe(number, examples, answers, 100 * float(overlap[number]), sure[number]) for number in order]


def _describe(number: int, examples: NerDevSet, answers: NerAnswers, f1: float, sureness: float) -> NerMistake:
    words = examples.tokens[number]
    gold, predicted = find_entities(examples.tags[number]), find_entities(answers.tags[number])
    differing = sorted(set(gold) ^ set(predicted), key=lambda entity: (entity.first, entity.last, entity.type))
    first, last = 0, len(words)
    if last > 2 * AROUND:
        first, last = max(0, differing[0].first - AROUND), min(last, differing[0].last + AROUND)
    cut = Piece("…", "", "")
    pieces = [cut] * (first > 0) + split_pieces(words, gold, predicted, first, last) + [cut] * (last < len(words))
    missed, invented = (
        [(" ".join(words[entity.first : entity.last]), entity.type) for entity in entities if entity not in others]
        for entities, others in ((gold, predicted), (predicted, gold))
    )
    return NerMistake(number, examples.names[number], pieces, missed, invented, f1, sureness)


def split_pieces(
    words: Sequence[str], gold: Sequence[Entity], predicted: Sequence[Entity], first: int, last: int
) -> list[Piece]:
    """Return the words first to last - 1, split at the boundaries of entities."""
    gold_at, predicted_at = (
        {position: entity for entity in entities for position in range(entity.first, entity.last)}
        for entities in (gold, predicted)
    )
    made = []
    for (label, answer), positions in groupby(
        range(first, last), lambda position: (gold_at.get(position), predicted_at.get(position))
    ):
        text = " ".join(words[position] for position in positions)
        exact = label is not None and label == answer
        made.append(Piece(text, label.type if label else "", answer.type if answer else "", exact))
    return made
