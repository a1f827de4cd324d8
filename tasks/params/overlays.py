"""Presets and `--set` overrides: what a run takes in the place of params.yaml.

A preset is a YAML file of `presets/`: the values it lays over the defaults, and a head that says what it is
(`description`, `source`, `expected`). params.yaml is not read then, so that nothing of the demo gets into a recipe.
Overrides are laid over the preset, or over params.yaml where none is named.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, NoReturn

from pydantic import Field

from ipu_model.ipu.config import IpuConfig
from ipu_model.ipu.migration import migrate
from ipu_model.strict import nearest
from tasks.params.downstream import defaults_of, kind_names
from tasks.params.schema import build, default_values, types_at
from tasks.params.sections import Section, Text
from tasks.params.strict_yaml import parse_yaml, read_yaml
from tasks.stage import artifacts
from tasks.stage.errors import ParamsError

Percent = Annotated[float, Field(ge=0, le=100)]


class Expected(Section):
    """Figures that the source of a preset published, as Podium's own metrics name them; None: it published none."""

    exact_match: Percent | None = None
    f1: Percent | None = None
    accuracy: Percent | None = None
    phase1_mlm_loss: float | None = None
    phase1_mlm_accuracy: Percent | None = None
    phase1_nsp_loss: float | None = None
    phase1_nsp_accuracy: Percent | None = None
    phase2_mlm_loss: float | None = None
    phase2_mlm_accuracy: Percent | None = None
    phase2_nsp_loss: float | None = None
    phase2_nsp_accuracy: Percent | None = None

    def published(self) -> dict[str, float]:
        """The figures that there are."""
        return self.model_dump(exclude_none=True)


class Head(Section):
    """What a preset says of itself."""

    description: Text
    source: list[Text] = []
    """`owner/repository:path`, or words where it is no file; empty: nobody's recipe."""
    expected: Expected = Expected()


ENTRIES = ("downstream",)
"""The section whose keys are free: a new one is an entry with the defaults of its kind, and null takes one away."""
DEMO = "demo"
"""What params.yaml is called beside presets."""


@dataclass(frozen=True)
class Preset:
    """A file of `presets/`, read."""

    name: str
    path: str
    head: Head
    values: dict[str, Any]
    """What it lays over the defaults."""


@dataclass(frozen=True)
class Layer:
    """Values that are laid over those before, and where they were said."""

    origin: str
    values: dict[str, Any]


@dataclass(frozen=True)
class Setting:
    """A parameter that an option of a command states."""

    name: str
    """Dotted."""
    value: Any

    def __str__(self) -> str:
        """Return the word of `--set` that says the same, for records of the run."""
        return f"{self.name}={json.dumps(self.value)}"


def settings(values: Mapping[str, Any]) -> list[Setting]:
    """Return parameters by their dotted names as settings."""
    return [Setting(name, value) for name, value in values.items()]


def resolve(
    base: dict[str, Any], preset: str | None, overrides: Sequence[str | Setting], presets: Path = artifacts.PRESETS
) -> dict[str, Any]:
    """The preset's values laid over the defaults, or `base` without a preset; then each override.

    Args:
        base: the values of params.yaml, which count for nothing where a preset is named.
        preset: the name of one.
        overrides: words of `--set`, `section.key=value`, and what other options state.
        presets: the folder.

    Raises:
        ParamsError: no such preset, a malformed override, or a key that there is not.
    """
    values: dict[str, Any] = json.loads(json.dumps(base)) if preset is None else default_values()
    for layer in layers(preset, overrides, presets):
        _lay_over(values, layer.values, layer.origin, ())
    return values


def layers(preset: str | None, overrides: Sequence[str | Setting], presets: Path = artifacts.PRESETS) -> list[Layer]:
    """What is laid over the defaults or params.yaml, in order.

    Raises:
        ParamsError: no such preset, or a malformed override.
    """
    found = [] if preset is None else [read_preset(preset, presets)]
    return [Layer(one.path, one.values) for one in found] + [_override(text) for text in overrides]


def base_of(preset: str | None, root: Path = Path()) -> dict[str, Any]:
    """The values of params.yaml in `root`, which is not read where a preset is named.

    Raises:
        ParamsError: the file is read and holds no plain values.
    """
    return read_yaml(root / artifacts.PARAMS) if preset is None else {}


def preset_names(presets: Path = artifacts.PRESETS) -> list[str]:
    """Every preset there is, by name."""
    return sorted(path.stem for path in presets.glob("*.yaml"))


def read_preset(name: str, presets: Path = artifacts.PRESETS) -> Preset:
    """A preset by its name, never by a path.

    Raises:
        ParamsError: there is none of that name, or its head cannot be used.
    """
    if name == DEMO:
        raise ParamsError(f"{DEMO} is {artifacts.PARAMS} itself: leave --preset out")
    known = preset_names(presets)
    if name not in known:
        raise ParamsError(f"preset {name!r} is not known{nearest(name, known)}")
    path = presets / f"{name}.yaml"
    values = read_yaml(path)
    head = {key: values.pop(key) for key in Head.model_fields if key in values}
    return Preset(name, str(path), build(Head, head, str(path)), values)


def _new_entry(value: Any, name: str, where: str) -> dict[str, Any]:
    """The defaults of an entry that was not there before; it is laid over them."""
    if not isinstance(value, dict) or "kind" not in value:
        how = f"--set {name}.kind=..." if where.startswith("--set") else f"{name}.kind in that file"
        kinds = ", ".join(kind_names())
        raise ParamsError(f"{where}: {name} is not known; a new entry says its kind first ({kinds}): {how}")
    try:
        return defaults_of(value["kind"], name.rpartition(".")[2])
    except ValueError as error:
        raise ParamsError(f"{where}: {name}: {error}") from None


def _unknown(name: str, values: dict[str, Any], where: str) -> NoReturn:
    raise ParamsError(f"{where}: {name} is not known{nearest(name.rpartition('.')[2], list(values))}")


def _override(stated: str | Setting) -> Layer:
    setting = stated if isinstance(stated, Setting) else _read_setting(stated)
    return Layer(f"--set {stated}", nest({setting.name: setting.value}))


def nest(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values by their dotted names as sections within sections."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        *sections, key = name.split(".")
        inner = found
        for section in sections:
            inner = inner.setdefault(section, {})
        inner[key] = value
    return found


def _read_setting(text: str) -> Setting:
    key, equals, stated = text.partition("=")
    if not equals or not key:
        raise ParamsError(f"--set {text!r} must read section.key=value")
    try:
        value = parse_yaml(stated)
    except ParamsError as error:
        raise ParamsError(f"--set {text[:200]!r}: {error}; put quotes around text") from None
    takes_text = set(types_at(key.split("."))) - {NoneType} == {str}
    if takes_text and not isinstance(value, str | list | dict | None):
        value = stated.strip()
    return Setting(key, _as_number(value) if isinstance(value, str) and not takes_text else value)


def _as_number(text: str) -> Any:
    """DVC's parser reads .5e-4 as text; people mean the number."""
    try:
        number = float(text)
    except ValueError:
        return text
    return number if math.isfinite(number) else text


def _is_ipu_config(path: Sequence[str]) -> bool:
    """Tell whether a section holds keys of an ipu_config.json, which are there only where they are stated."""
    return dict[str, Any] in types_at(path)


def _require_ipu_key(key: str, value: Any, name: str, where: str) -> None:
    known = [field.name for field in fields(IpuConfig)]
    current, _ = migrate({key: value})  # those of older releases of Optimum Graphcore are good
    if not set(current) <= set(known):
        _unknown(name, dict.fromkeys(known), where)


def _lay_over(values: dict[str, Any], overlay: Any, where: str, path: tuple[str, ...]) -> None:
    if not isinstance(overlay, dict):
        raise ParamsError(f"{where}: {'.'.join(path) or 'the file'} is a section; state one of its keys")
    for key, value in overlay.items():
        name = ".".join((*path, str(key)))
        if path == ENTRIES and value is None:
            values.pop(key, None)
            continue
        if key not in values:
            if path == ENTRIES:
                values[key] = _new_entry(value, name, where)
            elif _is_ipu_config(path):
                _require_ipu_key(key, value, name, where)
                values[key] = value
            else:
                _unknown(name, values, where)
        if values[key] is None and isinstance(value, dict) and _is_ipu_config((*path, str(key))):
            values[key] = {}
        if isinstance(values[key], dict):
            _lay_over(values[key], value, where, (*path, str(key)))
        else:
            values[key] = value
