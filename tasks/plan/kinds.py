"""Parts of the kinds of downstream tasks; each stage is written once and loads the parts that it needs.

A kind is a folder of tasks/downstream, such as squad; similar kinds share one. It has these modules, with a class that
is named after folder and module, such as `SquadRows` in squad/rows.py:

    params      EntryParams       sections of params.yaml with their defaults; KINDS names the class
    spec        DownstreamTask    names, labels and the head, for training and prediction
    examples    ExamplesTask      reading of examples
    checks      ChecksTask        validation of examples and rows
    rows        RowsTask          conversion of examples to rows
    scores      ScoresTask        decoding of logits, and scoring
    page        PageTask          report of an evaluation
    card        CardTask          model card
    inference   InferenceTask     podium evaluate and podium predict

The base classes are in the modules that use them: examples.py, checks.py, rows.py, evaluate.py, card.py,
scoring/scores.py and inference/job.py. No stage depends on this file.
"""

import importlib
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, ClassVar

from tasks.params.downstream import EntryParams
from tasks.params.entries import Entry
from tasks.stage import artifacts

TRAIN = "train"


class DownstreamTask(ABC):
    """Entry of a downstream task with the properties of its kind."""

    record: ClassVar[str] = "example"
    """Name of one example in messages."""
    label_table: ClassVar[str] = ""
    """Module of the package with labels that training writes, if any."""

    def __init__(self, entry: Entry) -> None:
        self.entry = entry

    @property
    @abstractmethod
    def title(self) -> str:
        """Name of the task for users."""

    @property
    @abstractmethod
    def head(self) -> str:
        """Head of the model, one of ipu_model's."""

    @property
    def labels(self) -> tuple[str, ...]:
        """Class names by number that the model stores; one for a value, none for spans."""
        return ()

    def labels_of(self, rows: Path) -> tuple[str, ...]:
        """Return the labels of a model for the rows in this folder; a kind may read them from the data."""
        return self.labels

    def class_weights(self, rows: Path) -> list[float] | None:
        """Return the weight of each class in the loss of training on the rows in this folder; None: all 1."""
        return None

    @property
    @abstractmethod
    def row_kind(self) -> str:
        """Kind of the rows, one of ipu_model's."""

    @property
    def released_below(self) -> str:
        """Subfolder of a released model's scores in the folder set by the gate's parameters."""
        return ""

    @property
    def development(self) -> tuple[str, ...]:
        """Names of the development sets."""
        return ("dev",)

    @property
    def predicted(self) -> tuple[str, ...]:
        """Splits that stage predict predicts: the development sets, and HELD_OUT if the kind needs it."""
        return self.development

    @property
    def decision_files(self) -> tuple[Path, ...]:
        """Files of the evaluation from which the gate decides the predictions again."""
        return ()

    @property
    def splits(self) -> tuple[str, ...]:
        """Names of the training set and the development sets."""
        return (TRAIN, *self.development)

    def examples_file(self, split: str, root: Path = Path()) -> Path:
        """Return the file with the examples of a split."""
        return root / artifacts.examples_file(self.entry.name, split)

    def rows_folder(self, split: str, root: Path = Path()) -> Path:
        """Return the folder with the rows of a split; HELD_OUT is a subfolder of the training rows."""
        if split == artifacts.HELD_OUT:
            return self.rows_folder(TRAIN, root) / split
        return root / artifacts.rows_folder(self.entry.name, split)


def part_class(params: type[EntryParams], part: str) -> Any:
    """Return the class of a part of a kind: `SquadRows` in squad/rows.py for part "rows", for example."""
    package = params.package()
    return getattr(importlib.import_module(f"{package}.{part}"), package.rpartition(".")[2].title() + part.title())


def load_part(entry: Entry, part: str) -> Any:
    """Return a part of the kind for an entry: spec, examples, checks, rows, scores, page, card or inference."""
    return part_class(type(entry.params), part)(entry)


def load_spec(entry: Entry) -> DownstreamTask:
    """Return the spec of the entry's kind."""
    return load_part(entry, "spec")
