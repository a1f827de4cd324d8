"""What a check says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "warning", "problem"]


@dataclass(frozen=True)
class Finding:
    """One line of `podium doctor`; a run is refused for every problem, and says the warnings."""

    name: str
    """What was looked at, in a word or two."""
    level: Level
    text: str
    """For a problem: what was found, what is required, and which parameter or setting to change."""
    of_parameters: bool = False
    """Whether the parameters are at fault, which is exit code 2, and not the host."""


def ok(name: str, text: str) -> Finding:
    """All is well."""
    return Finding(name, "ok", text)


def warning(name: str, text: str) -> Finding:
    """Worth a line, and no reason to refuse."""
    return Finding(name, "warning", text)


def problem(name: str, text: str, *, of_parameters: bool = False) -> Finding:
    """A reason to refuse."""
    return Finding(name, "problem", text, of_parameters)
