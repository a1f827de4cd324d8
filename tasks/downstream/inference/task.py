"""What a kind of downstream task says of using a finished model on a file: its module `apply`."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa

from tasks.downstream.scoring.scores import A, E, L, ScoresTask
from tasks.records.text_files import Reading

ID = "id"
INPUT = "the file on the command line"
"""What messages call it where a run would name a parameter."""
UNKNOWN_TO_MODEL = "labels of classes that the model does not have, which count as wrong"
COLUMN = "--column {}=NAME"
"""What they say to set for a part that another column holds."""


class ApplyTask(ScoresTask[E, L, A]):
    """How records of a file without labels are read, and how answers become records."""

    architecture: ClassVar[str]
    """The class of transformers whose models it uses."""
    general: ClassVar[str] = ""
    """The word of `tasks_of` that fits any model of its architecture: words that know its classes come first."""
    bare: ClassVar[str] = ""
    """The field of a record that {id: answer} in a .json file holds; empty: there is no such file."""
    ranked: ClassVar[bool] = False
    """Whether a record can hold the n best answers."""
    endings: tuple[str, ...]
    """Of files that `unlabelled` reads."""
    labelled_endings: tuple[str, ...]
    """Of files that `write_labelled` reads."""

    @classmethod
    @abstractmethod
    def tasks_of(cls, labels: tuple[str, ...]) -> dict[str, dict[str, Any]]:
        """What a model with these classes may have been fine-tuned for.

        Returns:
            Word of --task -> what an entry states for it: its kind, and the options of that kind.
        """

    @classmethod
    def rows_within(cls, longest: int) -> dict[str, Any]:
        """Return the section `rows` of an entry for a model that takes fewer tokens than its defaults: `longest`."""
        return {"row_length": longest}

    @classmethod
    def stated_by(cls, folder: Path) -> dict[str, Any]:
        """Parameters by section that a model folder states beside config.json and its release's provenance.

        Raises:
            InputError: what it states cannot be used.
        """
        return {}

    @property
    @abstractmethod
    def examples_schema(self) -> pa.Schema:
        """Columns of the examples in Parquet, labels included."""

    @abstractmethod
    def unlabelled(self, path: Path, reading: Reading) -> Iterator[dict[str, Any]]:
        """The examples of a file, as `examples_schema` has them, with anything for labels; under "id" what the file
        calls each, where it does.

        Raises:
            InputError: what is wrong with them, with the place.
        """

    @abstractmethod
    def write_labelled(self, path: Path, target: Path, reading: Reading) -> None:
        """Check the examples of a file, and write them to the Parquet file `target`, as the stage examples does.

        Raises:
            InputError: what is wrong with them, with the place.
        """

    def write_beside(self, folder: Path, labels: Sequence[str]) -> None:
        """What the folder of the examples holds beside them, for a model with these classes."""

    @abstractmethod
    def record_schema(self, labels: Sequence[str], n_best: int) -> pa.Schema:
        """The fields of a record without its id."""

    @abstractmethod
    def records(self, examples: E, answers: A, n_best: int) -> Iterator[dict[str, Any]]:
        """The record of each example, in their order."""
