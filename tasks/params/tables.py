"""`podium params`: what results from params.yaml, presets and `--set`, where each value is from, and what it means."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tasks.params.overlays import DEMO, layers, resolve
from tasks.params.schema import check
from tasks.params.strict_yaml import leaves, yaml_text
from tasks.stage import artifacts

INDENT, COMMENT_COLUMN = 2, 44
DEFAULT = "default"
"""The origin of what nobody stated."""
ABSENT = "(absent)"
"""Stands for the value of a key that one side does not have."""
Row = tuple[str, list[Any]]
"""Name of a parameter, and its value on each side."""


def origins(base: dict[str, Any], preset: str | None, overrides: Sequence[str], presets: Path) -> dict[str, str]:
    """Dotted name of each value -> where it was said last: params.yaml, the preset's file, or the `--set`.

    What is not among them has its default.

    Raises:
        ParamsError: no such preset, or a malformed override.
    """
    found = {} if preset else {name: str(artifacts.PARAMS) for name, _ in leaves(base)}
    for layer in layers(preset, overrides, presets):
        found.update({name: layer.origin for name, _ in leaves(layer.values)})
    return found


def show(base: dict[str, Any], preset: str | None, overrides: Sequence[str], presets: Path = artifacts.PRESETS) -> str:
    """A complete params.yaml: what results, with the origin of each value as its comment.

    Raises:
        ParamsError: no such preset, a malformed override, or values that cannot be used.
    """
    values = resolve(base, preset, overrides, presets)
    check(values, "the parameters")
    return "".join(f"{line}\n" for line in _lines(values, origins(base, preset, overrides, presets), ()))


def _lines(values: dict[str, Any], said: dict[str, str], place: tuple[str, ...]) -> Iterator[str]:
    for key, value in values.items():
        name = ".".join((*place, str(key)))
        start = " " * INDENT * len(place) + f"{plain(key)}:"
        if isinstance(value, dict) and value:
            yield start
            yield from _lines(value, said, (*place, str(key)))
        else:
            origin = " ".join(said.get(name, DEFAULT).split())
            yield f"{start} {plain(value)}".ljust(COMMENT_COLUMN - 1) + f" # {origin}"


def plain(value: Any) -> str:
    """One value as YAML on one line."""
    text = yaml_text(value, flow=True)
    return text.removesuffix("\n").removesuffix("\n...")


def differing(sides: Sequence[dict[str, Any]]) -> list[Row]:
    """Name and all values of every parameter that not all have alike; ABSENT where one has no such key.

    A section that is null on one side and has keys on another is in these keys, each with a row of its own.
    """
    found = [dict(leaves(side)) for side in sides]
    rows = [
        (name, [one.get(name, ABSENT) for one in found]) for name in dict.fromkeys(key for one in found for key in one)
    ]
    stated = [(name, values) for name, values in rows if any(value not in (None, ABSENT) for value in values)]
    return [(name, values) for name, values in stated if any(value != values[0] for value in values)]


def differences(base: dict[str, Any], names: Sequence[str], presets: Path = artifacts.PRESETS) -> list[Row]:
    """Return what `differing` says of presets.

    Args:
        base: the values of params.yaml, for `demo`.

    Raises:
        ParamsError: no such preset, or values that cannot be used.
    """
    sides = [resolve(base, None if name == DEMO else name, [], presets) for name in names]
    for name, values in zip(names, sides, strict=True):
        check(values, name)
    return differing(sides)


def diff(rows: Sequence[Row], first: str, second: str) -> str:
    """What `differences` found of two, one value a line, by sections; of an entry that one side lacks only its kind."""
    if not rows:
        return f"{first} and {second} say the same\n"
    sections: dict[str, list[tuple[str, Any, Any]]] = {}
    for name, (one, two) in rows:
        words = name.split(".")
        depth = 2 if words[0] == "downstream" else 1
        sections.setdefault(".".join(words[:depth]), []).append((".".join(words[depth:]), one, two))
    cells = [("", first, second)]
    for section, found in sections.items():
        lacking = section.startswith("downstream.") and any(row[0] == "kind" and ABSENT in row for row in found)
        if found[0][0]:
            cells.append((section, "", ""))
        for key, one, two in found:
            if not lacking or key == "kind":
                cells.append((f"  {key}" if key else section, _cell(one), _cell(two)))
    return table(cells)


def _cell(value: Any) -> str:
    return "-" if value is ABSENT else json.dumps(value)


def search(values: dict[str, Any], meanings: dict[str, str], query: str) -> list[tuple[str, Any, str]]:
    """Name, value and meaning of every parameter whose name or meaning holds `query`, whatever its case."""
    wanted = query.lower()
    rows = [(name, value, meanings.get(name, "")) for name, value in leaves(values)]
    return [row for row in rows if wanted in row[0].lower() or wanted in row[2].lower()]


def table(rows: Sequence[Sequence[str]]) -> str:
    """Lines of columns that are as wide as what stands in them, two blanks apart."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    return "".join(f"{line.rstrip()}\n" for line in lines)
