"""Embeddings as answers: what a search with each anchor finds first, or the similarity of two texts, and its metrics.

The texts to find are the union of all positives and negatives of the development set, equal ones once. To an anchor
belong the positives of all examples with that anchor. Legend: N anchors, M texts, H numbers of an embedding.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ipu_model.core.files import find_object
from tasks.downstream.pairs.params import BEFORE, PairsParams
from tasks.downstream.pairs.schemas import SCORE, TEXTS, present_texts
from tasks.downstream.scoring.correlations import correlation
from tasks.downstream.scoring.logits import LogitsNotFinite
from tasks.downstream.scoring.metrics import Array, Metrics, mean_metric
from tasks.downstream.scoring.scores import Baseline, Limit, Scores, hash_texts
from tasks.records.parquet import read_batches
from tasks.stage import artifacts
from tasks.stage.errors import InputError

SHOWN, AT_ONCE = 10, 1024
"""Texts that a search returns, and anchors compared at a time."""
QUANTITIES = ("recall_1", "recall_10", "mrr_10", "ndcg_10")
TITLES = ("recall@1", "recall@10", "MRR@10", "NDCG@10")
Answer = Sequence[int] | float
"""Numbers of the texts found, the nearest first; or the similarity of a scored pair."""


@dataclass(frozen=True)
class PairsDevSet:
    """Anchors of a development set and the texts to find, or scored pairs, or single texts."""

    anchors: list[str]
    names: list[str]
    texts: list[str]
    """[M]; of scored pairs the second texts, [N]."""
    relevant: list[list[int]]
    """Numbers of the texts that belong to each anchor."""
    places: tuple[NDArray[np.int64], NDArray[np.int64]]
    """Numbers of the sequences of the anchors [N] and of the texts [M]."""
    targets: NDArray[np.float64]
    """[N] similarities; empty without."""


@dataclass(frozen=True)
class PairsAnswers:
    """Answers to a development set."""

    found: list[Answer]
    similarities: NDArray[np.float64]
    """[N, found] cosine similarities; [N, 1] of scored pairs."""
    vectors: NDArray[np.float32]
    """[N, H] embeddings of the anchors."""


@dataclass(frozen=True)
class PairsScores(Scores[PairsDevSet, NDArray[np.float32], PairsAnswers, Answer]):
    """Ranks of relevant texts, or similarities; a relevant text has gain 1."""

    before: Mapping[str, Sequence[Answer]] | None = None
    """Answers of the model before training by development set; None: unknown."""

    @property
    def is_scored(self) -> bool:
        """True if examples are scored pairs."""
        return self.entry.params_as(PairsParams).is_scored

    @property
    def record(self) -> str:
        return "pair" if self.is_scored else "anchor"

    @property
    def quantities(self) -> tuple[str, ...]:
        return ("target", "similarity") if self.is_scored else QUANTITIES

    def prepare(self, root: Path) -> Self:
        """Read the answers of the model before training, if the stage predict wrote its embeddings."""
        answers = dict[str, Sequence[Answer]]()
        for split in self.entry.development:
            before = f"before-{split}"
            if (root / artifacts.logits_file(self.entry.name, before)).is_file():
                answers[split] = self.predictions(self.answer(*self.read_split(split, root, before)))
        return replace(self, before=answers or None)

    def know_labels(self, root: Path) -> Self:
        """Read the answers of the model before training, which the stage evaluate wrote."""
        recorded = find_object(root / artifacts.EVALUATION / self.entry.name / BEFORE)
        return self if self.before or not recorded else replace(self, before=recorded)

    def read_examples(self, path: Path) -> PairsDevSet:
        made_by, columns = self.entry.stage("examples"), (*TEXTS, SCORE, "id")
        table = pa.Table.from_batches(read_batches(path, columns, 8192, made_by))
        if not len(table):
            raise InputError(f"{path} contains no pairs. Run the stage {made_by} again")
        batch = table.combine_chunks().to_batches()[0]
        present = present_texts(batch)
        texts, unit = [batch.column(name).to_pylist() for name in present], len(present)
        names, first = batch.column("id").to_pylist(), np.arange(len(batch)) * unit
        none = np.empty(0, np.int64)
        if unit == 1:
            return PairsDevSet(texts[0], names, [], [[] for _ in names], (first, none), none.astype(np.float64))
        if self.is_scored:
            targets = batch.column(SCORE).to_numpy().astype(np.float64)
            relevant = [[number] for number in range(len(batch))]
            return PairsDevSet(texts[0], names, texts[1], relevant, (first, first + 1), targets)
        numbers, places = dict[str, int](), list[int]()
        for role, column in enumerate(texts[1:], 1):
            for example, text in enumerate(column):
                if numbers.setdefault(text, len(numbers)) == len(places):
                    places.append(example * unit + role)
        belonging = defaultdict[str, dict[int, None]](dict)
        for anchor, positive in zip(*texts[:2], strict=True):
            belonging[anchor][numbers[positive]] = None
        relevant_sets, reached = [list(belonging[anchor]) for anchor in texts[0]], (first, np.array(places))
        return PairsDevSet(texts[0], names, list(numbers), relevant_sets, reached, none.astype(np.float64))

    def names(self, examples: PairsDevSet) -> Sequence[str]:
        return examples.names

    def keys(self, examples: PairsDevSet) -> list[str]:
        """Return hashes of the anchors with their texts; a search depends on all texts."""
        [union] = [""] if self.is_scored else hash_texts(["\n".join(sorted(examples.texts))])
        relevant_texts = ["\t".join(examples.texts[number] for number in numbers) for numbers in examples.relevant]
        return hash_texts(
            f"{anchor}\t{text}\n{union}" for anchor, text in zip(examples.anchors, relevant_texts, strict=True)
        )

    def read_logits(self, examples: PairsDevSet, rows: Path, logits: Path) -> NDArray[np.float32]:
        """Return the embeddings of all sequences, [sequences, H]."""
        stage = self.entry.stage("predict")
        try:
            with pa.OSFile(str(logits)) as source:
                column = pa.ipc.open_file(source).read_all()["embedding"].combine_chunks()
                vectors: NDArray[np.float32] = column.flatten().to_numpy().reshape(len(column), -1)
        except (pa.ArrowException, OSError, KeyError, ValueError) as error:
            raise InputError(f"{logits} cannot be read as embeddings ({error}). Run the stage {stage} again") from None
        last = max((int(places.max()) for places in examples.places if len(places)), default=0)
        if len(vectors) <= last:
            raise InputError(f"{logits} has embeddings of other texts. Run the stage {stage} again")
        if not np.isfinite(vectors).all():
            raise LogitsNotFinite(f"{logits} has values that are not finite. Run the stage {stage} again")
        return vectors

    def flat_logits(self, logits: NDArray[np.float32]) -> tuple[Array, NDArray[np.int64]]:
        return logits.reshape(-1).astype(np.float64), np.repeat(np.arange(len(logits)), logits.shape[1])

    def answer(self, examples: PairsDevSet, logits: NDArray[np.float32]) -> PairsAnswers:
        """Return the nearest texts of each anchor, of equal ones the first; or the similarity of each pair."""
        anchors, texts = (logits[numbers] for numbers in examples.places)
        if self.is_scored and len(texts):
            values = (anchors.astype(np.float64) * texts).sum(axis=1).round(7)
            return PairsAnswers(values.tolist(), values[:, None], anchors)
        ranked, similarities = list[Answer](), [np.empty((0, min(SHOWN, len(texts))))]
        for start in range(0, len(anchors) if len(texts) else 0, AT_ONCE):
            compared = anchors[start : start + AT_ONCE] @ texts.T
            order = np.argsort(-compared, axis=1, kind="stable")[:, :SHOWN]
            ranked += order.tolist()
            similarities.append(np.take_along_axis(compared, order, axis=1).astype(np.float64))
        return PairsAnswers(ranked, np.concatenate(similarities), anchors)

    def predictions(self, answers: PairsAnswers) -> Sequence[Answer]:
        return answers.found

    def margin(self, answers: PairsAnswers, number: int) -> float | None:
        """Return the lead of the first text over the second."""
        first = answers.similarities[number, :2].tolist()
        return None if self.is_scored or len(first) < 2 else round(first[0] - first[1], 6)

    def check_predictions(self, path: Path, split: str, examples: PairsDevSet, values: object) -> list[Answer | None]:
        """Check the numbers of texts, or similarities; null for an anchor without answer."""
        answers = list(values) if isinstance(values, list) else []
        count = len(examples.texts)
        for value in answers:
            right = isinstance(value, float | int) if self.is_scored else isinstance(value, list)
            if isinstance(value, list):
                right = len({*value}) == len(value) <= SHOWN and all(type(x) is int and 0 <= x < count for x in value)
            if value is not None and not right:
                raise InputError(f"{path}: {split} has {value!r:.60}, which is not an answer")
        if len(answers) != len(examples.anchors):
            raise InputError(f"{path} has {len(answers)} answers for {split}, which has {len(examples.anchors)}")
        return answers

    def outcomes(self, examples: PairsDevSet, predictions: Sequence[Answer | None]) -> Array:
        if self.is_scored:
            values = [-1.0 if prediction is None else prediction for prediction in predictions]
            return np.column_stack([examples.targets, np.array(values, np.float64)])
        rows = []
        for relevant, answer in zip(examples.relevant, predictions, strict=True):
            hits = np.isin(answer if isinstance(answer, list) else [], relevant)
            gains = 1 / np.log2(np.arange(2, SHOWN + 2))
            rank = int(hits.argmax()) + 1 if hits.any() else 0
            best = gains[: len(relevant)].sum()
            shares = [hits[:1].sum() / len(relevant), hits.sum() / len(relevant)]
            rows.append((*shares, 1 / rank if rank else 0.0, gains[: len(hits)][hits].sum() / best))
        return np.array(rows, np.float64).reshape(-1, len(QUANTITIES))

    @property
    def metrics(self) -> Metrics:
        if self.is_scored:
            return Metrics((correlation("spearman"), correlation("pearson")))
        named = zip(QUANTITIES, TITLES, strict=True)
        return Metrics(tuple(mean_metric(name, title, number) for number, (name, title) in enumerate(named)))

    @property
    def limits(self) -> tuple[Limit, ...]:
        names = ("spearman",) if self.is_scored else ("recall_1", "ndcg_10")
        return tuple(self.make_limit(name, f"min_{name}", "max_drop") for name in names)

    def is_possible(self, quantities: Sequence[float]) -> bool:
        return self.is_scored or all(0 <= quantity <= 1 for quantity in quantities)

    def baselines(self, examples: Mapping[str, PairsDevSet], rule: str = "") -> list[Baseline]:
        """Return the model before training, if it is known, and BM25."""
        baselines = list[tuple[str, Mapping[str, Sequence[Answer | None]]]]()
        if self.before is not None:
            path, before = artifacts.EVALUATION / self.entry.name / BEFORE, self.before
            checked = {
                split: self.check_predictions(path, split, dev_set, before.get(split))
                for split, dev_set in examples.items()
            }
            baselines.append(("the model before training", checked))
        if not self.is_scored and all(dev_set.texts for dev_set in examples.values()):
            baselines.append(("BM25", {split: search_words(dev_set) for split, dev_set in examples.items()}))
        return [Baseline(name, self.outcomes_of(examples, answers)) for name, answers in baselines]


def search_words(examples: PairsDevSet) -> list[Answer]:
    """Return what BM25 finds with each anchor (bm25s with its defaults, without stop words), of equal ones the first.

    A word that no text has finds nothing.
    """
    import bm25s

    texts = bm25s.tokenize(examples.texts, stopwords=None, show_progress=False)
    queries = bm25s.tokenize(examples.anchors, stopwords=None, show_progress=False, return_ids=False)
    index = bm25s.BM25(backend="numpy")
    index.index(texts, show_progress=False)
    answers = list[Answer]()
    for words in queries:
        known = [word for word in words if word in texts.vocab]
        scores = index.get_scores(known) if known else np.zeros(len(examples.texts))
        answers.append(np.argsort(-scores, kind="stable")[:SHOWN].tolist())
    return answers
