"""The parameters as a release states them: numbers, the words that a parameter chooses from, and names of the Hub.

Any other text is the user's own: paths, names of files, columns and servers. A path becomes the hash of what it named,
as dvc.lock has it; the rest is left out by a word that says so. A parameter that is added later is left out, too.
"""

from __future__ import annotations

import os
from collections.abc import Container, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Literal, get_args, get_origin

from tasks.downstream.card import WITHHELD
from tasks.params.downstream import kind_params
from tasks.params.schema import Params
from tasks.params.sections import HUB_NAME, Place
from tasks.plan.named_files import READ, find_parameters
from tasks.plan.plan_file import stages_of

NOT_PUBLISHED = ("publish", "checkpoint", "tracking")
"""Sections that say where a release, its checkpoints and curves go, not what it is; `publish` of an entry, too."""
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
    facts = _Facts(read_hashes(root), find_parameters(parameters, READ), checkout or root)
    return facts.section(Params, parameters, (), on_hub=False)


def hub_name(section: Mapping[str, Any], name: str, root: Path) -> str | None:
    """The name of a data set or model of the Hub, where a section of params.yaml reads one; a local folder has none."""
    value = section.get(name)
    if not value or not HUB_NAME.fullmatch(value) or ".." in value or os.path.lexists(root / value):
        return None
    return str(value)


@dataclass(frozen=True)
class _Facts:
    """What decides whether a text leaves the house."""

    hashes: Mapping[str, str]
    """Path -> what dvc.lock has of it."""
    given: Container[str]
    """Dotted names of parameters that name inputs."""
    root: Path

    def section(self, kind: Any, values: Mapping[str, Any], place: tuple[str, ...], *, on_hub: bool) -> dict[str, Any]:
        """The values of a section, of which `kind` may be a model; `on_hub`: a section around it is read of the Hub."""
        fields = {field.alias or name: field.annotation for name, field in getattr(kind, "model_fields", {}).items()}
        hidden = NOT_PUBLISHED if fields and len(place) in (0, 2) else ()
        on_hub = on_hub or values.get("source") == "hub"
        return {
            str(name): self._value(fields.get(name), value, (*place, str(name)), values, on_hub)
            for name, value in values.items()
            if name not in hidden
        }

    def _value(self, kind: Any, value: Any, place: tuple[str, ...], holder: Mapping[str, Any], on_hub: bool) -> Any:
        if isinstance(value, str):
            return value if value in _words(kind) else self._text(value, place, holder, on_hub)
        if isinstance(value, list | tuple):
            return [self._value(kind, one, place, holder, on_hub) for one in value]
        if not isinstance(value, Mapping):
            return value
        if place[:-1] != ("downstream",):
            return self.section(kind, value, place, on_hub=on_hub)
        # The kind of an entry is a word that the program fixes, by its folders.
        stated = self.section(kind_params(value["kind"]), value, place, on_hub=on_hub)
        return {**stated, "kind": value["kind"]}

    def _text(self, value: str, place: tuple[str, ...], holder: Mapping[str, Any], on_hub: bool) -> str:
        if place[-2:] == ("parity", "against") and _is_place(value):
            return value
        if ".".join(place) in self.given:
            return self.hashes.get(_plain(value), WITHHELD)
        if on_hub and place[-1] in ON_HUB:
            return hub_name(holder, place[-1], self.root) or WITHHELD
        if on_hub and place[-1] in OF_HUB and any(hub_name(holder, name, self.root) for name in ON_HUB):
            return value
        return WITHHELD


def _words(kind: Any) -> set[str]:
    """The words that a parameter of this type chooses from."""
    if get_origin(kind) is Literal:
        return {word for word in get_args(kind) if isinstance(word, str)}
    return {word for part in get_args(kind) for word in _words(part)}


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
