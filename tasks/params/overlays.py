"""Presets and `--set` overrides, which change the parameters of a run.

A preset is a YAML file in `presets/`: values that override the defaults, and a header (`description`, `source`,
`expected`). With a preset, params.yaml is not read, so that no demo value gets into a recipe. `--set` overrides the
preset, or params.yaml without a preset.
"""

import contextlib
import copy
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import MappingProxyType, NoneType
from typing import Annotated, Any, NoReturn

from pydantic import StringConstraints
from pydantic.fields import FieldInfo

from ipu_model.core.strict import nearest
from ipu_model.ipu.config import IpuConfig
from ipu_model.ipu.migration import migrate
from tasks.params.downstream import Points, defaults_of, kind_names
from tasks.params.schema import default_values, list_sections, types_at, validate_section
from tasks.params.sections import PHASE, Section, SectionOfPhases, Text, get_default, is_left_out
from tasks.params.strict_yaml import leaves, parse_yaml, read_yaml
from tasks.stage import artifacts
from tasks.stage.errors import ParamsError

ScoreName = Annotated[str, StringConstraints(pattern=rf"^(exact_match|f1|accuracy|{PHASE}_(mlm|nsp)_(loss|accuracy))$")]
"""Name of one of Podium's metrics."""


class PresetHeader(Section):
    """Header of a preset."""

    description: Text
    source: list[Text] = []
    """`owner/repository:path`, or text if the source is not a file; empty: no published recipe."""
    expected: dict[ScoreName, Points] = {}
    """Scores that the source published."""


SET = "--set "
ENTRIES = ("downstream",)
"""Section with free keys: a new key is an entry with the defaults of its kind, null removes an entry."""
DEMO = "demo"
"""Name of params.yaml in place of a preset name."""


@dataclass(frozen=True)
class Preset:
    """Parsed file of `presets/`."""

    name: str
    path: str
    head: PresetHeader
    values: dict[str, Any]
    """Values that override the defaults."""


@dataclass(frozen=True)
class OverrideLayer:
    """Values that override those of earlier layers, and their origin."""

    origin: str
    values: dict[str, Any]


@dataclass(frozen=True)
class Setting:
    """Parameter that an option of a command sets."""

    name: str
    """Dotted name."""
    value: Any
    option: str = field(default="", compare=False)
    """Option that the user typed, with its value; empty: a default of the command, which `--set` may replace."""

    def __str__(self) -> str:
        """Return the equivalent argument of `--set`, for records of the run."""
        value = self.value
        whole = isinstance(value, float) and value.is_integer()
        return f"{self.name}={json.dumps(int(value) if whole else value)}"


def complete_names(overrides: Sequence[str], values: Mapping[str, Any]) -> list[str]:
    """Return arguments of `--set`, with the whole name of each parameter that only one in `values` ends with.

    `finetune.seed=5` is `downstream.NAME.finetune.seed=5` in a run of one entry.
    """
    known, completed = [name for name, _ in leaves(values)], []
    for text in overrides:
        name = text.partition("=")[0]
        whole = [key for key in known if key.endswith(f".{name}")] if name.split(".")[0] not in values else []
        completed.append(whole[0] + text.removeprefix(name) if name and len(whole) == 1 else text)
    return completed


def replace_overrides(before: Sequence[str], overrides: Sequence[str]) -> list[str]:
    """Return arguments of `--set` followed by later ones, without those that set the same parameter again."""
    names = {override.partition("=")[0] for override in overrides}
    return [*(override for override in before if override.partition("=")[0] not in names), *overrides]


def make_settings(values: Mapping[str, Any], options: Mapping[str, str] = MappingProxyType({})) -> list[Setting]:
    """Return parameters by dotted name as settings; `options` has the typed options of some."""
    return [Setting(name, value, options.get(name, "")) for name, value in values.items()]


def _require_one_value(settings: Sequence[Setting]) -> None:
    """Refuse an option and a `--set` that set one parameter to different values. Of several `--set`, the last counts.

    Raises:
        ParamsError: names both words.
    """
    known: dict[str, Setting] = {}
    for setting in (typed for typed in settings if typed.option):
        for name, value in leaves({setting.name: setting.value}):
            before = known.get(name, setting)
            same = dict(leaves({before.name: before.value}))[name] == value
            if not (same or before.option.startswith(SET) and setting.option.startswith(SET)):
                raise ParamsError(f"{before.option} and {setting.option} both set {name}: leave one of them out")
            known[name] = setting


def resolve(
    base: dict[str, Any], preset: str | None, overrides: Sequence[str | Setting], presets: Path = artifacts.PRESETS
) -> dict[str, Any]:
    """Return the defaults with the preset's values, or `base` without a preset, and then each override applied.

    The overrides are arguments of `--set`, `section.key=value`, and settings of other options.

    Raises:
        ParamsError: the preset does not exist, an override is malformed, or a key is unknown.
    """
    values: dict[str, Any] = copy.deepcopy(base) if preset is None else default_values()
    for layer in layers(preset, overrides, presets):
        _lay_over(values, layer.values, layer.origin, ())
    return values


def layers(
    preset: str | None, overrides: Sequence[str | Setting], presets: Path = artifacts.PRESETS
) -> list[OverrideLayer]:
    """Return the values that override the defaults or params.yaml, in order.

    Raises:
        ParamsError: the preset does not exist, or an override is malformed.
    """
    layers = [] if preset is None else [read_preset(preset, presets)]
    settings = [override if isinstance(override, Setting) else read_setting(override) for override in overrides]
    _require_one_value(settings)
    return [OverrideLayer(layer.path, layer.values) for layer in layers] + [
        OverrideLayer(setting.option or f"{SET}{setting}", nest({setting.name: setting.value})) for setting in settings
    ]


def read_base(preset: str | None, root: Path = Path()) -> dict[str, Any]:
    """Return the values of params.yaml in `root`; with a preset, nothing is read.

    Raises:
        ParamsError: the file is not valid.
    """
    return read_yaml(root / artifacts.PARAMS) if preset is None else {}


def list_preset_names(presets: Path = artifacts.PRESETS) -> list[str]:
    """Return the names of all presets."""
    return sorted(path.stem for path in presets.glob("*.yaml"))


def read_preset(name: str, presets: Path = artifacts.PRESETS) -> Preset:
    """Read a preset by name, never by path.

    Raises:
        ParamsError: the preset does not exist, or its header is invalid.
    """
    if name == DEMO:
        raise ParamsError(f"{DEMO} is {artifacts.PARAMS}, the default: omit --preset")
    known = list_preset_names(presets)
    if name not in known:
        raise ParamsError(f"preset {name!r} is not known{nearest(name, known)}")
    path = presets / f"{name}.yaml"
    values = read_yaml(path)
    head = {key: values.pop(key) for key in PresetHeader.model_fields if key in values}
    return Preset(name, str(path), validate_section(PresetHeader, head, str(path)), values)


def _new_entry(value: Any, name: str, where: str) -> dict[str, Any]:
    """Return the defaults of a new entry, to be overridden by its values."""
    if not isinstance(value, dict) or "kind" not in value:
        how = f"--set {name}.kind=..." if where.startswith("--set") else f"{name}.kind in that file"
        kinds = ", ".join(kind_names())
        raise ParamsError(f"{where}: {name} is not known; a new entry needs a kind ({kinds}): {how}")
    try:
        return defaults_of(value["kind"], name.rpartition(".")[2])
    except ValueError as error:
        raise ParamsError(f"{where}: {name}: {error}") from None


def _unknown(name: str, values: dict[str, Any], where: str) -> NoReturn:
    raise ParamsError(f"{where}: {name} is not known{nearest(name.rpartition('.')[2], list(values))}")


def nest(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values with dotted names as nested sections."""
    nested: dict[str, Any] = {}
    for name, value in values.items():
        *sections, key = name.split(".")
        inner = nested
        for section in sections:
            inner = inner.setdefault(section, {})
        inner[key] = value
    return nested


def read_setting(text: str) -> Setting:
    """Parse an argument of `--set`.

    Raises:
        ParamsError: it is malformed.
    """
    key, equals, value_text = text.partition("=")
    if not equals or not key:
        raise ParamsError(f"--set {text!r} must be section.key=value")
    try:
        value = parse_yaml(value_text)
    except ParamsError as error:
        raise ParamsError(f"--set {text[:200]!r}: {error}; put quotes around text") from None
    takes_text = set(types_at(key.split("."))) - {NoneType} == {str}
    if takes_text and not isinstance(value, str | list | dict | None):
        value = value_text.strip()
    if isinstance(value, str) and not takes_text:
        with contextlib.suppress(ValueError):  # numbers such as .5e-4, which DVC's parser reads as text
            value = number if math.isfinite(number := float(value)) else value
    return Setting(key, value, f"{SET}{text}")


def _is_ipu_config(path: Sequence[str]) -> bool:
    """Return True if a section contains keys of an ipu_config.json, all of which are optional."""
    return dict[str, Any] in types_at(path)


def _is_field(path: Sequence[str], key: str) -> bool:
    """Return True for a key that sections at `path` always have, or may leave out."""
    return any(key in section.get_fields() for section in list_sections(types_at(path)))


def _find_added(path: Sequence[str]) -> Any:
    """Return the type of an added phase in a section; None if no phase can be added to it."""
    return next(
        (section.added for section in list_sections(types_at(path)) if issubclass(section, SectionOfPhases)), None
    )


def _left_out(path: Sequence[str], key: str) -> FieldInfo | None:
    """Return a parameter that a file leaves out by default; None if the key is not one."""
    fields = (section.get_fields().get(key) for section in list_sections(types_at(path)))
    return next((info for info in fields if info is not None and is_left_out(info)), None)


def _start_key(key: str, value: Any, values: dict[str, Any], where: str, path: tuple[str, ...]) -> Any:
    """Return what `value` is laid over if the section at `path`, with these values, does not state this key."""
    name = ".".join((*path, key))
    if path == ENTRIES:
        return _new_entry(value, name, where)
    if _is_ipu_config(path):
        known = {field.name: None for field in fields(IpuConfig)}
        current, _ = migrate({key: value})  # accepts keys of older Optimum Graphcore releases
        return value if set(current) <= set(known) else _unknown(name, known, where)
    if isinstance(value, dict) and (added := _find_added(path)) is not None:
        return added().model_dump(mode="json") if isinstance(added, type) else {}
    if (left_out := _left_out(path, key)) is not None:
        return get_default(left_out)
    full = [known for known, _ in leaves(values)] if not path else []
    short = next(leaves({key: value}))[0]
    if near := [known for known in full if known.endswith(f".{short}")]:
        raise ParamsError(f"{where}: {short} is not known; did you mean {' or '.join(near[:3])}?")
    _unknown(name, values, where)


def _lay_over(values: dict[str, Any], overlay: Any, where: str, path: tuple[str, ...]) -> None:
    if not isinstance(overlay, dict):
        raise ParamsError(f"{where}: {'.'.join(path) or 'the file'} is a section: set one of its keys")
    for key, value in overlay.items():
        is_added = key in values and _find_added(path) is not None and not _is_field(path, str(key))
        if value is None and (path == ENTRIES or is_added):
            values.pop(key, None)
            continue
        if key not in values:
            values[key] = _start_key(str(key), value, values, where, path)
        if values[key] is None and isinstance(value, dict) and _is_ipu_config((*path, str(key))):
            values[key] = {}
        if isinstance(values[key], dict):
            _lay_over(values[key], value, where, (*path, str(key)))
        else:
            values[key] = value
