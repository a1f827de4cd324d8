"""Project folder and current folder of a command."""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import click

from flows.runs.environment import provide_home
from tasks.stage import streams
from tasks.stage.errors import ParamsError

MARKS = ("dvc.yaml", "params.yaml", "presets")
"""Contents of every project. Checkouts of runs have no presets, so they do not count as projects."""
CALLED_FROM = "PODIUM_CALLED_FROM"
"""Variable that a command sets before it restarts with the code of the project it found."""


@dataclass(frozen=True)
class CommandContext:
    """Current folder of a command and the project it works in."""

    folder: Path
    """Current folder. Paths on the command line are relative to it."""
    project: Path | None
    project_option: Path | None
    """Value of --project."""
    command_line: str | None = None
    """The whole command line, quoted for a shell."""


def current_folder() -> Path:
    """Return the current folder.

    Raises:
        ParamsError: the folder no longer exists.
    """
    try:
        return Path.cwd()
    except FileNotFoundError:
        raise ParamsError("the current folder was deleted or moved: change to an existing one and try again") from None


def find_project(start: Path, above: bool) -> Path | None:
    """Return `start`, or with `above` its nearest parent, that is a project; None if there is none."""
    folder = start.resolve()
    for candidate in (folder, *folder.parents) if above else (folder,):
        if all((candidate / name).exists() for name in MARKS):
            return candidate
    return None


def enter_project(ctx: click.Context) -> Path:
    """Change to the project folder of a command and return it.

    Raises:
        ParamsError: there is no project, or its path is not UTF-8.
    """
    context: CommandContext = ctx.obj
    if context.project is None:
        missing = ", ".join(f"{name}/" if name == "presets" else name for name in MARKS)
        if context.project_option is not None:
            raise ParamsError(f"--project {context.project_option} is not a clone of Podium, which contains {missing}")
        raise ParamsError(
            f"neither {context.folder} nor a parent folder is a clone of Podium, which contains {missing}: change to a "
            "clone, or pass podium --project DIR"
        )
    try:
        str(context.project).encode("utf-8")
    except UnicodeEncodeError:  # reports, databases and DVC's files store the path as text
        raise ParamsError(
            f"the project's path is not UTF-8: {os.fsencode(context.project)!r}; rename its folders or move the project"
        ) from None
    os.chdir(context.project)
    provide_home(context.project, streams.note)
    return context.project


def resolve_path(ctx: click.Context, path: Path) -> Path:
    """Resolve a path of the command line against the folder where the command was called."""
    context: CommandContext = ctx.obj
    return context.folder / path


def resolve_output(ctx: click.Context, path: Path, inputs: Iterable[Path]) -> Path:
    """Resolve an output path of the command line, and require that it is not one of the command's inputs.

    Args:
        ctx: context of the command.
        path: path as it was typed.
        inputs: files and folders that the command reads; links are followed.

    Raises:
        click.UsageError: the path is an input, or is inside one.
    """
    target = resolve_path(ctx, path)
    places = [target, *target.resolve().parents] if target.exists() else []
    for source in filter(Path.exists, inputs):
        if any(output.samefile(source) for output in places):
            raise click.UsageError(f"{path} is an input of this command: name another output file", ctx)
    return target
