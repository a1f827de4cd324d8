"""Texts with a class or a value each: what all stages know of them."""

from __future__ import annotations

from abc import abstractmethod

import numpy as np

from tasks.downstream.task import DownstreamTask


class LabelledTask(DownstreamTask):
    """A class, or a value, of a text or of a pair of them."""

    @property
    @abstractmethod
    def is_regression(self) -> bool:
        """Whether labels are values, not classes."""

    @property
    def answers(self) -> tuple[float, float]:
        """Smallest and largest number that an answer may be."""
        return (-np.inf if self.is_regression else 0, np.inf)

    @property
    def shared(self) -> str:
        return "tasks/downstream/labelled"

    @property
    def head(self) -> str:
        return "sequence_classification"

    @property
    def row_kind(self) -> str:
        return "sequence_regression" if self.is_regression else "sequence_classification"
