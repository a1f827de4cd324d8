"""What a kind of downstream task says of its examples to Great Expectations."""

from __future__ import annotations

from abc import abstractmethod
from pathlib import Path

from tasks.downstream.task import DownstreamTask
from tasks.validation.checks import DataSet


class ChecksTask(DownstreamTask):
    """What Great Expectations is to judge of examples."""

    @abstractmethod
    def data(self, folder: Path) -> DataSet:
        """The examples in `folder`, to be judged."""
