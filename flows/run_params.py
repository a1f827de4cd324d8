"""The parameters that a run was made with, and how those of several differ."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flows import report
from flows.checkout import own_folder, seen_from
from tasks.project import artifacts
from tasks.project.errors import ParamsError
from tasks.project.param_downstream import defaults_of, kind_names
from tasks.project.params import default_values
from tasks.project.params_command import ABSENT, differing, table
from tasks.project.strict_yaml import read_yaml

LATER = ".gate.seeds"
"""Of an entry: a gate may be told of other seeds once these are trained, and nothing that was learned depends on it."""


def params_of(project: Path, folder: Path) -> dict[str, Any]:
    """params.yaml of a run's folder, with the defaults of what is not in it, its paths as the project states them.

    Raises:
        ParamsError: there is none, or it cannot be read.
    """
    values = _with_defaults(read_yaml(folder / artifacts.PARAMS))
    if folder == project:
        return values
    try:
        return seen_from(values, folder.resolve(), project.resolve())
    except (KeyError, TypeError, AttributeError):  # of a revision that had other sections
        return values


def _with_defaults(values: dict[str, Any]) -> dict[str, Any]:
    """Add the defaults of parameters that came since; they were checked before the run, and are not again."""
    entries = values.get("downstream")
    kinds = {name: entry.get("kind") for name, entry in (entries if isinstance(entries, dict) else {}).items()}
    known = {name: defaults_of(kind, name) for name, kind in kinds.items() if kind in kind_names()}
    return _laid_over({**default_values(), "downstream": known}, values)


def _laid_over(below: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values with those of `below` that they lack."""
    both = {
        key: _laid_over(below[key], value)
        for key, value in values.items()
        if isinstance(value, Mapping) and isinstance(below.get(key), Mapping)
    }
    return {**below, **values, **both}


def in_words(rows: Sequence[tuple[str, list[Any]]], heads: Sequence[str]) -> str:
    """What `differing` found as a table, a line each."""
    cells = [(name, *("-" if value is ABSENT else json.dumps(value) for value in values)) for name, values in rows]
    return table([("", *heads), *cells])


def require_same(project: Path, values: dict[str, Any], name: str | None) -> None:
    """What lies in the checkout of a name must be of these parameters: of others it is another run.

    Args:
        name: None: the run has none, and its parameters say where it lies.

    Raises:
        ParamsError: it is of others; says which differ.
    """
    folder = own_folder(project, name or "")
    if name is None or not (folder / artifacts.PARAMS).is_file():
        return
    seen = seen_from(values, project.resolve(), folder.resolve())
    differ = differing([params_of(project, folder), seen_from(seen, folder.resolve(), project.resolve())])
    rows = [(parameter, values) for parameter, values in differ if not parameter.endswith(LATER)]
    if not rows:
        return
    run = report.read(project, folder)
    began = f", started by: {run.command}" if run and run.command else ""
    raise ParamsError(
        f"there is a run {name} of other parameters{began}\n{in_words(rows, (f'{name} has', 'asked for'))}"
        f"take another --name, or remove that run: podium clean {name}"
    )
