"""Search for near-duplicates of development examples in training data of any size.

The development texts are indexed in memory by MinHash (tasks/records/minhash.py), with bands that miss fewer than one
pair in a thousand at the threshold; many texts are looked up together. Pairs that share a band are compared exactly, so
there are no false positives.

Legend: m texts, k pairs or runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tasks.records.duplicate_report import Duplicate, NearDuplicateReport, PairExcerpt, SourceReport
from tasks.records.minhash import (
    PERMUTATIONS,
    NormalizedLetters,
    Shingles,
    choose_bands,
    extract_letters,
    hash_bands,
    hash_runs,
    jaccard_similarity,
    make_shingles,
    make_signatures,
)
from tasks.records.parquet import list_corpus_files, split_into_groups
from tasks.stage.parallel import StageProgress, ordered_map, useful_workers
from tasks.validation import text_features
from tasks.validation.text_features import FilePart, plan_parts

ERRORS = 4
"""Standard errors by which a pair's estimated similarity may be below the threshold."""
RUN = 32
"""Letters that a piece of a document must share with a text to be compared with it."""
STRIDE = 8
"""Distance between the runs of a document that are looked up; RUN + STRIDE - 1 equal letters are always found."""
_TABLE_BITS = (16, 27)
Name = TypeVar("Name")
Read = Callable[[str], Iterator[Sequence[str]]]
"""Name of a split -> batches of the texts of its examples."""
TRAINING, TEXT = "training examples", "pre-training text"
BATCH_TEXTS, BATCH_CHARACTERS = 1 << 16, 1 << 20
"""Texts and characters from which the shingles of a batch are made: about 60 MB of memory. A longer text is compared by
its first BATCH_CHARACTERS."""
LEAST_BYTES = 64 << 20
"""Text that is worth the start of further processes: it takes about 3 s on one core."""
MAX_SHOWN = 10
"""Pairs of a source that the page shows."""
EXCERPT = 1200


@dataclass(frozen=True)
class Match:
    """A near-duplicate of an indexed text."""

    other: int
    """Number of the text that was looked up."""
    text: int
    similarity: float


class NearDuplicateIndex:
    """MinHash index of texts."""

    def __init__(self, texts: Sequence[str], threshold: float) -> None:
        """Index distinct texts; the Jaccard similarity `threshold` is above 0 and up to 1."""
        self.letters = extract_letters(texts)
        self._shingles = make_shingles(self.letters)
        self._threshold = threshold
        self._least = threshold - ERRORS * math.sqrt(threshold * (1 - threshold) / PERMUTATIONS)
        self._bands, self._rows = choose_bands(threshold)
        self._signatures = make_signatures(self._shingles)
        keys = hash_bands(self._signatures, self._bands, self._rows)
        self._order = np.argsort(keys, axis=0, kind="stable")
        self._sorted = np.take_along_axis(keys, self._order, axis=0)

    def _candidates(self, signed: np.ndarray) -> np.ndarray:
        """Return the pairs that share a band, as numbers of looked-up and indexed texts. [k, 2], ascending."""
        keys, pairs = hash_bands(signed, self._bands, self._rows), [np.zeros((0, 2), np.int64)]
        for band in range(self._bands):
            first = np.searchsorted(self._sorted[:, band], keys[:, band], "left")
            counts = np.searchsorted(self._sorted[:, band], keys[:, band], "right") - first
            other = np.repeat(np.arange(len(keys)), counts)
            position = np.arange(len(other)) + np.repeat(first - np.cumsum(counts) + counts, counts)
            pairs.append(np.stack([other, self._order[position, band]], axis=1))
        return np.unique(np.concatenate(pairs), axis=0)

    def matches(self, others: Shingles) -> Iterator[Match]:
        """Yield the near-duplicates among other texts, in order of their numbers and those of indexed texts."""
        signed = make_signatures(others)
        pairs = self._candidates(signed)
        alike = (signed[pairs[:, 0]] == self._signatures[pairs[:, 1]]).mean(axis=1)
        for other, text in pairs[alike >= self._least].tolist():
            hashes, asked = others.for_text(other), self._shingles.for_text(text)
            if len(hashes) and len(asked) and (similarity := jaccard_similarity(hashes, asked)) >= self._threshold:
                yield Match(other, text, similarity)


class PieceFinder:
    """Finder of pieces of documents that may be near-duplicates of a text.

    A document is skipped unless it shares a run of letters with a text. Otherwise the pieces are the parts of the
    document that align with the text where the common runs align. So texts are found in documents of any length.
    """

    def __init__(self, letters: NormalizedLetters) -> None:
        """Index all runs of the texts."""
        self._lengths = np.diff(letters.bounds)
        starts, owner = _find_runs(letters, 1)
        kept = ~self.too_short[owner]
        starts, owner = starts[kept], owner[kept]
        hashes = hash_runs(letters, starts, RUN)
        order = np.argsort(hashes, kind="stable")
        self._hashes, self._owner = hashes[order], owner[order]
        self._offset = (starts - letters.bounds[owner])[order]
        low, high = _TABLE_BITS
        bits = min(high, max(low, (16 * len(hashes)).bit_length()))
        self._mask = np.uint64((1 << bits) - 1)
        # A table lookup takes a tenth of a search among all runs, and rules out nearly all of a document.
        self._table = np.zeros(1 << bits, np.bool_)
        self._table[self._hashes & self._mask] = True

    @property
    def too_short(self) -> np.ndarray:
        """Texts that are not searched for, because copies of so few letters might be missed. bool [m]."""
        return self._lengths < RUN + STRIDE - 1

    def find(self, documents: NormalizedLetters) -> list[tuple[int, int, int]]:
        """Return (document, first letter, end) of each piece."""
        hits = self._hits(documents)
        pieces: list[tuple[int, int, int]] = []
        for group in np.split(hits, np.flatnonzero(np.diff(hits[:, :2], axis=0).any(axis=1)) + 1):
            if len(group):
                document, owner = group[0, :2].tolist()
                low, high = documents.bounds[document : document + 2].tolist()
                spans = _find_spans(group[:, 2], group[:, 3], int(self._lengths[owner]))
                pieces += [(document, max(low, first), min(high, last)) for first, last in spans]
        return list(dict.fromkeys(pieces))

    def _hits(self, documents: NormalizedLetters) -> np.ndarray:
        """Return document, text, first letter in the documents and first letter in the text of common runs. [k, 4]."""
        starts, owner = _find_runs(documents, STRIDE)
        hashes = hash_runs(documents, starts, RUN)
        seen = np.flatnonzero(self._table[hashes & self._mask])
        if not len(seen):
            return np.zeros((0, 4), np.int64)
        position = np.minimum(np.searchsorted(self._hashes, hashes[seen]), len(self._hashes) - 1)
        same = np.flatnonzero(self._hashes[position] == hashes[seen])
        seen, position = seen[same], position[same]
        matches = np.stack([owner[seen], self._owner[position], starts[seen], self._offset[position]], axis=1)
        return matches[np.lexsort(matches.T[2::-1])]


def _find_spans(starts: np.ndarray, offsets: np.ndarray, length: int) -> set[tuple[int, int]]:
    """Return possible (first letter, end) of a text of `length` letters in a document.

    Each end is tried at the outermost common run, and as far beyond it as the text extends. The former is right if the
    document lacks that end of the text, the latter if it has other words there. The common runs begin at `starts` in
    the document, [k] ascending, and at `offsets` in the text, [k].
    """
    places, votes = np.unique(starts - offsets, return_counts=True)
    # Insertions and deletions between two runs shift the second; runs that are farther away are another occurrence.
    near = np.abs(starts - offsets - places[votes.argmax()]) <= length // 4
    first, last = np.flatnonzero(near)[[0, -1]]
    ends = int(starts[last]) + RUN, int(starts[last] - offsets[last]) + length
    begins = int(starts[first]), int(starts[first] - offsets[first])
    return {(begin, end) for begin in begins for end in ends}


def _find_runs(letters: NormalizedLetters, stride: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the first letter and the text of every `stride`-th run of RUN letters."""
    lengths = np.diff(letters.bounds)
    counts = np.maximum(0, (lengths - RUN) // stride + 1)
    before = np.concatenate([[0], np.cumsum(counts)])
    owner = np.repeat(np.arange(len(lengths)), counts)
    starts = (np.arange(before[-1]) - before[owner]) * stride + letters.bounds[owner]
    return starts, owner


class DevelopmentTexts:
    """Distinct texts of all development examples."""

    def __init__(self, read: Read, splits: Sequence[str]) -> None:
        """Read the texts of these development sets."""
        by_text: dict[str, list[tuple[str, int]]] = {}
        for split in splits:
            for number, text in enumerate(text for batch in read(split) for text in batch):
                by_text.setdefault(text[:BATCH_CHARACTERS], []).append((split, number))
        self.splits, self.texts, self.examples = list(splits), list(by_text), list(by_text.values())
        """Names of the sets, the texts, and for each text the sets and numbers of the examples that have it."""


class SourceMatches:
    """Most similar near-duplicate of each text in one source of training data; of equally similar ones, the first."""

    def __init__(self) -> None:
        self.best: dict[int, tuple[float, str, str]] = {}
        """Number of the text -> similarity, name and excerpt of the near-duplicate."""

    def add(self, text: int, similarity: float, name: str, other: str) -> None:
        """Add a near-duplicate if it is more similar than the present one."""
        if text not in self.best or similarity > self.best[text][0]:
            self.best[text] = (similarity, name, make_excerpt(other))

    def report(self, development: DevelopmentTexts, name: str, compared: int, passed_over: int) -> SourceReport:
        """Return the report, with excerpts of up to MAX_SHOWN pairs, evenly spread from most to least similar."""
        examples, splits = development.examples, development.splits
        pairs = {
            text: [Duplicate(*example, round(similarity, 4), other) for example in examples[text]]
            for text, (similarity, other, _) in self.best.items()
        }
        every = [pair for group in pairs.values() for pair in group]
        ordered = sorted(every, key=lambda pair: (splits.index(pair.split), pair.example))
        ranked = sorted(self.best, key=lambda text: (-self.best[text][0], text))
        places = np.linspace(0, len(ranked) - 1, min(MAX_SHOWN, len(ranked))).round().astype(int)
        shown = [
            PairExcerpt(pairs[text][0], make_excerpt(development.texts[text]), self.best[text][2])
            for text in (ranked[position] for position in places.tolist())
        ]
        return SourceReport(name, compared, passed_over, tuple(ordered), tuple(shown))


def find_near_duplicates(
    read: Read, training: str, development: Sequence[str], corpus: Path | None, threshold: float, record: str
) -> NearDuplicateReport:
    """Search for near-duplicates of development examples in the training examples and the pre-training text.

    Args:
        corpus: folder of the pre-training text; None: there is none, or it is unknown.

    Raises:
        InputError: a file is missing or damaged.
    """
    examples = DevelopmentTexts(read, development)
    folder = None if corpus is None else corpus.absolute().parent  # all processes see it
    with TemporaryDirectory(prefix=".near-duplicates-", dir=folder) as scratch:
        texts = Path(scratch) / "texts.parquet"
        pq.write_table(pa.table({"text": pa.array(examples.texts, pa.large_string())}), texts)
        sources = [_search_training(examples, load_finder(texts, threshold).texts, read(training), record)]
        if corpus is not None:
            sources.append(_search_corpus(examples, texts, threshold, list_corpus_files(corpus)))
    load_finder.cache_clear()
    return NearDuplicateReport(threshold, tuple(sources))


def _search_training(
    examples: DevelopmentTexts, index: NearDuplicateIndex, batches: Iterable[Sequence[str]], record: str
) -> SourceReport:
    best, seen, before = SourceMatches(), set[int](), 0
    progress = StageProgress("near-duplicates in training", f"{record}s")
    for batch in ([text[:BATCH_CHARACTERS] for text in texts] for texts in batches):
        fresh: dict[int, tuple[int, str]] = {}
        keys = text_features.hash_strings(np.array(batch, dtype=object)).tolist()
        for number, (key, text) in enumerate(zip(keys, batch, strict=True), before):
            if key not in seen:
                fresh.setdefault(key, (number, text))
        seen.update(fresh)
        for group in _batch(fresh.values()):
            for match in index.matches(make_shingles(extract_letters([text for _, text in group]))):
                number, text = group[match.other]
                best.add(match.text, match.similarity, f"training {record} {number}", text)
        before += len(batch)
        progress.update(before)
    return best.report(examples, TRAINING, before, 0)


class DocumentFinder(NamedTuple):
    """Index of texts and of their pieces, and the characters of the longest text."""

    texts: NearDuplicateIndex
    pieces: PieceFinder
    overlap: int


@lru_cache(maxsize=1)
def load_finder(path: Path, threshold: float) -> DocumentFinder:
    """Return the index of the texts in a file, which each process makes once: it is too large to be sent."""
    texts = pq.read_table(path)["text"].to_pylist()
    index = NearDuplicateIndex(texts, threshold)
    return DocumentFinder(index, PieceFinder(index.letters), max(map(len, texts), default=0))


def search_part(path: Path, threshold: float, part: FilePart) -> tuple[int, SourceMatches]:
    """Return the number of documents of a part, and the near-duplicates in them of the texts in the file `path`."""
    finder, best, done = load_finder(path, threshold), SourceMatches(), 0
    for batch in text_features.read_text_batches(part.path, ["document_id", "text"], part.groups):
        ids, texts = (text_features.to_strings(batch.column(name)) for name in ("document_id", "text"))
        pairs = zip(ids, texts, strict=True)
        for group in _batch((name, piece) for name, text in pairs for piece in split_text(text, finder.overlap)):
            letters = extract_letters([text for _, text in group])
            cut = finder.pieces.find(letters)
            parts = [letters.codes[:0], *(letters.codes[first:last] for _, first, last in cut)]
            bounds = np.cumsum([*map(len, parts)])
            shingles = make_shingles(NormalizedLetters(np.concatenate(parts), bounds))
            for match in finder.texts.matches(shingles):
                number, first, last = cut[match.other]
                best.add(match.text, match.similarity, f"document {group[number][0]}", letters.text(first, last))
        done += len(ids)
    return done, best


def _search_corpus(examples: DevelopmentTexts, texts: Path, threshold: float, files: Sequence[Path]) -> SourceReport:
    best, done, parts = SourceMatches(), 0, plan_parts({path.name: path for path in files})
    progress = StageProgress("near-duplicates in text", "documents", sum(part.records for part in parts))
    workers = useful_workers(sum(part.bytes for part in parts), LEAST_BYTES)
    for documents, matches in ordered_map(partial(search_part, texts, threshold), parts, workers):
        for text, match in matches.best.items():
            best.add(text, *match)
        done += documents
        progress.update(done)
    too_short = np.flatnonzero(load_finder(texts, threshold).pieces.too_short).tolist()
    return best.report(examples, TEXT, done, sum(len(examples.examples[text]) for text in too_short))


def split_text(text: str, overlap: int) -> Iterator[str]:
    """Split a document into parts of about BATCH_CHARACTERS that overlap by at least `overlap` characters."""
    step = max(BATCH_CHARACTERS - overlap, BATCH_CHARACTERS // 2)
    for first in range(0, max(1, len(text) - overlap), step):
        yield text[first : first + step + overlap]


def _batch(texts: Iterable[tuple[Name, str]]) -> Iterator[list[tuple[Name, str]]]:
    """Yield named texts in batches whose shingles are made at a time."""
    return split_into_groups(texts, lambda item: len(item[1]), BATCH_TEXTS, BATCH_CHARACTERS)


def make_excerpt(text: str) -> str:
    """Return a text on one line, truncated to an excerpt."""
    line = " ".join(text.split())
    return line if len(line) <= EXCERPT else line[:EXCERPT] + " …"
