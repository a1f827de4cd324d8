"""Parts of examples that were read: a development set where none was given, and a sample where all is too much.

Both follow from the seed alone, and a part keeps the order of its file. Development examples that cannot tell a good
model from a bad one, by their labels, are refused.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ipu_model.units import shorten
from tasks.records.parquet import read_batches
from tasks.rows.held_out import choose_groups
from tasks.stage.errors import InputError

READ_AT_ONCE, STAGE = 4096, "examples"
Groups = Sequence[tuple[str, tuple[str, ...]]]
"""What examples may belong together by: its name, and the columns in which they are equal then."""


class Apart(NamedTuple):
    """What was set apart."""

    by: str
    """What stayed together."""
    examples: int
    of: int
    """All examples, before."""


def set_apart(train: Path, dev: Path, groups: Groups, fraction: float, seed: int, keys: tuple[str, str]) -> Apart:
    """Move about a `fraction` of the examples in the Parquet file `train` to `dev`: whole groups, by their hashes.

    Args:
        groups: the first of which there are two or more counts; at least one.
        keys: the parameters that state the fraction and name a development file, for messages.

    Raises:
        InputError: all examples belong together.
    """
    by, columns, counts = _grouping(train, groups)
    if len(counts) < 2:
        raise InputError(
            f"{keys[0]}={fraction:g} of the training examples cannot be set apart: all {counts.total():,} have the "
            f"same {by}; use more examples, or name others in {keys[1]}"
        )
    chosen = choose_groups(counts, fraction, f"dev {by} {seed}", keys[0])
    _write(train, dev, lambda batch, _: np.array([one in chosen for one in _names(batch, columns)]))
    _write(train, train, lambda batch, _: np.array([one not in chosen for one in _names(batch, columns)]))
    return Apart(by, sum(counts[one] for one in chosen), counts.total())


def _grouping(path: Path, groups: Groups) -> tuple[str, tuple[str, ...], Counter[str]]:
    """What examples belong together by, and how many there are in each group; the last one where all are one group."""
    for by, columns in groups:
        batches = read_batches(path, columns, READ_AT_ONCE, STAGE)
        counts = Counter(one for batch in batches for one in _names(batch, columns))
        if len(counts) > 1 or by == groups[-1][0]:
            return by, columns, counts
    raise AssertionError("a kind whose development examples may be set apart says what belongs together")


def sample(path: Path, limit: int, seed: int) -> int:
    """Keep at most `limit` examples of a Parquet file, any with the same chance; how many there were."""
    total: int = pq.read_metadata(path).num_rows
    if total > limit:
        kept = np.zeros(total, dtype=bool)
        kept[np.random.default_rng(seed).choice(total, limit, replace=False)] = True
        _write(path, path, lambda batch, first: kept[first : first + len(batch)])
    return total


def _names(batch: pa.RecordBatch, columns: Sequence[str]) -> Iterator[str]:
    """The group of each example, short however long its texts are."""
    for values in zip(*(batch.column(name).to_pylist() for name in columns), strict=True):
        yield hashlib.blake2b(json.dumps(values).encode("ascii"), digest_size=16).hexdigest()


def _write(source: Path, target: Path, wanted: Callable[[pa.RecordBatch, int], np.ndarray]) -> None:
    """The examples of which `wanted` is true, of a batch and the number of its first example."""
    partial, first = target.with_suffix(".part"), 0
    with pq.ParquetWriter(partial, pq.read_schema(source), compression="zstd") as writer:
        for batch in read_batches(source, None, READ_AT_ONCE, STAGE):
            writer.write_batch(batch.filter(pa.array(wanted(batch, first), pa.bool_())))
            first += len(batch)
    partial.rename(target)


def require_several(labels: Collection[str | float], split: str, look: str) -> None:
    """Refuse development examples that all have the same label: one constant answer is right for each of them.

    Args:
        labels: those that there are.
        split: for the message.
        look: the parameters that say where they come from.

    Raises:
        InputError: there is one.
    """
    if len(labels) == 1:
        raise InputError(
            f"all {split} examples have the label {next(iter(labels))}: no score on them tells a good model from a bad "
            f"one. Examples of two labels or more are required: look at {look}"
        )


def require_known(known: Collection[str], labels: Collection[str], split: str, look: str) -> None:
    """Refuse development examples whose classes are all unknown to the training examples.

    Args:
        known: the classes of the training examples.
        labels: those of the development examples.
        split, look: as `require_several`.

    Raises:
        InputError: none is known.
    """
    if labels and set(labels).isdisjoint(known):
        raise InputError(
            f"no {split} example has a class of the training examples ({shorten(sorted(known), 5)}): found "
            f"{shorten(sorted(labels), 5)}. The same names of classes are required in both: look at {look}"
        )
