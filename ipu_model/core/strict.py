"""Strict construction of dataclasses from parsed JSON: unknown, missing and wrongly typed fields are refused."""

from __future__ import annotations

import dataclasses
import difflib
import typing
from typing import Any, Mapping, Optional, Sequence, Type, TypeVar

from ipu_model.core.errors import ConfigError

T = TypeVar("T")
JSON_TYPES = (str, int, float, bool, dict, list)


def read_strictly(kind: Type[T], values: Any, where: str) -> T:
    """Build the dataclass `kind` from parsed JSON; `where` is the dotted path for messages.

    Raises:
        ConfigError: an unknown key (the message suggests the nearest valid name), a missing key or a wrong type.
    """
    if not isinstance(values, Mapping):
        raise ConfigError(f"{where} must be an object, found {type(values).__name__}")
    fields = {f.name: f for f in dataclasses.fields(kind)}  # type: ignore[arg-type]
    hints = typing.get_type_hints(kind)
    for name in values:
        if name not in fields:
            raise ConfigError(f"{where}.{name} is not known{nearest(str(name), list(fields))}")
    read = {}
    for name, spec in fields.items():
        if name in values:
            read[name] = _value(hints[name], values[name], f"{where}.{name}")
        elif spec.default is dataclasses.MISSING and spec.default_factory is dataclasses.MISSING:
            raise ConfigError(f"{where}.{name} is missing")
    return kind(**read)


def nearest(name: str, valid: Sequence[str], otherwise: Optional[str] = None) -> str:
    """Return the end of a message about an unknown name: the nearest valid name, or `otherwise`, by default all."""
    near = difflib.get_close_matches(name, valid, 1)
    every = f"; valid: {', '.join(sorted(valid)) or '(none)'}" if otherwise is None else otherwise
    return f"; did you mean {near[0]}?" if near else every


def _value(hint: Any, value: Any, where: str) -> Any:
    arguments = typing.get_args(hint)
    origin = typing.get_origin(hint)
    if origin is typing.Union:
        if value is None and type(None) in arguments:
            return None
        hint = next(a for a in arguments if a is not type(None))
        origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if dataclasses.is_dataclass(hint):
        return read_strictly(hint, value, where)  # type: ignore[arg-type]
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    accepted = origin or hint
    if accepted in JSON_TYPES and (not isinstance(value, accepted) or (isinstance(value, bool) and hint is not bool)):
        raise ConfigError(f"{where} must be {accepted.__name__}, found {value!r}")
    return value
