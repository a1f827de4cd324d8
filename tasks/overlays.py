"""Presets and `--set` overrides: values laid over params.yaml for one run."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tasks import artifacts
from tasks.errors import ParamsError
from tasks.strict_yaml import nearest, parse_yaml, read_yaml


def resolve(
    base: dict[str, Any], preset: str | None, overrides: Sequence[str], presets: Path = artifacts.PRESETS
) -> dict[str, Any]:
    """`base` with the preset's values laid over it, then each `section.key=value` override.

    Raises:
        ParamsError: no such preset, a malformed override, or a key that `base` does not have.
    """
    values: dict[str, Any] = json.loads(json.dumps(base))
    if preset is not None:
        known = sorted(p.stem for p in presets.glob("*.yaml"))
        if preset not in known:  # a name, never a path
            raise ParamsError(f"preset {preset!r} is not known{nearest(preset, known)}")
        path = presets / f"{preset}.yaml"
        overlay = read_yaml(path)
        overlay.pop("description", None)
        _lay_over(values, overlay, str(path), ())
    for override in overrides:
        key, equals, text = override.partition("=")
        if not equals or not key:
            raise ParamsError(f"--set {override!r} must read section.key=value")
        try:
            value = parse_yaml(text)
        except ParamsError as error:
            raise ParamsError(f"--set {override[:200]!r}: {error}; put quotes around text") from None
        if isinstance(value, str):
            value = _as_number(value)
        overlay = value
        for part in reversed(key.split(".")):
            overlay = {part: overlay}
        _lay_over(values, overlay, f"--set {override}", ())
    return values


def _as_number(text: str) -> Any:
    """YAML 1.1 reads 3e-5 as text; people mean the number."""
    try:
        number = float(text)
    except ValueError:
        return text
    return number if math.isfinite(number) else text


def _lay_over(values: dict[str, Any], overlay: Any, where: str, path: tuple[str, ...]) -> None:
    if not isinstance(overlay, dict):
        raise ParamsError(f"{where}: {'.'.join(path) or 'the file'} is a section; state one of its keys")
    for key, value in overlay.items():
        name = ".".join((*path, str(key)))
        if key not in values:
            raise ParamsError(f"{where}: {name} is not known{nearest(str(key), list(values))}")
        if isinstance(values[key], dict):
            _lay_over(values[key], value, where, (*path, str(key)))
        else:
            values[key] = value
