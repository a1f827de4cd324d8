"""Shards of a corpus, the pieces in which pre-training rows are made, and the chunks that their texts are cut into.

Where a shard begins and ends follows from the row groups of the corpus alone, so that a shard has the same bytes
whatever process or host makes it, and whatever others were made before.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple

from tasks.records.parquet import read_batches, sizes_of_groups
from tasks.stage.row_folders import HELD_OUT

SHARD_BYTES = 64 << 20
"""Text of a shard, about; a smaller rest at the end joins the shard before. A shard takes 20 to 50 s on one core, and
no more than that is lost when a run is killed. Another number gives other rows, so it is no parameter."""
CHUNK_DOCUMENTS = 2048
"""Documents per chunk at most. Another number gives other rows, so it is no parameter."""
CHUNK_CHARACTERS = 1 << 20
"""A chunk ends with the document that reaches this many characters (about 250,000 tokens)."""
LAST_CHUNK_DOCUMENTS = 16
"""A last chunk of fewer documents joins the one before: random next sentences need documents to draw from."""
TRAINING = "rows"
PARTS = (TRAINING, HELD_OUT)
Counts = Counter[str]
"""What went into rows: `documents`, `skipped` ones that have no tokens, and `tokens` of the text, before pairing."""
READ_AT_ONCE = 256
"""Documents decoded from Parquet at a time."""


@dataclass(frozen=True)
class Shard:
    """Consecutive row groups of a corpus."""

    number: int
    groups: tuple[tuple[Path, int], ...]
    """File and the number of the row group in it, in reading order."""
    documents: int
    bytes: int
    """Bytes of text."""


def plan_shards(files: Sequence[Path]) -> list[Shard]:
    """The shards of a corpus, from what its Parquet files say of themselves: no text is read.

    Raises:
        InputError: a file cannot be read, or has no text.
    """
    shards: list[Shard] = []
    groups = [
        (path, number, size) for path in files for number, size in enumerate(sizes_of_groups(path, "text", "corpus"))
    ]
    left = sum(size.bytes for _, _, size in groups)
    taken: list[tuple[Path, int]] = []
    documents = size_of_shard = 0
    for path, number, size in groups:
        taken.append((path, number))
        documents, size_of_shard, left = documents + size.rows, size_of_shard + size.bytes, left - size.bytes
        if size_of_shard >= SHARD_BYTES and left >= SHARD_BYTES:
            shards.append(Shard(len(shards), tuple(taken), documents, size_of_shard))
            taken, documents, size_of_shard = [], 0, 0
    if documents:
        shards.append(Shard(len(shards), tuple(taken), documents, size_of_shard))
    return shards


def texts_of(shard: Shard) -> Iterator[str]:
    """The texts of a shard in order, few in memory at a time; "" for null."""
    for path, groups in itertools.groupby(shard.groups, key=itemgetter(0)):
        for batch in read_batches(path, ["text"], READ_AT_ONCE, "corpus", [group for _, group in groups]):
            for text in batch.column("text").to_pylist():
                yield text or ""


class Chunk(NamedTuple):
    """Texts of a shard that are tokenized, paired and packed together."""

    shard: int
    part: str
    number: int
    """No other chunk of the corpus and part has it."""
    texts: list[str]


def read_chunks(shard: Shard, held_out: Callable[[str], bool]) -> Iterator[Chunk]:
    """The texts of a shard in chunks, those that are held out apart from the others."""
    cutters = {part: _Cutter() for part in PARTS}
    numbers = {part: itertools.count(shard.number << 32) for part in PARTS}
    for text in texts_of(shard):
        part = HELD_OUT if held_out(text) else TRAINING
        if (texts := cutters[part].add(text)) is not None:
            yield Chunk(shard.number, part, next(numbers[part]), texts)
    for part, cutter in cutters.items():
        for texts in cutter.rest():
            yield Chunk(shard.number, part, next(numbers[part]), texts)


class _Cutter:
    """Cuts texts into chunks, whose borders depend on these texts alone. The newest is held back: the last may join."""

    def __init__(self) -> None:
        self._before: list[str] = []
        self._chunk: list[str] = []
        self._characters = 0

    def add(self, text: str) -> list[str] | None:
        """Take a text; gives a chunk that is complete now."""
        self._chunk.append(text)
        self._characters += len(text)
        if len(self._chunk) < CHUNK_DOCUMENTS and self._characters < CHUNK_CHARACTERS:
            return None
        complete, self._before = self._before, self._chunk
        self._chunk, self._characters = [], 0
        return complete or None

    def rest(self) -> list[list[str]]:
        """The chunks that are left after the last text."""
        if self._before and len(self._chunk) >= LAST_CHUNK_DOCUMENTS:
            return [self._before, self._chunk]
        return [self._before + self._chunk] if self._before or self._chunk else []
