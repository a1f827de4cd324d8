"""Kind of downstream task: what it states, and its parts.

Parts are imported when they are used, so that parameters alone import none of them. No stage depends on this file.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Protocol

from tasks.params.downstream import EntryParams
from tasks.params.entries import Entry

if TYPE_CHECKING:
    from tasks.downstream.card import CardFacts
    from tasks.downstream.inference.job import Inference
    from tasks.downstream.packed_rows import Encoder
    from tasks.downstream.reading import Reader
    from tasks.downstream.scoring.report import Report
    from tasks.downstream.scoring.scores import Scores
    from tasks.validation.checks import DataSet
    from tasks.validation.row_checks import RowData, RowSource


class Kind(Protocol):
    """Kind of task: what it states, and its parts for an entry."""

    params: ClassVar[type[EntryParams]]
    """Class of the entries in params.yaml, with the defaults and what depends on parameters alone."""
    suffix: ClassVar[str]
    """End of the names of the transformers classes of its models."""
    is_fallback: ClassVar[bool] = False
    """True if any model of such a class fits; kinds that the names of its classes match take precedence."""

    def match_tasks(self, labels: tuple[str, ...], problem: str | None) -> dict[str, dict[str, object]]:
        """Return the tasks that a model with these classes may have been fine-tuned for.

        Args:
            problem: problem_type of its config.json; None if it has none.

        Returns:
            Value of --task -> parameters of its entry: the kind and the options of that kind.
        """

    def limit_rows(self, longest: int) -> dict[str, object]:
        """Return the section `rows` of an entry for a model that supports only `longest` tokens."""
        return {"row_length": longest}

    def read_params(self, folder: Path) -> dict[str, object]:
        """Return parameters by section from other files of a model folder than config.json and provenance.json.

        Raises:
            InputError: a file is malformed.
        """
        return {}

    def read_start(self, folder: Path) -> dict[str, object]:
        """Return the settings of a new entry that starts from this model folder, from other files than config.json:
        dotted name -> value.

        Raises:
            InputError: a file is malformed, or has parts of the model that would be lost.
        """
        return {}

    def recipe_for(self, train: Path, options: Mapping[str, object]) -> dict[str, object]:
        """Return the settings for this training file that differ from the defaults: dotted name -> value.

        Args:
            train: a file or folder; a Hub data set does not exist here.
            options: settings that only this kind has, and `columns`: part of an example -> name of its column.
        """
        return {}

    def reader(self, entry: Entry) -> Reader:
        """Return the reading of examples."""

    def example_data(self, entry: Entry, folder: Path) -> DataSet:
        """Return the checks of the examples in `folder`."""

    def encoder(self, entry: Entry) -> Encoder:
        """Return the conversion of examples to rows."""

    def row_data(self, source: RowSource) -> RowData:
        """Return the checks of the rows in one folder."""

    def scores(self, entry: Entry) -> Scores:
        """Return the decoding of logits, and scoring."""

    def report(self, entry: Entry) -> Report:
        """Return the report of an evaluation."""

    def inference(self, entry: Entry) -> Inference:
        """Return the reading of files without labels, and the conversion of answers to records."""

    def card(self, facts: CardFacts) -> str:
        """Return README.md of a release; see `tasks.downstream.card.write_card`."""
