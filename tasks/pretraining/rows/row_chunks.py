"""Texts of a shard in chunks: the pieces that are tokenized, paired and packed at a time."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import NamedTuple

from tasks.pretraining.rows.row_shards import PARTS, TRAINING, Shard, texts_of
from tasks.project.row_folders import HELD_OUT

CHUNK_DOCUMENTS = 2048
"""Documents per chunk at most. Another number gives other rows, so it is no parameter."""
CHUNK_CHARACTERS = 1 << 20
"""A chunk ends with the document that reaches this many characters (about 250,000 tokens)."""
LAST_CHUNK_DOCUMENTS = 16
"""A last chunk of fewer documents joins the one before: random next sentences need documents to draw from."""


def sizes() -> list[int]:
    """The numbers that decide where chunks end."""
    return [CHUNK_DOCUMENTS, CHUNK_CHARACTERS, LAST_CHUNK_DOCUMENTS]


class Item(NamedTuple):
    """A chunk on its way to become rows."""

    shard: int
    part: str
    number: int
    """The chunk's number; no other of the corpus and part has it."""
    texts: list[str]


def read_items(shard: Shard, held_out: Callable[[str], bool]) -> Iterator[Item]:
    """The texts of a shard in chunks, those that are held out apart from the others."""
    cutters = {part: _Cutter() for part in PARTS}
    numbers = {part: itertools.count(shard.number << 32) for part in PARTS}
    for text in texts_of(shard):
        part = HELD_OUT if held_out(text) else TRAINING
        if (chunk := cutters[part].add(text)) is not None:
            yield Item(shard.number, part, next(numbers[part]), chunk)
    for part, cutter in cutters.items():
        for chunk in cutter.rest():
            yield Item(shard.number, part, next(numbers[part]), chunk)


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
