"""Decoding of tags, and precision, recall and F1 of entities, computed as in conlleval.

The logits of a word are those of its first token in its own window. Legend: W words of all sentences, C classes, F
windows, N sentences.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import ClassVar

import numpy as np
import pyarrow as pa

from tasks.downstream.scoring.logits import FeatureFiles
from tasks.downstream.scoring.metrics import Array, Metrics, count_rates, ratio_metric
from tasks.downstream.scoring.scores import Baseline, Limit, Scores, hash_texts
from tasks.records.labels import read_parquet_labels
from tasks.records.parquet import read_columns
from tasks.records.tags import OUTSIDE, Entity, find_entities, find_problem
from tasks.stage import artifacts
from tasks.stage.errors import InputError


@dataclass(frozen=True)
class WordLogits:
    """Logits of a development set."""

    labels: tuple[str, ...]
    """Names of the C labels."""
    values: Array
    """float32[W, C]."""
    bounds: Array
    """int64[N + 1]: sentence n has the words bounds[n] to bounds[n + 1] - 1."""


def read_word_logits(files: FeatureFiles, words: Sequence[int]) -> WordLogits:
    """Join the windows of sentences (from tasks.downstream.ner.rows) with their logits.

    Raises:
        InputError: missing or damaged files, logits that are not finite, or windows of other sentences.
    """
    index = files.read_numbers("example_index", "n_tokens")
    labels, example, n_tokens = read_parquet_labels(files.features)[0], index["example_index"], index["n_tokens"]
    ordered = len(example) > 0 and example.min() >= 0 and example.max() < len(words) and (np.diff(example) >= 0).all()
    lists = next(files.read_lists("positions", [len(example)])) if ordered else pa.array([], pa.list_(pa.int32()))
    word_counts, positions = np.asarray(lists.value_lengths()), lists.flatten().to_numpy()
    if not ordered or not np.array_equal(np.bincount(example, word_counts, len(words)), words):
        raise files.refuse_rows("the windows do not match the sentences of the development set")
    if not ((positions > 0) & (positions < np.repeat(n_tokens, word_counts))).all():
        raise files.refuse_rows("invalid word positions")
    [[values]] = files.read_logits(("logits",), n_tokens * len(labels), [len(example)])
    first = np.cumsum(n_tokens) - n_tokens
    bounds = np.concatenate([[0], np.cumsum(words, dtype=np.int64)])
    return WordLogits(labels, values.reshape(-1, len(labels))[np.repeat(first, word_counts) + positions], bounds)


GOLD, WORDS, FOUND, CORRECT, RIGHT = range(5)
"""Columns of outcomes."""
READ_AT_ONCE = 16384


@dataclass(frozen=True)
class NerDevSet:
    """Sentences of a development set."""

    tokens: list[list[str]]
    tags: list[list[str]]
    """Tags in IOB2."""
    names: Sequence[str]
    """Names of the sentences."""


@dataclass(frozen=True)
class NerAnswers:
    """Predicted tags of every sentence, with probabilities."""

    tags: list[list[str]]
    sureness: list[Array]
    """Probability of the tag of each word."""
    margins: list[Array]
    """Lead of the logit of each word's tag over the runner-up."""
    leads: Array | None = None
    """Logits of all words minus that of the word's tag, float64[W, C]."""

    @cached_property
    def entities(self) -> list[list[Entity]]:
        """Predicted entities of each sentence."""
        return [find_entities(tags) for tags in self.tags]

    @cached_property
    def texts(self) -> list[str]:
        """Tags of each sentence, separated by spaces."""
        return [" ".join(tags) for tags in self.tags]


@dataclass(frozen=True)
class NerScores(Scores[NerDevSet, WordLogits, NerAnswers, str]):
    """Tags, scored by counts per sentence: true entities, words, predicted entities, correct entities, and correct
    tags."""

    quantities: ClassVar[tuple[str, ...]] = ("gold", "words", "found", "correct", "right")
    known_quantities: ClassVar[int] = 2

    def read_examples(self, path: Path) -> NerDevSet:
        made_by = self.entry.stage("examples")
        examples = NerDevSet(*read_columns(path, ("tokens", "tags", "id"), READ_AT_ONCE, made_by))
        if not examples.tokens:
            raise InputError(f"{path} contains no sentences. Run the stage {made_by} again")
        return examples

    def names(self, examples: NerDevSet) -> Sequence[str]:
        return examples.names

    def keys(self, examples: NerDevSet) -> list[str]:
        return hash_texts(map(json.dumps, zip(examples.tokens, examples.tags, strict=True)))

    def read_logits(self, examples: NerDevSet, rows: Path, logits: Path) -> WordLogits:
        files = FeatureFiles(rows / artifacts.FEATURES, logits, self.entry.stage)
        return read_word_logits(files, [len(words) for words in examples.tokens])

    def flat_logits(self, logits: WordLogits) -> tuple[Array, np.ndarray]:
        classes = logits.values.shape[1]
        sentence = np.repeat(np.arange(len(logits.bounds) - 1), np.diff(logits.bounds) * classes)
        return logits.values.reshape(-1).astype(np.float64), sentence

    def answer(self, examples: NerDevSet, logits: WordLogits) -> NerAnswers:
        """Return the most probable tag of each word, independent of its neighbours."""
        best = logits.values.argmax(axis=1)
        names, inner = np.array(logits.labels, dtype=object)[best], logits.bounds[1:-1]
        values = logits.values.astype(np.float64)
        odds = np.exp(values - values.max(axis=1, keepdims=True))
        first, second = np.sort(values, axis=1)[:, :-3:-1].T
        return NerAnswers(
            [tags.tolist() for tags in np.split(names, inner)],
            np.split(1 / odds.sum(axis=1), inner),
            np.split(first - second, inner),
            values - first[:, None],
        )

    def predictions(self, answers: NerAnswers) -> Sequence[str]:
        """Return the tags of each sentence, separated by spaces."""
        return answers.texts

    def margin(self, answers: NerAnswers, number: int) -> float | None:
        """Return the smallest margin of the words."""
        return round(float(answers.margins[number].min()), 4)

    def scaled_confidences(self, answers: NerAnswers) -> Callable[[float], Array]:
        """Return the probability of each predicted entity, the mean of those of its words; see `Scores`."""
        starts = np.cumsum([0, *map(len, answers.tags)])
        spans = [
            (at + entity.first, at + entity.last)
            for at, entities in zip(starts, answers.entities, strict=False)
            for entity in entities
        ]
        first, last = np.array(spans, dtype=np.int64).reshape(-1, 2).T
        words = np.concatenate([np.empty(0, np.int64), *(np.arange(*span) for span in spans)])
        bounds = np.cumsum(last - first) - (last - first)
        assert answers.leads is not None
        leads = answers.leads[words]

        def scaled(temperature: float) -> Array:
            sure = 1 / np.exp(leads / temperature).sum(axis=1)
            return np.add.reduceat(sure, bounds) / (last - first) if len(bounds) else sure

        return scaled

    def correctness(self, examples: NerDevSet, answers: NerAnswers, outcomes: Array) -> Array:
        """Return 1 for each predicted entity with the words and the type of a true one, else 0."""
        gold = [set(find_entities(tags)) for tags in examples.tags]
        right = [entity in true for true, entities in zip(gold, answers.entities, strict=True) for entity in entities]
        return np.array(right, dtype=np.float64)

    def check_predictions(self, path: Path, split: str, examples: NerDevSet, values: object) -> list[str | None]:
        """Check the tags of each sentence; null for a sentence without prediction."""
        texts = list(values) if isinstance(values, list) else []
        if len(texts) != len(examples.tokens):
            raise InputError(f"{path} has tags for {len(texts)} sentences of {split}, which has {len(examples.tokens)}")
        for name, words, text in zip(examples.names, examples.tokens, texts, strict=True):
            if text is None:
                continue
            tags = text.split(" ") if isinstance(text, str) else []
            if len(tags) != len(words) or any(map(find_problem, tags)):
                raise InputError(
                    f"{path}: sentence {name} of {split} has {text!r:.60}, {len(words)} tags (O, B-type or I-type), "
                    "separated by spaces, are required"
                )
        return texts

    def outcomes(self, examples: NerDevSet, predictions: Sequence[str | None]) -> Array:
        return count_outcomes(examples.tags, predictions)

    @property
    def limits(self) -> tuple[Limit, ...]:
        return (self.make_limit("f1", "min_f1", "max_f1_drop"),)

    def is_possible(self, quantities: Sequence[float]) -> bool:
        predicted, correct, right = quantities
        return (
            all(count >= 0 and count == int(count) for count in quantities)
            and correct <= predicted
            and correct <= right
        )

    def baselines(self, examples: Mapping[str, NerDevSet], rule: str = "") -> list[Baseline]:
        """Return predicting no entities."""
        nothing = {
            split: [" ".join([OUTSIDE] * len(words)) for words in dev_set.tokens] for split, dev_set in examples.items()
        }
        return [Baseline("predicting no entities", self.outcomes_of(examples, nothing))]

    @property
    def metrics(self) -> Metrics:
        return METRICS


def count_outcomes(gold: Sequence[Sequence[str]], predictions: Sequence[str | None], only: str | None = None) -> Array:
    """Return the counts of each sentence; a prediction of None has no entities and no correct tags.

    Args:
        gold: true tags of each sentence.
        predictions: predicted tags of each sentence, separated by spaces.
        only: count only entities of this type.
    """
    rows = []
    for tags, text in zip(gold, predictions, strict=True):
        answered = [] if text is None else text.split(" ")
        true, predicted = (
            {entity for entity in find_entities(sentence) if only in (None, entity.type)}
            for sentence in (tags, answered)
        )
        right = sum(tag == other for tag, other in zip(tags, answered, strict=False))
        rows.append((len(true), len(tags), len(predicted), len(true & predicted), right))
    return np.array(rows, dtype=np.float64).reshape(-1, 5)


def _extremes(outcomes: Array) -> tuple[Array, Array]:
    """Return an entirely wrong and an entirely correct sentence, with the mean numbers of entities and words of
    sentences with entities."""
    with_entities = outcomes[outcomes[:, GOLD] > 0]
    gold, words = (with_entities if len(with_entities) else np.ones((1, 2)))[:, [GOLD, WORDS]].mean(axis=0)
    return np.array([gold, words, gold, 0.0, 0.0]), np.array([gold, words, gold, gold, words])


ENTITY_METRICS = count_rates(lambda rows: (rows[:, GOLD], rows[:, FOUND], rows[:, CORRECT]), _extremes)
_TAG_ACCURACY = ratio_metric(
    "token_accuracy",
    "tag accuracy",
    lambda rows: rows[:, RIGHT],
    lambda rows: rows[:, WORDS],
    empty=0.0,
    extremes=_extremes,
)
METRICS = Metrics((*ENTITY_METRICS, _TAG_ACCURACY))
