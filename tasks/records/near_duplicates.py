"""Which development examples have a near-duplicate in what a model learnt from, as validate_examples found it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ipu_model.files import read_json, write_json
from tasks.stage.errors import InputError


@dataclass(frozen=True)
class Pair:
    """A development example and the text most like it."""

    split: str
    """The development set."""
    example: int
    """Its number in there, from 0."""
    similarity: float
    """Jaccard similarity of both, 0 to 1."""
    other: str
    """How people find the other text."""


@dataclass(frozen=True)
class Shown:
    """A pair with its texts, for people."""

    pair: Pair
    text: str
    other: str


@dataclass(frozen=True)
class Source:
    """What was found in one thing that a model learnt from."""

    name: str
    """The thing in words, such as training examples."""
    compared: int
    """How many texts of it were looked at."""
    passed_over: int
    """Development examples that were too short to be looked for."""
    pairs: tuple[Pair, ...]
    """One for each development example that has a near-duplicate, in their order."""
    shown: tuple[Shown, ...]

    def examples(self, split: str) -> list[int]:
        """Numbers of the examples of a development set that have a near-duplicate, rising."""
        return [pair.example for pair in self.pairs if pair.split == split]


@dataclass(frozen=True)
class Report:
    """All that was found."""

    threshold: float | None
    """The similarity from which two texts are near-duplicates; None: none were looked for."""
    sources: tuple[Source, ...] = ()


def write_report(path: Path, report: Report) -> None:
    """Write what was found."""
    write_json(path, asdict(report))


def read_report(path: Path, made_by: str) -> Report:
    """What was found.

    Args:
        made_by: the stage that writes it.

    Raises:
        InputError: missing or damaged.
    """
    try:
        values = read_json(path)
        return Report(values["threshold"], tuple(_source(one) for one in values["sources"]))
    except FileNotFoundError:
        raise InputError(f"{path} is not there; run the stage {made_by}") from None
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path} cannot be read ({error!r}); run the stage {made_by} again") from None


def _source(values: Mapping[str, Any]) -> Source:
    shown = tuple(Shown(Pair(**one["pair"]), one["text"], one["other"]) for one in values["shown"])
    return Source(**{**values, "pairs": tuple(Pair(**one) for one in values["pairs"]), "shown": shown})
