"""Chunks of the texts of a shard, in which pre-training rows are made."""

import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from typing import NamedTuple

from tasks.records.shards import Shard, read_texts
from tasks.stage.row_folders import HELD_OUT

CHUNK_DOCUMENTS = 2048
"""Documents per chunk at most. Another number gives other rows, so it is not a parameter."""
CHUNK_CHARACTERS = 1 << 20
"""Characters that close a chunk (about 250,000 tokens)."""
LAST_CHUNK_DOCUMENTS = 16
"""A last chunk with fewer documents joins the previous one: random next sentences need documents to draw from."""
TRAINING = "rows"
PARTS = (TRAINING, HELD_OUT)
Counts = Counter[str]
"""Counts of `documents`, of `skipped` documents without tokens, and of `tokens` before pairing; of `sentences`, of
`long` ones that no sequence holds, and of documents of a `single` one, or `filling` a sequence; and for WordPiece of
`words`, of `accented` ones, of `characters`, and of those in words that become [UNK], `unread`."""


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
