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
LEAST_SHARD_BYTES, SHARDS = 8 << 20, 256
"""Approximate text of a shard: a part of the corpus, from LEAST_SHARD_BYTES to SHARD_BYTES; a smaller rest at the end
joins the previous shard. A shard takes 3 to 50 s on one core, which is the most that a killed run loses. Other numbers
give other rows, so they are not parameters."""
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
    least = min(SHARD_BYTES, max(LEAST_SHARD_BYTES, left // SHARDS))
    taken: list[tuple[Path, int]] = []
    documents = size_of_shard = 0
    for path, number, size in groups:
        taken.append((path, number))
        documents, size_of_shard, left = documents + size.rows, size_of_shard + size.bytes, left - size.bytes
        if size_of_shard >= least and left >= least:
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
    """Yield the texts of a shard in chunks, with held-out texts in separate chunks.

    A chunk depends only on its texts. It waits until the next one is complete, as the last may join it.
    """
    numbers = {part: itertools.count(shard.number << 32) for part in PARTS}
    waiting: dict[str, list[str]] = {part: [] for part in PARTS}
    current: dict[str, list[str]] = {part: [] for part in PARTS}
    characters = dict.fromkeys(PARTS, 0)
    for text in read_texts(shard):
        part = HELD_OUT if held_out(text) else TRAINING
        current[part].append(text)
        characters[part] += len(text)
        if len(current[part]) >= CHUNK_DOCUMENTS or characters[part] >= CHUNK_CHARACTERS:
            if waiting[part]:
                yield Chunk(shard.number, part, next(numbers[part]), waiting[part])
            waiting[part], current[part], characters[part] = current[part], [], 0
    for part in PARTS:
        joins = len(current[part]) < LAST_CHUNK_DOCUMENTS
        for texts in [waiting[part] + current[part]] if joins else [waiting[part], current[part]]:
            if texts:
                yield Chunk(shard.number, part, next(numbers[part]), texts)
