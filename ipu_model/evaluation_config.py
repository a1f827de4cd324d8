"""What a training job evaluates on while it trains. Standard library only, as job.py."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional

from ipu_model.errors import ConfigError

KEPT = ("last", "best")


@dataclass(frozen=True)
class EvaluationConfig:
    """Held-out rows, how often the model is looked at on them, and what follows from it."""

    rows: str
    """Folder of packed rows that training never sees, of the same kind and tokenizer as the training rows."""
    every_updates: int
    """Updates between evaluations; one more follows the last update."""
    max_rows: Optional[int] = None
    """Rows looked at, at most, spread evenly over the folder; null: all."""
    keep: str = "last"
    """Which weights are the result: those of the last update, or the best of all evaluations (evaluation.goodness)."""
    patience: Optional[int] = None
    """Training stops after so many evaluations in a row that were not better than the best; null: never."""

    def __post_init__(self) -> None:
        if self.every_updates < 1:
            raise ConfigError(
                f"evaluation.every_updates={self.every_updates} must be at least 1; without, leave it out"
            )
        if self.keep not in KEPT:
            raise ConfigError(f"evaluation.keep={self.keep!r} is not one of {', '.join(KEPT)}")
        for name in ("max_rows", "patience"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"evaluation.{name}={value} must be at least 1, or null")
