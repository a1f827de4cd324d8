"""evaluation/report.html of named entities: scores, scores by type and length, and the worst mistakes; one file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from tasks.downstream.evaluate import EvaluationView, PageTask
from tasks.downstream.ner import scores
from tasks.downstream.ner.logits import WordLogits
from tasks.downstream.ner.scores import CORRECT, ENTITY_METRICS, FOUND, GOLD, Answers, Examples, outcomes_of
from tasks.downstream.ner.tags import Entity, entities, parted
from tasks.downstream.scoring.metrics import Array, Metrics, Slice, by_name, sized
from tasks.pages.render import html_page

TYPE = "type"
WORST = 25
AROUND = 25
"""Words of a long sentence shown before and after its first mistake."""
_WORDS = ((5, "up to 5 words"), (10, "6-10 words"), (20, "11-20 words"), (40, "21-40 words"))


class Task(scores.Task, PageTask[Examples, WordLogits, Answers]):
    """Scores by type and by length of the sentences; the worst mistakes in their sentences."""

    def slices(self, split: str, examples: Examples, logits: WordLogits, outcomes: Array) -> Sequence[Slice]:
        predictions = self.predictions(self.answer(examples, logits))
        names, order = sized([len(words) for words in examples.tokens], _WORDS, "over 40 words")
        of_length = by_name("length", names, order, self.metrics, split, outcomes)
        return [*type_slices(examples.tags, predictions, logits.labels), *of_length]

    def page(self, found: EvaluationView[Examples, Answers]) -> str:
        [(split, examples)] = found.examples.items()
        mistakes = worst_mistakes(examples, found.answers[split], found.outcomes[split])
        return html_page(
            __file__,
            "ner.html.j2",
            title="Evaluation of named entities",
            metrics=found.metrics,
            note=found.note,
            near=found.near,
            titles=self.metrics.titles,
            types=[part for part in found.slices if part.by == TYPE],
            lengths=[part for part in found.slices if part.by != TYPE],
            mistakes=mistakes[:WORST],
            wrong=len(mistakes),
        )


def type_slices(gold: Sequence[Sequence[str]], predictions: Sequence[str | None], labels: Sequence[str]) -> list[Slice]:
    """Scores of every type that is there or was found, in order of the names, with counts of its entities and whether
    the training sentences have it.

    Args:
        labels: the classes of the model.
    """
    answered = [[] if text is None else text.split(" ") for text in predictions]
    learnt = {parted(label)[1] for label in labels}
    types = sorted({one.type for some in (gold, answered) for tags in some for one in entities(tags)})
    found = []
    for name in types:
        outcomes = outcomes_of(gold, predictions, only=name)
        gold_of_type, seen, correct = (int(outcomes[:, column].sum()) for column in (GOLD, FOUND, CORRECT))
        figures = Metrics(ENTITY_METRICS).figures({"dev": outcomes})
        counts = {"found": seen, "correct": correct, "learnt": name in learnt}
        found.append(Slice(TYPE, name, gold_of_type, figures, "gold", counts))
    return found


@dataclass(frozen=True)
class Piece:
    """Neighbouring words that are in the same entities."""

    text: str
    gold: str
    """Type of the entity that they are in; empty where they are in none."""
    found: str
    """Type of the entity that the model sees them in."""
    exact: bool = False
    """The model sees this very entity."""


@dataclass(frozen=True)
class Mistake:
    """A sentence whose entities were not all found, or not those alone."""

    number: int
    pieces: Sequence[Piece]
    missed: Sequence[tuple[str, str]]
    """Text and type of each entity that is there and was not found."""
    invented: Sequence[tuple[str, str]]
    """Text and type of each that was found and is not there."""
    sureness: float
    """Largest probability of a wrong tag."""


def worst_mistakes(examples: Examples, answers: Answers, outcomes: Array) -> list[Mistake]:
    """Sentences with wrong entities: lowest F1 first, then those with the wrong tag that the model was surest of."""
    overlap = 2 * outcomes[:, CORRECT] / np.maximum(1, outcomes[:, GOLD] + outcomes[:, FOUND])
    wrong = np.flatnonzero((outcomes[:, CORRECT] < outcomes[:, GOLD]) | (outcomes[:, CORRECT] < outcomes[:, FOUND]))
    sure = {}
    for number in wrong.tolist():
        differs = np.array(examples.tags[number]) != np.array(answers.tags[number])
        sure[number] = float(answers.sureness[number][differs].max())
    order = sorted(sure, key=lambda number: (overlap[number], -sure[number], number))
    return [_mistake(number, examples, answers.tags[number], sure[number]) for number in order]


def _mistake(number: int, examples: Examples, tags: Sequence[str], sureness: float) -> Mistake:
    words = examples.tokens[number]
    gold, found = entities(examples.tags[number]), entities(tags)
    differing = sorted(set(gold) ^ set(found), key=lambda one: (one.first, one.last, one.type))
    first, last = 0, len(words)
    if last > 2 * AROUND:
        first, last = max(0, differing[0].first - AROUND), min(last, differing[0].last + AROUND)

    def named(some: Sequence[Entity]) -> list[tuple[str, str]]:
        return [(" ".join(words[one.first : one.last]), one.type) for one in some]

    return Mistake(
        number,
        [Piece("…", "", "")] * (first > 0)
        + pieces(words, gold, found, first, last)
        + [Piece("…", "", "")] * (last < len(words)),
        named([one for one in gold if one not in found]),
        named([one for one in found if one not in gold]),
        sureness,
    )


def pieces(words: Sequence[str], gold: Sequence[Entity], found: Sequence[Entity], first: int, last: int) -> list[Piece]:
    """The words first to last - 1, parted wherever an entity begins or ends."""
    of_gold, of_found = ({place: one for one in some for place in range(one.first, one.last)} for some in (gold, found))
    made = []
    for (there, seen), places in groupby(range(first, last), lambda place: (of_gold.get(place), of_found.get(place))):
        text = " ".join(words[place] for place in places)
        exact = there is not None and there == seen
        made.append(Piece(text, there.type if there else "", seen.type if seen else "", exact))
    return made
