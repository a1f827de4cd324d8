"""The parameters as a release states them: numbers, the words that a parameter chooses from, and names of the Hub.

Any other text is the user's own: paths, names of files, columns and servers. A path becomes the hash of what it named,
as dvc.lock has it; the rest is left out by a word that says so. A parameter that is added later is left out, too.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel

from tasks.project.given import READ, find_parameters
from tasks.project.param_downstream import kind_params
from tasks.project.param_sections import HUB_NAME, Place
from tasks.project.params import Params
from tasks.project.plan_file import stages_of

NOT_PUBLISHED = ("publish", "checkpoint", "tracking")
"""Sections that say where a release, its checkpoints and curves go, not what it is; `publish` of an entry, too."""
WITHHELD = "(not published)"
ON_HUB = ("dataset", "repository")
OF_HUB = ("dataset_config", "dataset_split", "dataset_revision", "revision")
"""What is read of a data set or model of the Hub; public words where that one has a public name."""


def released_parameters(parameters: Mapping[str, Any], root: Path, checkout: Path | None = None) -> dict[str, Any]:
    """What a release says of its parameters.

    Args:
        parameters: the resolved content of params.yaml (plain values).
        root: holds dvc.lock, which has the hashes of what was read.
        checkout: what relative names count from; None: `root`.
    """
    return _section(Params, parameters, (), _Facts(read_hashes(root), checkout or root, parameters))


def hub_name(section: Mapping[str, Any], name: str, root: Path) -> str | None:
    """The name of a data set or model of the Hub, where a section of params.yaml reads one; a local folder has none."""
    value = section.get(name)
    if not value or not HUB_NAME.fullmatch(value) or ".." in value or os.path.lexists(root / value):
        return None
    return str(value)


class _Facts:
    """What decides whether a text leaves the house."""

    def __init__(self, hashes: Mapping[str, str], root: Path, parameters: Mapping[str, Any]) -> None:
        self._hashes, self._root, self._parameters = hashes, root, parameters
        self._given = find_parameters(parameters, READ)

    def text(self, value: str, place: tuple[str, ...], holder: Mapping[str, Any], words: frozenset[str]) -> str:
        """`value`, or what stands for it."""
        if value in words or (place[-2:] == ("parity", "against") and _is_place(value)):
            return value
        if ".".join(place) in self._given:
            return self._hashes.get(_plain(value), WITHHELD)
        on_hub = "hub" in _sources(self._parameters, place)
        if on_hub and place[-1] in ON_HUB:
            return hub_name(holder, place[-1], self._root) or WITHHELD
        if on_hub and place[-1] in OF_HUB and any(hub_name(holder, name, self._root) for name in ON_HUB):
            return value
        return WITHHELD


def _section(kind: Any, values: Mapping[str, Any], place: tuple[str, ...], facts: _Facts) -> dict[str, Any]:
    fields = {field.alias or name: field.annotation for name, field in kind.model_fields.items()}
    hidden = NOT_PUBLISHED if len(place) in (0, 2) else ()
    kept = {name: value for name, value in values.items() if name not in hidden}
    return {name: _value(fields.get(name), value, (*place, name), values, facts) for name, value in kept.items()}


def _value(kind: Any, value: Any, place: tuple[str, ...], holder: Mapping[str, Any], facts: _Facts) -> Any:
    if isinstance(value, str):
        return facts.text(value, place, holder, _words(kind))
    if isinstance(value, list | tuple):
        return [_value(kind, one, place, holder, facts) for one in value]
    if isinstance(value, Mapping) and isinstance(kind, type) and issubclass(kind, BaseModel):
        return _section(kind, value, place, facts)
    if place == ("downstream",):
        return {name: _entry(one, (*place, name), facts) for name, one in value.items()}
    if isinstance(value, Mapping):
        return {str(name): _value(None, one, (*place, str(name)), value, facts) for name, one in value.items()}
    return value


def _entry(values: Mapping[str, Any], place: tuple[str, ...], facts: _Facts) -> dict[str, Any]:
    """An entry of downstream; its kind is a word that the program fixes, by its folders."""
    return {**_section(kind_params(values["kind"]), values, place, facts), "kind": values["kind"]}


def _sources(parameters: Mapping[str, Any], place: tuple[str, ...]) -> Iterator[str]:
    """`source` of every section that a parameter is in."""
    section: Any = parameters
    for word in place[:-1]:
        section = section[word]
        if isinstance(section, Mapping) and "source" in section:
            yield section["source"]


@cache
def _words(kind: Any) -> frozenset[str]:
    """The words that a parameter of this type chooses from."""
    return frozenset(_literals(kind))


def _literals(kind: Any) -> Iterator[str]:
    if get_origin(kind) is Literal:
        yield from (word for word in get_args(kind) if isinstance(word, str))
    else:
        for part in get_args(kind):
            yield from _literals(part)


def _is_place(text: str) -> bool:
    try:
        Place.of(text)
    except ValueError:
        return False
    return True


def read_hashes(root: Path) -> dict[str, str]:
    """Path of a dependency -> `md5:` and its hash, of everything that dvc.lock names."""
    dependencies = [one for stage in stages_of(root / "dvc.lock").values() for one in stage.get("deps", [])]
    return {_plain(one["path"]): f"md5:{one['md5']}" for one in dependencies if "md5" in one}


def _plain(path: str) -> str:
    return PurePosixPath(path).as_posix()
