"""Reading of examples: what a kind does for stage examples, and for the check of the user's files before a run."""

import itertools
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import numpy as np

from tasks.params.downstream import OwnDataParams
from tasks.params.entries import TRAIN, Entry
from tasks.records.interpretation import Interpretation
from tasks.records.splits import CommonExamples, Groups

WHOLE_BYTES = 16 << 20
"""Files up to this size are read completely before a run, in about two seconds."""


@dataclass(frozen=True)
class CheckedFiles:
    """Findings of the check of the user's files before a run, or of the parameters alone."""

    summary: str = ""
    """Names of the files and a short description."""
    inputs: Mapping[str, Interpretation] = field(default_factory=dict)
    """Split -> interpretation of its file."""
    labels: tuple[str, ...] = ()
    """Classes of the training examples that were read, by number."""
    has_all_labels: bool = True
    """True if all training examples were read."""
    has_pairs: bool = False
    """True if the examples are known to be pairs of texts."""
    dev_count: int | None = None
    """Number of development examples, if all were read."""
    constant: tuple[str, float] | None = None
    """Most frequent class of these and its share; None: an answer is not one class."""
    seen: CommonExamples | None = None
    """Development examples that are also training examples; None: not all were read."""


@dataclass(frozen=True)
class Reader(ABC):
    """Reading of the examples of an entry."""

    entry: Entry
    groups: ClassVar[Groups]
    """Columns by which examples are grouped before a development set is set aside."""

    @abstractmethod
    def write_examples(self, folder: Path) -> str:
        """Read, check and write the examples to `folder`: a Parquet file for each of `source_splits`, and reading.json.
        Return a summary line.

        Raises:
            InputError: invalid examples, with their location.
        """

    def complete(self, folder: Path) -> dict[str, int]:
        """Write files that depend on the final splits, such as the list of classes.

        Returns:
            Remarks for users -> number of examples.

        Raises:
            InputError: a final split is unusable.
        """
        return {}

    @abstractmethod
    def check_files(self) -> CheckedFiles:
        """Check the user's files before a run.

        Raises:
            InputError: invalid files.
        """


def split_params(entry: Entry) -> OwnDataParams | None:
    """Return section `data` if the development set is taken from the training examples, else None."""
    data = entry.params.data
    return data if isinstance(data, OwnDataParams) and data.dev_is_apart else None


def source_splits(entry: Entry) -> tuple[str, ...]:
    """Return the splits that the user supplies."""
    return entry.splits if split_params(entry) is None else (TRAIN,)


def is_small(entry: Entry, split: str) -> bool:
    """Tell whether the file of a split is checked completely before a run."""
    data = entry.params.data
    if not isinstance(data, OwnDataParams) or data.source != "files":
        return False
    path = data.path_of(split)
    files = path.rglob("*") if path.is_dir() else (path,)
    return sum(file.stat().st_size for file in files if file.is_file()) <= WHOLE_BYTES


def assume_files(entry: Entry) -> CheckedFiles:
    """Return what the parameters alone say about the files; only a public task names its labels in advance."""
    labels = entry.params.labels if entry.params.released_below else ()
    return CheckedFiles(labels=labels, has_pairs=entry.params.reads_pairs)


def count_dev(entry: Entry, total: int) -> int:
    """Return the number of development examples, from that of the file that has them."""
    apart, limit = split_params(entry), entry.params.data.limit_dev
    count = total if apart is None else round(total * apart.dev_fraction)
    return count if limit is None else min(count, limit)


def count_seen(keys: Mapping[str, Sequence[str]]) -> CommonExamples | None:
    """Return the development examples that are also training examples; None if not known.

    Args:
        keys: split -> `fold_texts` of each example; only splits that were read as a whole.
    """
    train, dev = (keys.get(TRAIN, ()), [key for split, texts in keys.items() if split != TRAIN for key in texts])
    numbers = dict(zip({*train, *dev}, itertools.count()))
    encoded = (np.array([numbers[key] for key in part]) for part in (train, dev))
    return CommonExamples.find(*encoded) if train and dev else None


def most_frequent(classes: Counter[str]) -> tuple[str, float] | None:
    """Return the most frequent class and its share; None without classes."""
    if not classes:
        return None
    [(name, most)] = classes.most_common(1)
    return name, most / classes.total()
