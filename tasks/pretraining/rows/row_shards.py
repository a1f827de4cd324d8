"""Shards of a corpus, the units in which pre-training rows are made, and the chunks of their texts.

The boundaries of shards depend only on the row groups of the corpus. So a shard has the same bytes whichever process or
host makes it, and in whichever order.
"""

import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple

from tasks.records.parquet import read_batches, read_group_sizes
from tasks.stage.row_folders import HELD_OUT

SHARD_BYTES = 64 << 20
"""Approximate text of a shard; a smaller rest at the end joins the previous shard. A shard takes 20 to 50 s on one
core, which is the most that a killed run loses. Another number gives other rows, so it is not a parameter."""
CHUNK_DOCUMENTS = 2048
"""Documents per chunk at most. Another number gives other rows, so it is not a parameter."""
CHUNK_CHARACTERS = 1 << 20
"""Characters that close a chunk (about 250,000 tokens)."""
LAST_CHUNK_DOCUMENTS = 16
"""A last chunk with fewer documents joins the previous one: random next sentences need documents to draw from."""
TRAINING = "rows"
PARTS = (TRAINING, HELD_OUT)
Counts = Counter[str]
"""Counts of `documents`, of `skipped` documents without tokens, and of `tokens` before pairing."""
READ_AT_ONCE = 256
"""Documents decoded from Parquet at a time."""


@dataclass(frozen=True)
class Shard:
    """Consecutive row groups of a corpus."""

    number: int
    groups: tuple[tuple[Path, int], ...]
    """Files and row group numbers, in reading order."""
    documents: int
    bytes: int
    """Bytes of text."""


def plan_shards(files: Sequence[Path]) -> list[Shard]:
    """Divide a corpus into shards, using only the metadata of its Parquet files.

    Raises:
        InputError: a file cannot be read, or has no text column.
    """
    shards: list[Shard] = []
    groups = [
        (path, number, size) for path in files for number, size in enumerate(read_group_sizes(path, "text", "corpus"))
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


def read_texts(shard: Shard) -> Iterator[str]:
    """Yield the texts of a shard in order, with few in memory; "" for null."""
    for path, groups in itertools.groupby(shard.groups, key=itemgetter(0)):
        for batch in read_batches(path, ["text"], READ_AT_ONCE, "corpus", [group for _, group in groups]):
            for text in batch.column("text").to_pylist():
                yield text or ""


class Chunk(NamedTuple):
    """Texts of a shard that are tokenized, paired and packed together."""

    shard: int
    part: str
    number: int
    """Unique number within the corpus and part."""
    texts: list[str]


def read_chunks(shard: Shard, held_out: Callable[[str], bool]) -> Iterator[Chunk]:
    """Yield the texts of a shard in chunks, with held-out texts in separate chunks."""
    cutters = {part: _ChunkCutter() for part in PARTS}
    numbers = {part: itertools.count(shard.number << 32) for part in PARTS}
    for text in read_texts(shard):
        part = HELD_OUT if held_out(text) else TRAINING
        if (texts := cutters[part].add(text)) is not None:
            yield Chunk(shard.number, part, next(numbers[part]), texts)
    for part, cutter in cutters.items():
        for texts in cutter.flush():
            yield Chunk(shard.number, part, next(numbers[part]), texts)


class _ChunkCutter:
    """Divider of texts into chunks, which depend only on these texts. It delays each chunk, as the last may join it."""

    def __init__(self) -> None:
        self._before: list[str] = []
        self._chunk: list[str] = []
        self._characters = 0

    def add(self, text: str) -> list[str] | None:
        """Add a text, and return a chunk if one is complete."""
        self._chunk.append(text)
        self._characters += len(text)
        if len(self._chunk) < CHUNK_DOCUMENTS and self._characters < CHUNK_CHARACTERS:
            return None
        complete, self._before = self._before, self._chunk
        self._chunk, self._characters = [], 0
        return complete or None

    def flush(self) -> list[list[str]]:
        """Return the remaining chunks after the last text."""
        if self._before and len(self._chunk) >= LAST_CHUNK_DOCUMENTS:
            return [self._before, self._chunk]
        return [self._before + self._chunk] if self._before or self._chunk else []
