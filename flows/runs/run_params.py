"""The parameters that a run was made with, and how they differ from others: defaults, presets, those of another run."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flows.runs import report
from flows.runs.checkout import own_folder, seen_from
from ipu_model.files import write_text
from tasks.params.overlays import base_of, nest, resolve
from tasks.params.schema import default_values
from tasks.params.strict_yaml import leaves, read_yaml, yaml_text
from tasks.params.tables import ABSENT, differing, table
from tasks.stage import artifacts
from tasks.stage.errors import InputError, ParamsError

LATER = ".gate.seeds"
"""Of an entry: a gate may be told of other seeds once these are trained, and nothing that was learned depends on it."""

Row = tuple[str, Any, Any]
"""Name, value there, value of the run."""


def params_of(project: Path, folder: Path) -> dict[str, Any]:
    """params.yaml of a run's folder, with the defaults of what is not in it, its paths as the project states them.

    Raises:
        ParamsError: there is none, or it cannot be read.
    """
    stated = read_yaml(folder / artifacts.PARAMS)
    # The defaults are of parameters that came since; what is stated was checked before the run, and is not again.
    values = _laid_over(default_values(stated), stated)
    if folder == project:
        return values
    try:
        return seen_from(values, folder.resolve(), project.resolve())
    except TypeError:  # of a revision where something else stood in the place of a path
        return values


def _laid_over(below: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values with those of `below` that they lack."""
    both = {
        key: _laid_over(below[key], value)
        for key, value in values.items()
        if isinstance(value, Mapping) and isinstance(below.get(key), Mapping)
    }
    return {**below, **values, **both}


def against(base: Mapping[str, Any], params: Mapping[str, Any]) -> list[tuple[str, list[Any]]]:
    """Name, value there and value here of each parameter that is not as `base` has it; of an entry that `base` does not
    have, those that are not as its kind has them.
    """
    entries = {**default_values(params)["downstream"], **base["downstream"]}
    return differing([{**base, "downstream": entries}, dict(params)])


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


@dataclass(frozen=True)
class Settings:
    """What a run was told."""

    values: dict[str, Any] = field(default_factory=dict)
    """All parameters; empty where they cannot be read."""
    origin: str = ""
    """What the run lies over."""
    told: tuple[Row, ...] = ()
    """What is not as there."""
    unusual: tuple[Row, ...] = ()
    """What is not as the defaults have it."""


def settings_of(run: report.RunReport, root: Path, project: Path) -> Settings:
    """The parameters of a run as they are now in its checkout `root`."""
    try:
        values = params_of(project, root)
        base = values
        if root != project:
            base = resolve(base_of(run.preset, project), run.preset, [], project / artifacts.PRESETS)
        told, unusual = (
            tuple((name, *both) for name, both in against(one, values)) for one in (base, default_values())
        )
    except (ParamsError, KeyError):  # there are none, or those of a revision that had other sections
        return Settings()
    return Settings(values, run.preset or str(artifacts.PARAMS), told, unusual)


def said(value: Any) -> str:
    """A value in words; 2 and 2.0 are the same number, however params.yaml writes it."""
    if value is None or value is ABSENT:
        return "none"
    return str(value).removesuffix(".0") if isinstance(value, float) else str(value)


def save(path: Path, values: Mapping[str, Any], description: str) -> None:
    """Write a preset that resolves to these parameters: all that differs from the defaults.

    Args:
        path: a new file.
        values: resolved and checked.
        description: what the preset says of itself.

    Raises:
        InputError: there is a file of that name.
    """
    if path.exists():
        raise InputError(f"{path} is there already: name a new file for --save-params")
    write_text(path, yaml_text({"description": description, **unlike_defaults(values)}))


def unlike_defaults(values: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters that differ from the defaults, nested as they are; an entry states its kind, too."""
    defaults = dict(leaves(default_values(values)))
    stated = ((name, value) for name, value in leaves(values) if value != defaults.get(name) or name.endswith(".kind"))
    return nest(dict(stated))
