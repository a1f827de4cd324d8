"""What presets and `--set` make of params.yaml, and where each value comes from.

    python -m tasks.params show [--preset NAME] [--set section.key=value ...]
    python -m tasks.params diff A [B]
    python -m tasks.params list
    python -m tasks.params page

`show` prints a complete params.yaml whose comments name the origin of each value. `diff` compares two presets, or one
with params.yaml. `list` names every preset with its source and the figures that the source published. `page` writes
them into docs/presets.md.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from tasks.common import artifacts
from tasks.common.errors import run_main
from tasks.common.params import check
from tasks.common.strict_yaml import read_yaml
from tasks.overlays import layers, preset_names, read_preset, resolve
from tasks.presets_page import PAGE, figures, write_page

FILE = str(artifacts.PARAMS)
"""How params.yaml is named beside presets."""
INDENT, COMMENT_COLUMN = 2, 56


def leaves(values: dict[str, Any], place: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Dotted name and value of everything in nested mappings that is no mapping, or an empty one."""
    for key, value in values.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, (*place, str(key)))
        else:
            yield ".".join((*place, str(key))), value


def origins(base: dict[str, Any], preset: str | None, overrides: Sequence[str], presets: Path) -> dict[str, str]:
    """Dotted name of each value -> where it was said last: params.yaml, the preset's file, or the `--set`.

    Raises:
        ParamsError: no such preset, or a malformed override.
    """
    found = {name: FILE for name, _ in leaves(base)}
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
        start = " " * INDENT * len(place) + f"{_plain(key)}:"
        if isinstance(value, dict) and value:
            yield start
            yield from _lines(value, said, (*place, str(key)))
        else:
            yield f"{start} {_plain(value)}".ljust(COMMENT_COLUMN - 1) + f" # {_one_line(said[name])}"


def _plain(value: Any) -> str:
    """One value as YAML on one line."""
    text = yaml.safe_dump(value, default_flow_style=True, allow_unicode=True, width=float("inf"))
    return text.removesuffix("\n").removesuffix("\n...")


def _one_line(text: str) -> str:
    return " ".join(text.split())


def diff(base: dict[str, Any], first: str, second: str, presets: Path = artifacts.PRESETS) -> str:
    """Every value in which two presets differ, one a line; params.yaml stands for no preset.

    Raises:
        ParamsError: no such preset, or values that cannot be used.
    """
    sides = [dict(leaves(_of(base, name, presets))) for name in (first, second)]
    names = [*sides[0], *(name for name in sides[1] if name not in sides[0])]
    rows = [
        (name, *(json.dumps(side[name]) if name in side else "-" for side in sides))
        for name in names
        if name not in sides[0] or name not in sides[1] or sides[0][name] != sides[1][name]
    ]
    if not rows:
        return f"{first} and {second} say the same\n"
    return table([("", first, second), *rows])


def _of(base: dict[str, Any], name: str, presets: Path) -> dict[str, Any]:
    values = resolve(base, None if name == FILE else name, [], presets)
    check(values, name)
    return values


def table(rows: Sequence[Sequence[str]]) -> str:
    """Lines of columns that are as wide as what stands in them, two blanks apart."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    return "".join(f"{line.rstrip()}\n" for line in lines)


def listing(presets: Path = artifacts.PRESETS) -> str:
    """Every preset with the figures and the files of its source.

    Raises:
        ParamsError: a preset whose head cannot be used.
    """
    found = [read_preset(name, presets) for name in preset_names(presets)]
    rows = [(one.name, figures(one), "; ".join(one.head.source) or "-") for one in found]
    return table([("preset", "expected", "source"), *rows])


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tasks.params", description="Show what presets and --set make of params.yaml."
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="show|diff|list|page")
    shown = commands.add_parser("show", help="the resolved parameters, with the origin of each value")
    shown.add_argument("--preset", help="one of presets/*.yaml")
    shown.add_argument("--set", action="append", default=[], metavar="SECTION.KEY=VALUE", dest="overrides")
    compared = commands.add_parser("diff", help=f"what two presets say differently; {FILE} stands for no preset")
    compared.add_argument("first")
    compared.add_argument("second", nargs="?", default=FILE)
    commands.add_parser("list", help="every preset with its source and the figures of that source")
    commands.add_parser("page", help=f"write them into {PAGE}")
    arguments = parser.parse_args()
    if arguments.command == "list":
        sys.stdout.write(listing())
        return
    base = read_yaml(artifacts.PARAMS)
    if arguments.command == "page":
        sys.stdout.write(f"{PAGE} {'was written anew' if write_page(base) else 'is as the presets are'}\n")
    elif arguments.command == "show":
        sys.stdout.write(show(base, arguments.preset, arguments.overrides))
    else:
        sys.stdout.write(diff(base, arguments.first, arguments.second))


if __name__ == "__main__":
    run_main(main)
