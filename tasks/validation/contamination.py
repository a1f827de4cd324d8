"""Which development examples have a near-duplicate in what a model learnt from: training examples, text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np
import pyarrow.parquet as pq

from tasks.project.parallel import Progress
from tasks.reading.near_duplicates import Pair, Report, Shown, Source
from tasks.reading.parquet import corpus_files
from tasks.validation import text_features
from tasks.validation.near_duplicates import SHINGLE, NearDuplicates, Pieces, letters_of, pieces_as_texts, shingles_of

Name = TypeVar("Name")
Read = Callable[[str], Iterator[Sequence[str]]]
"""Name of a split -> the texts of its examples, some at a time."""
TRAINING, TEXT = "training examples", "pre-training text"
AT_ONCE = 1 << 20
"""Characters whose shingles are made at a time: some 60 MB of memory."""
SHOWN = 10
"""Pairs that people see of a source."""
EXCERPT = 1200
"""Characters of each of their texts."""


class Development:
    """The texts of all development examples, each different one once, and the best that was found for each."""

    def __init__(self, read: Read, splits: Sequence[str]) -> None:
        """Read the texts.

        Args:
            splits: names of the development sets.
        """
        self._examples: dict[str, list[tuple[str, int]]] = {}
        for split in splits:
            numbered = enumerate(text for batch in read(split) for text in batch)
            for number, text in numbered:
                self._examples.setdefault(text, []).append((split, number))
        self.texts = list(self._examples)
        self._order = {split: place for place, split in enumerate(splits)}

    def count(self, which: Iterable[int]) -> int:
        """How many examples have one of these texts."""
        return sum(len(self._examples[self.texts[text]]) for text in which)

    def source(self, name: str, compared: int, passed_over: int, best: Best) -> Source:
        """What was found in one thing that a model learnt from."""
        pairs = {text: self._pairs(text, best) for text in best.found}
        every = [pair for some in pairs.values() for pair in some]
        ordered = tuple(sorted(every, key=lambda pair: (self._order[pair.split], pair.example)))
        shown = tuple(
            Shown(pairs[text][0], short(self.texts[text]), short(best.found[text][2])) for text in best.spread(SHOWN)
        )
        return Source(name, compared, passed_over, ordered, shown)

    def _pairs(self, text: int, best: Best) -> list[Pair]:
        similarity, other, _ = best.found[text]
        return [Pair(*example, round(similarity, 4), other) for example in self._examples[self.texts[text]]]


class Best:
    """The nearest of the near-duplicates of each text; of equally near ones the first."""

    def __init__(self) -> None:
        self.found: dict[int, tuple[float, str, str]] = {}
        """Number of the text -> similarity, name and text of the other one."""

    def note(self, text: int, similarity: float, name: str, other: str) -> None:
        """Keep a near-duplicate, if it is the best so far."""
        if text not in self.found or similarity > self.found[text][0]:
            self.found[text] = (similarity, name, other)

    def spread(self, most: int) -> list[int]:
        """Some of the texts that were found, from the nearest to the farthest pair."""
        ranked = sorted(self.found, key=lambda text: (-self.found[text][0], text))
        places = np.linspace(0, len(ranked) - 1, min(most, len(ranked))).round().astype(int)
        return [ranked[place] for place in places.tolist()]


def contamination(
    read: Read, training: str, development: Sequence[str], corpus: Path | None, threshold: float, record: str
) -> Report:
    """Look for near-duplicates of development examples in all that a model learnt from.

    Args:
        training: name of the split of training.
        development: names of the development sets.
        corpus: folder of the text of pre-training; None: there was none, or it is not known.
        threshold: Jaccard similarity from which two texts are near-duplicates.
        record: what an example is called.

    Raises:
        InputError: a file is missing or damaged.
    """
    examples = Development(read, development)
    index = NearDuplicates(examples.texts, threshold)
    sources = [_in_training(examples, index, read(training), record)]
    if corpus is not None:
        sources.append(_in_text(examples, index, corpus_files(corpus)))
    return Report(threshold, tuple(sources))


def _in_training(examples: Development, index: NearDuplicates, batches: Iterable[Sequence[str]], record: str) -> Source:
    best, seen, before = Best(), set[int](), 0
    progress = Progress("near-duplicates in training", f"{record}s")
    for batch in batches:
        fresh: dict[int, str] = {}
        keys = text_features.hashes(np.array(batch, dtype=object)).tolist()
        for number, (key, text) in enumerate(zip(keys, batch, strict=True), before):
            if key not in seen:
                seen.add(key)
                fresh[number] = text
        for some in portions(list(fresh.items())):
            for match in index.matches(shingles_of(letters_of([text for _, text in some]), SHINGLE)):
                number, text = some[match.other]
                best.note(match.text, match.similarity, f"training {record} {number}", text)
        before += len(batch)
        progress.update(before)
    return examples.source(TRAINING, before, 0, best)


def _in_text(examples: Development, index: NearDuplicates, files: Sequence[Path]) -> Source:
    best, pieces, done = Best(), Pieces(index.letters), 0
    overlap = max(map(len, examples.texts), default=0)
    progress = Progress("near-duplicates in text", "documents", sum(pq.read_metadata(path).num_rows for path in files))
    for path in files:
        for batch in text_features.batches(path, ["document_id", "text"]):
            ids, texts = (text_features.strings(batch.column(name)) for name in ("document_id", "text"))
            named = [(name, part) for name, text in zip(ids, texts, strict=True) for part in parts(text, overlap)]
            for some in portions(named):
                _look_in(some, index, pieces, best)
            done += len(ids)
            progress.update(done)
    return examples.source(TEXT, done, examples.count(np.flatnonzero(pieces.too_short).tolist()), best)


def _look_in(documents: Sequence[tuple[str, str]], index: NearDuplicates, pieces: Pieces, best: Best) -> None:
    letters = letters_of([text for _, text in documents])
    cut = pieces.of(letters)
    for match in index.matches(pieces_as_texts(letters, cut)):
        document, first, last = cut[match.other]
        best.note(match.text, match.similarity, f"document {documents[document][0]}", letters.text(first, last))


def parts(text: str, overlap: int) -> Iterator[str]:
    """A document in parts of about AT_ONCE characters, so that what has `overlap` characters stands whole in one."""
    step = max(AT_ONCE - overlap, AT_ONCE // 2)
    for first in range(0, max(1, len(text) - overlap), step):
        yield text[first : first + step + overlap]


def portions(texts: Iterable[tuple[Name, str]]) -> Iterator[list[tuple[Name, str]]]:
    """Named texts, some at a time: no more than AT_ONCE characters, or one text."""
    some: list[tuple[Name, str]] = []
    size = 0
    for name, text in texts:
        if some and size + len(text) > AT_ONCE:
            yield some
            some, size = [], 0
        some.append((name, text))
        size += len(text)
    if some:
        yield some


def short(text: str) -> str:
    """A text as people see it: on one line, cut where it is long."""
    line = " ".join(text.split())
    return line if len(line) <= EXCERPT else line[:EXCERPT] + " …"
