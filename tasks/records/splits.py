"""Subsets of examples: a development set split off from training examples, and a random sample.

Both depend only on the seed and keep the order of the file. Development examples whose labels cannot distinguish a good
model from a bad one are refused.
"""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ipu_model.core.units import shorten
from tasks.records.parquet import read_batches
from tasks.rows.held_out import choose_groups
from tasks.stage.errors import InputError

_SIGNS = re.compile(r"[\W_]+")
SEEN = (
    "a score on them says nothing about new ones. Name another development file, or none, so that some examples are "
    "set aside; {}=1 permits it"
)
"""Consequence of development examples that are training examples, and the options; {} is the key of the limit."""
READ_AT_ONCE, STAGE = 4096, "examples"
Groups = Sequence[tuple[str, tuple[str, ...]]]
"""Possible groupings of examples: the name, and the columns in which the examples of a group are equal."""


class DevSplit(NamedTuple):
    """Size of a development set that was split off."""

    grouping: str
    examples: int
    total: int
    """Number of examples before the split."""


def split_off_dev(
    train: Path, dev: Path, groups: Groups, fraction: float, seed: int, keys: tuple[str, str]
) -> DevSplit:
    """Move about a `fraction` of the examples in the Parquet file `train` to `dev`: whole groups, chosen by hash.

    Args:
        groups: groupings to try, at least one; the first with two or more groups is used.
        keys: parameters that set the fraction and name a development file, for messages.

    Raises:
        InputError: all examples belong to one group.
    """
    for grouping in groups:
        by, columns = grouping
        batches = read_batches(train, columns, READ_AT_ONCE, STAGE)
        counts = Counter(group for batch in batches for group in _hash_groups(batch, columns))
        if len(counts) > 1:
            break
    else:
        raise InputError(
            f"{keys[0]}={fraction:g}: no development set can be split off, because all {counts.total():,} training "
            f"examples have the same {by}. Add training examples, or name development examples in {keys[1]}"
        )
    chosen = choose_groups(counts, fraction, f"dev {by} {seed}", keys[0])
    _write(train, dev, lambda batch, _: np.array([group in chosen for group in _hash_groups(batch, columns)]))
    _write(train, train, lambda batch, _: np.array([group not in chosen for group in _hash_groups(batch, columns)]))
    return DevSplit(by, sum(counts[group] for group in chosen), counts.total())


def sample_examples(path: Path, limit: int, seed: int) -> int:
    """Keep a uniform random sample of at most `limit` examples of a Parquet file; return how many there were."""
    total: int = pq.read_metadata(path).num_rows
    if total > limit:
        mask = np.zeros(total, dtype=bool)
        mask[np.random.default_rng(seed).choice(total, limit, replace=False)] = True
        _write(path, path, lambda batch, first: mask[first : first + len(batch)])
    return total


def _hash_groups(batch: pa.RecordBatch, columns: Sequence[str]) -> Iterator[str]:
    """Yield the group of each example, as a hash of fixed length."""
    for values in zip(*(batch.column(name).to_pylist() for name in columns), strict=True):
        yield hashlib.blake2b(json.dumps(values).encode("ascii"), digest_size=16).hexdigest()


def _write(source: Path, target: Path, select: Callable[[pa.RecordBatch, int], np.ndarray]) -> None:
    """Write the examples for which `wanted` is true; it gets a batch and the number of its first example."""
    partial, first = target.with_suffix(".part"), 0
    with pq.ParquetWriter(partial, pq.read_schema(source), compression="zstd") as writer:
        for batch in read_batches(source, None, READ_AT_ONCE, STAGE):
            writer.write_batch(batch.filter(pa.array(select(batch, first), pa.bool_())))
            first += len(batch)
    partial.rename(target)


def fold_texts(*texts: str | None) -> str:
    """Return the letters and digits of an example's texts in lower case, or the texts if they have none."""
    joined = "\n".join(text or "" for text in texts)
    return _SIGNS.sub("", joined.casefold()) or joined


class CommonExamples(NamedTuple):
    """Development examples that are also training examples."""

    seen: int
    total: int
    """Number of development examples."""
    share: float
    """Share of the development examples that are training examples, or of the training examples that are development
    examples, whichever is smaller: near 1 if both are one file."""

    @classmethod
    def find(cls, train: np.ndarray, dev: np.ndarray) -> "CommonExamples":
        """Count equal numbers, one for each example."""
        seen, back = np.isin(dev, train), np.isin(train, dev)
        return cls(int(seen.sum()), len(seen), float(min(seen.mean(), back.mean())) if len(seen) and len(back) else 0.0)

    def describe(self, what: str) -> str:
        """Return how many there are; `what` names an example."""
        return f"{self.seen:,} of {self.total:,} development {what}s are also training {what}s"


def require_several_labels(labels: Collection[str | float], split: str, look: str) -> None:
    """Refuse development examples whose distinct `labels` are one: a constant prediction would be always right.

    The message advises to `look` at the parameters that name the source of the split.
    """
    if len(labels) == 1:
        raise InputError(
            f"all {split} examples have the label {next(iter(labels))}, so no score on them can tell a good model from "
            f"a bad one. Examples of at least two labels are required: check {look}"
        )


def require_known_labels(known: Collection[str], labels: Collection[str], split: str, look: str) -> None:
    """Refuse development examples whose `labels` are all unknown to training; for `look` see require_several_labels."""
    if labels and set(labels).isdisjoint(known):
        raise InputError(
            f"no {split} example has a class of the training examples: found {shorten(sorted(labels), 5)}, training "
            f"has {shorten(sorted(known), 5)}. Both need the same class names: check {look}"
        )
