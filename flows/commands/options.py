"""Options that several commands have, and the last line of each."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])


def parameters(command: Command) -> Command:
    """--preset and --set, as arguments `preset` and `overrides`."""
    stated = click.option(
        "--set", "overrides", multiple=True, metavar="SECTION.KEY=VALUE", help="one parameter of this run, repeatable"
    )
    return click.option("--preset", help="one of presets/*.yaml (podium presets)")(stated(command))


def as_json(command: Command) -> Command:
    """--json, as the argument `json_wanted`: standard output then holds JSON and nothing else."""
    return click.option("--json", "json_wanted", is_flag=True, help="JSON on standard output, for programs")(command)


def print_json(values: Any) -> None:
    """Values for programs, on standard output."""
    sys.stdout.write(json.dumps(values, ensure_ascii=False, indent=2) + "\n")


def say_next(text: str) -> None:
    """The command that is useful next; on standard error, so that what was asked for stands alone."""
    sys.stderr.write(f"next: {text}\n")
