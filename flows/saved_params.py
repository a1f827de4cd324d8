"""What a command made of its words, as a preset that says the same: all that differs from the defaults."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ipu_model.files import write_text
from tasks.project.errors import InputError
from tasks.project.overlays import ENTRIES
from tasks.project.param_downstream import defaults_of
from tasks.project.params import default_values
from tasks.project.strict_yaml import yaml_text


def save(path: Path, values: Mapping[str, Any], description: str) -> None:
    """Write a preset that resolves to these parameters.

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
    found = _unlike({name: section for name, section in values.items() if name not in ENTRIES}, default_values())
    entries = {
        name: {"kind": entry["kind"], **_unlike(entry, defaults_of(entry["kind"], name))}
        for name, entry in values["downstream"].items()
    }
    return found | ({"downstream": entries} if entries else {})


def _unlike(values: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in values.items():
        default = defaults.get(name)
        if isinstance(value, dict) and isinstance(default, dict) and default:
            if inner := _unlike(value, default):
                found[name] = inner
        elif value != default:
            found[name] = value
    return found
