"""What differs between kinds of downstream tasks, and nothing else; the stages beside this file are written once.

A kind is a folder beside this file, or shares one with kinds that differ from it by data. Its modules of the names
below have a class `Task` each, with one part of the protocol, so that a stage loads that part of that kind alone, and
another kind, or a new one, changes nothing for it:

    params     EntryParams             its sections of params.yaml, with their defaults: KINDS names the class
    about      DownstreamTask (here)   its names and its head: all that training and prediction need
    examples   ExamplesTask            how examples are read
    checks     ChecksTask              what is judged of them and of their rows
    rows       RowsTask                how they become sequences of rows
    scores     ScoresTask              how logits become answers, and what these score
    page       PageTask                what people see of an evaluation
    card       CardTask                what a release says
    apply      ApplyTask               how a finished model is used on a file: podium evaluate and podium predict

The other classes stand beside the stages that use them: examples.py, validate.py, rows.py, evaluate.py,
scoring/scores.py, applying/task.py and tasks/downstream/card.py. No stage depends on this file.
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, ClassVar

from tasks.params.entries import Entry
from tasks.stage import artifacts

TRAIN = "train"


class DownstreamTask(ABC):
    """One entry of downstream work, as its kind sees it."""

    record: ClassVar[str] = "example"
    """What one example is called."""

    def __init__(self, entry: Entry) -> None:
        self.entry = entry

    @property
    @abstractmethod
    def title(self) -> str:
        """The task in words, for pages and cards."""

    @property
    @abstractmethod
    def head(self) -> str:
        """The head of the model: a name that ipu_model knows."""

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the classes, in order of their numbers, that the model keeps; one for a value, none for spans."""
        return ()

    def labels_of(self, rows: Path) -> tuple[str, ...]:
        """`labels` of a model for the rows in this folder, where a kind keeps them that takes them from its data."""
        return self.labels

    @property
    @abstractmethod
    def row_kind(self) -> str:
        """The kind of its rows: one that ipu_model knows."""

    @property
    def released_below(self) -> str:
        """Where a released model's scores lie below the folder that the gate's parameters name."""
        return ""

    @property
    def development(self) -> tuple[str, ...]:
        """Names of the development sets."""
        return ("dev",)

    @property
    def predicted(self) -> tuple[str, ...]:
        """What the stage predict answers: the development sets, and HELD_OUT where a kind chooses something by it."""
        return self.development

    @property
    def splits(self) -> tuple[str, ...]:
        """Training, then the development sets."""
        return (TRAIN, *self.development)

    def examples_file(self, split: str, root: Path = Path()) -> Path:
        """Where the examples of a split lie."""
        return root / artifacts.examples_file(self.entry.name, split)

    def rows_folder(self, split: str, root: Path = Path()) -> Path:
        """Where the rows of a split lie; those of HELD_OUT are a part of training's."""
        if split == artifacts.HELD_OUT:
            return self.rows_folder(TRAIN, root) / split
        return root / artifacts.rows_folder(self.entry.name, split)


def part_of(entry: Entry, part: str) -> Any:
    """The `Task` of a module of the entry's kind: about, examples, checks, rows, scores, page or card."""
    return importlib.import_module(f"{entry.params.package()}.{part}").Task(entry)


def about(entry: Entry) -> DownstreamTask:
    """What all stages know of an entry."""
    found: DownstreamTask = part_of(entry, "about")
    return found
