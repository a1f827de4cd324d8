"""Shards of a corpus, the units that the stages of text preparation share between processes.

The boundaries of shards depend only on the row groups of the corpus. So a shard has the same bytes whichever process or
host reads it, and in whichever order.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING

from tasks.records.parquet import read_batches, read_group_sizes

if TYPE_CHECKING:
    import pyarrow as pa

SHARD_BYTES = 64 << 20
LEAST_SHARD_BYTES, SHARDS = 8 << 20, 256
"""Approximate text of a shard: a part of the corpus, from LEAST_SHARD_BYTES to SHARD_BYTES; a smaller rest at the end
joins the previous shard. A shard takes 3 to 50 s on one core, which is the most that a killed run loses. Other numbers
give other rows, so they are not parameters."""
_LINES, _SENTENCES = "lines", "sentences"
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


def plan_shards(files: Sequence[Path]) -> list[Shard]:
    """Divide a corpus into shards by the metadata of its Parquet files alone; errors are those of `read_batches`."""
    shards: list[Shard] = []
    groups = [
        (path, number, size) for path in files for number, size in enumerate(read_group_sizes(path, "text", "corpus"))
    ]
    left = sum(size.bytes for _, _, size in groups)
    least = min(SHARD_BYTES, max(LEAST_SHARD_BYTES, left // SHARDS))
    parts: list[tuple[Path, int]] = []
    documents = size_of_shard = 0
    for path, number, size in groups:
        parts.append((path, number))
        documents, size_of_shard, left = documents + size.rows, size_of_shard + size.bytes, left - size.bytes
        if size_of_shard >= least and left >= least:
            shards.append(Shard(len(shards), tuple(parts), documents, size_of_shard))
            parts, documents, size_of_shard = [], 0, 0
    if documents:
        shards.append(Shard(len(shards), tuple(parts), documents, size_of_shard))
    return shards


class SentenceLines(str):
    """Text of a document whose lines are sentences."""


def mark_lines(are_sentences: bool) -> dict[str, str] | None:
    """Return the metadata of a file of the corpus: whether a line of its texts is a sentence, or may have several."""
    return {_LINES: _SENTENCES} if are_sentences else None


def read_text_arrays(shard: Shard) -> Iterator[pa.StringArray]:
    """Yield the texts of a shard in order, in arrays of READ_AT_ONCE."""
    return (batch.column("text") for batch in _read_batches(shard))


def _read_batches(shard: Shard) -> Iterator[pa.RecordBatch]:
    for path, groups in itertools.groupby(shard.groups, key=itemgetter(0)):
        yield from read_batches(path, ["text"], READ_AT_ONCE, "corpus", [group for _, group in groups])


def read_texts(shard: Shard) -> Iterator[str]:
    """Yield the texts of a shard in order, with few in memory; "" for null. They are SentenceLines where `mark_lines`
    says so."""
    for batch in _read_batches(shard):
        metadata = batch.schema.metadata or {}
        make = SentenceLines if metadata.get(_LINES.encode()) == _SENTENCES.encode() else str
        for text in batch.column("text").to_pylist():
            yield make(text or "")
