"""Named entities: what all stages know of them."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from tasks.downstream.task import DownstreamTask
from tasks.reading.labels import labels_of_rows


class Task(DownstreamTask):
    """Sentences, each word of which has a tag."""

    record: ClassVar[str] = "sentence"
    title: ClassVar[str] = "named entities"
    head: ClassVar[str] = "token_classification"
    row_kind: ClassVar[str] = "token_classification"

    def labels_of(self, rows: Path) -> tuple[str, ...]:
        """O, then B- and I- of every type of the training sentences."""
        return labels_of_rows(rows)
