"""Base class for inference with a fine-tuned model of one kind."""

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa

from tasks.downstream.scoring.scores import A, E, L, ScoresTask
from tasks.records.text_files import ReadLog

ID = "id"
INPUT = "the file on the command line"
"""Name of the input in messages; a run would name a parameter."""
UNKNOWN_TO_MODEL = "labels unknown to the model, counted as wrong"
COLUMN = "--column {}=NAME"
"""Option that messages suggest for another column name."""


class InferenceTask(ScoresTask[E, L, A]):
    """Reading of unlabelled files, and conversion of answers to records."""

    suffix: ClassVar[str]
    """End of the names of the transformers classes of the supported models."""
    fallback_task: ClassVar[str] = ""
    """Key of `match_tasks` that fits any model of such a class; keys that match its classes take precedence."""
    answer_field: ClassVar[str] = ""
    """Field of a record that is the answer in a .json file of {id: answer}; empty: .json is not supported."""
    has_n_best: ClassVar[bool] = False
    """True if records can contain the n best answers."""

    @classmethod
    @abstractmethod
    def match_tasks(cls, labels: tuple[str, ...], problem: str | None) -> dict[str, dict[str, Any]]:
        """Return the tasks that a model with these classes may have been fine-tuned for.

        Args:
            problem: problem_type of its config.json; None if it has none.

        Returns:
            Value of --task -> parameters of its entry: the kind and the options of that kind.
        """

    @classmethod
    def limit_rows(cls, longest: int) -> dict[str, Any]:
        """Return the section `rows` of an entry for a model that supports only `longest` tokens."""
        return {"row_length": longest}

    @classmethod
    def read_params(cls, folder: Path) -> dict[str, Any]:
        """Return parameters by section from other files of a model folder than config.json and provenance.json.

        Raises:
            InputError: a file is malformed.
        """
        return {}

    @property
    @abstractmethod
    def examples_schema(self) -> pa.Schema:
        """Parquet schema of the examples, labels included."""

    @abstractmethod
    def read_unlabelled(self, path: Path, reading: ReadLog) -> Iterator[dict[str, Any]]:
        """Yield the examples of a file with the columns of `examples_schema`, placeholder labels, and "id" if there is
        one.

        Raises:
            InputError: invalid examples, with their location.
        """

    @abstractmethod
    def write_labelled(self, path: Path, target: Path, reading: ReadLog) -> None:
        """Check the examples of a file and write them to the Parquet file `target`, as stage `examples` does.

        Raises:
            InputError: invalid examples, with their location.
        """

    @abstractmethod
    def record_schema(self, labels: Sequence[str], n_best: int) -> pa.Schema:
        """Return the schema of a record without its id."""

    @abstractmethod
    def records(self, examples: E, answers: A, n_best: int) -> Iterator[dict[str, Any]]:
        """Yield the record of each example, in order."""
