"""`podium params`: resolved values of params.yaml, presets and `--set`, with their origins and meanings."""

import copy
import functools
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tasks.params.downstream import defaults_of, kind_names
from tasks.params.overlays import DEMO, layers, resolve
from tasks.params.schema import validate_params, walk_parameters
from tasks.params.sections import get_default, is_left_out
from tasks.params.strict_yaml import leaves, yaml_text
from tasks.stage import artifacts

INDENT, COMMENT_COLUMN = 2, 44
DEFAULT = "default"
"""Origin of values that nothing sets."""
ABSENT = "(absent)"
"""Value of a key that one side lacks."""
Row = tuple[str, list[Any]]
"""Name of a parameter, and its value on each side."""


def find_origins(base: dict[str, Any], preset: str | None, overrides: Sequence[str], presets: Path) -> dict[str, str]:
    """Return dotted name -> origin of its value: params.yaml, the preset file, or the `--set` that set it last.

    Parameters with their defaults are left out.

    Raises:
        ParamsError: the preset does not exist, or an override is malformed.
    """
    origins = {} if preset else {name: str(artifacts.PARAMS) for name, _ in leaves(base)}
    for layer in layers(preset, overrides, presets):
        origins.update({name: layer.origin for name, _ in leaves(layer.values)})
    return origins


def format_params(
    base: dict[str, Any], preset: str | None, overrides: Sequence[str], presets: Path = artifacts.PRESETS
) -> str:
    """Return a complete params.yaml with the resolved values, each with its origin as a comment.

    Raises:
        ParamsError: the preset does not exist, an override is malformed, or the values are invalid.
    """
    values = resolve(base, preset, overrides, presets)
    validate_params(values, "the parameters")
    return "".join(f"{line}\n" for line in _lines(values, find_origins(base, preset, overrides, presets), ()))


def _lines(values: dict[str, Any], origins: dict[str, str], path: tuple[str, ...]) -> Iterator[str]:
    for key, value in values.items():
        name = ".".join((*path, str(key)))
        start = " " * INDENT * len(path) + f"{format_value(key)}:"
        if isinstance(value, dict) and value:
            yield start
            yield from _lines(value, origins, (*path, str(key)))
        else:
            origin = " ".join(origins.get(name, DEFAULT).split())
            yield f"{start} {format_value(value)}".ljust(COMMENT_COLUMN - 1) + f" # {origin}"


def format_value(value: Any) -> str:
    """Return a value as YAML on one line."""
    text = yaml_text(value, flow=True)
    return text.removesuffix("\n").removesuffix("\n...")


def find_differing(sides: Sequence[dict[str, Any]]) -> list[Row]:
    """Return name and values of every parameter that differs between the sides; ABSENT for a missing key.

    If a section is null on one side and has keys on another, each key is a row of its own.
    """
    flat = [dict(leaves(side)) for side in sides]
    rows = [
        (name, [side.get(name, ABSENT) for side in flat])
        for name in dict.fromkeys(key for side in flat for key in side)
    ]
    present = [(name, values) for name, values in rows if any(value not in (None, ABSENT) for value in values)]
    return [(name, values) for name, values in present if any(value != values[0] for value in values)]


def compare_presets(base: dict[str, Any], names: Sequence[str], presets: Path = artifacts.PRESETS) -> list[Row]:
    """Return the rows of `find_differing` for presets.

    Args:
        base: values of params.yaml, for `demo`.

    Raises:
        ParamsError: a preset does not exist, or its values are invalid.
    """
    sides = [resolve(base, None if name == DEMO else name, [], presets) for name in names]
    for name, values in zip(names, sides, strict=True):
        validate_params(values, name)
    return find_differing(sides)


def format_differences(rows: Sequence[Row], first: str, second: str) -> str:
    """Return the differences of two presets as text, one value per line by section; of an entry that one side lacks,
    only its kind."""
    if not rows:
        return f"{first} and {second} have the same values\n"
    sections: dict[str, list[tuple[str, Any, Any]]] = {}
    for name, (left, right) in rows:
        words = name.split(".")
        depth = 2 if words[0] == "downstream" else 1
        sections.setdefault(".".join(words[:depth]), []).append((".".join(words[depth:]), left, right))
    cells = [("", first, second)]
    for section, parameters in sections.items():
        lacking = section.startswith("downstream.") and any(row[0] == "kind" and ABSENT in row for row in parameters)
        if parameters[0][0]:
            cells.append((section, "", ""))
        for key, left, right in parameters:
            if not lacking or key == "kind":
                cells.append((f"  {key}" if key else section, _cell(left), _cell(right)))
    return format_table(cells)


def _cell(value: Any) -> str:
    return "-" if value is ABSENT else json.dumps(value)


def add_kinds(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return parameters with an entry of defaults for each kind that they have none of, named after the kind."""
    entries = values["downstream"]
    missing = sorted(set(kind_names()) - {entry["kind"] for entry in entries.values()} - set(entries))
    return {**values, "downstream": entries | {kind: defaults_of(kind, kind) for kind in missing}}


def add_left_out(values: dict[str, Any]) -> dict[str, Any]:
    """Return the values with the defaults of parameters that a file leaves out."""
    changed = copy.deepcopy(values)
    for name, section, key, present in [*walk_parameters(values)]:
        field = section.get_fields()[key]
        if not present and is_left_out(field):
            *sections, _ = name.split(".")
            functools.reduce(lambda inner, word: inner[word], sections, changed)[key] = get_default(field)
    return changed


def search(values: dict[str, Any], meanings: dict[str, str], query: str) -> list[tuple[str, Any, str]]:
    """Return name, value and meaning of every parameter whose name or meaning contains `query`, ignoring case."""
    needle = query.lower()
    rows = [(name, value, meanings.get(name, "")) for name, value in leaves(values)]
    return [row for row in rows if needle in row[0].lower() or needle in row[2].lower()]


def format_table(rows: Sequence[Sequence[str]]) -> str:
    """Return the rows as aligned columns, two spaces apart."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    return "".join(f"{line.rstrip()}\n" for line in lines)
