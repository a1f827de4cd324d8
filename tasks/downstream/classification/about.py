"""Classes, or values, of texts of one's own: what all stages know of them."""

from __future__ import annotations

from pathlib import Path

from tasks.downstream.labelled.about import LabelledTask
from tasks.reading.labels import labels_of_rows


class Task(LabelledTask):
    """Texts, or pairs of texts, with labels that the training file states."""

    @property
    def title(self) -> str:
        return "values of texts" if self.is_regression else "classes of texts"

    @property
    def is_regression(self) -> bool:
        return bool(self.entry.params.options["regression"])

    @property
    def labels(self) -> tuple[str, ...]:
        return ("value",) if self.is_regression else ()

    def labels_of(self, rows: Path) -> tuple[str, ...]:
        """The classes of the training examples, in order."""
        return self.labels or labels_of_rows(rows)
