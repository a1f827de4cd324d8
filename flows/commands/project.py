"""Which project a command works in, and from where it was called."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import click

from flows.runs.environment import lend_home
from tasks.stage import streams
from tasks.stage.errors import ParamsError

MARKS = ("dvc.yaml", "params.yaml", "presets")
"""What a project holds; the checkout of a run with overrides holds no presets, and is no project."""
CALLED_FROM = "PODIUM_CALLED_FROM"
"""Set for itself by a command that starts again with the code of the project it found."""


@dataclass(frozen=True)
class Place:
    """Where a command was called, and the project it found."""

    here: Path
    """Paths on the command line count from it."""
    found: Path | None
    asked: Path | None
    """--project."""
    words: str | None = None
    """The whole command, as a shell takes it."""


def current_folder() -> Path:
    """Where a command is called.

    Raises:
        ParamsError: the folder is no longer there.
    """
    try:
        return Path.cwd()
    except FileNotFoundError:
        raise ParamsError("the current folder was deleted, or moved: cd into one that is there, and again") from None


def _require_readable_name(project: Path) -> None:
    """Reports, databases and DVC's files hold the project's path as text.

    Raises:
        ParamsError: it is none.
    """
    try:
        str(project).encode("utf-8")
    except UnicodeEncodeError:
        raise ParamsError(
            f"the project's path is not UTF-8: {os.fsencode(project)!r}; rename or move it, so that every folder on "
            "the way has a name in UTF-8"
        ) from None


def find_project(start: Path, above: bool) -> Path | None:
    """The nearest folder that is a project: `start`, or with `above` a folder it lies in; None where there is none."""
    folder = start.resolve()
    for candidate in (folder, *folder.parents) if above else (folder,):
        if all((candidate / name).exists() for name in MARKS):
            return candidate
    return None


def entered(ctx: click.Context) -> Path:
    """Make the project of a command the current folder, which everything below counts from, and return it.

    Raises:
        ParamsError: there is none.
    """
    place: Place = ctx.obj
    if place.found is None:
        missing = ", ".join(f"{name}/" if name == "presets" else name for name in MARKS)
        if place.asked is not None:
            raise ParamsError(f"--project {place.asked} is no clone of Podium: it does not hold {missing}")
        raise ParamsError(
            f"neither {place.here} nor a folder above it is a clone of Podium, which holds {missing}: go into one, "
            "or name it: podium --project DIR ..."
        )
    _require_readable_name(place.found)
    os.chdir(place.found)
    lend_home(place.found, streams.note)
    return place.found


def given(ctx: click.Context, path: Path) -> Path:
    """A path of the command line, which counts from where the command was called."""
    place: Place = ctx.obj
    return place.here / path


def output_file(ctx: click.Context, path: Path, inputs: Iterable[Path]) -> Path:
    """A file of the command line that is to be written, which may be none of those that the command reads.

    Args:
        ctx: of the command.
        path: as it was typed.
        inputs: files and folders that are read; links to them count as they do.

    Raises:
        click.UsageError: it is one of them, or lies in one.
    """
    target = given(ctx, path)
    places = [target, *target.resolve().parents] if target.exists() else []
    for one in filter(Path.exists, inputs):
        if any(place.samefile(one) for place in places):
            raise click.UsageError(f"{path} is read by this command and cannot be written: name another file", ctx)
    return target
