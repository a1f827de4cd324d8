"""YAML as people write it, read as DVC reads it: YAML 1.2, by the same parser.

An alias, a repeated key, a tag or a non-mapping is refused. What is written here reads alike as YAML 1.1 and 1.2.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from ruamel.yaml import YAML
from ruamel.yaml.constructor import SafeConstructor
from ruamel.yaml.error import YAMLError
from ruamel.yaml.events import AliasEvent, CollectionEndEvent, CollectionStartEvent, DocumentStartEvent
from ruamel.yaml.nodes import MappingNode
from ruamel.yaml.resolver import implicit_resolvers

from tasks.stage.errors import ParamsError

MAX_BYTES = 1 << 20
"""A params.yaml has a few kilobytes."""


DEEPEST = 100
"""Sections within sections. libyaml takes minutes for a hundred thousand."""
YAML_VERSION = (1, 2)


class _PlainValues(SafeConstructor):
    """Refuse a key that stands twice or that is not a word, each with its line."""

    def construct_mapping(self, node: MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str | int | float | bool | None):
                raise ParamsError(f"line {key_node.start_mark.line + 1}: a key must be a word, found {key!r:.80}")
            if key in seen:
                raise ParamsError(f"line {key_node.start_mark.line + 1}: the key {key!r} stands twice")
            seen.add(key)
        values: dict[Any, Any] = super().construct_mapping(node, deep)
        return values


class _Writer(yaml.SafeDumper):
    """PyYAML's writer, which quotes text that YAML 1.1 reads as something else, and here what YAML 1.2 does."""

    def ignore_aliases(self, data: Any) -> bool:
        return True  # the reader refuses them


for _versions, _tag, _pattern, _first in implicit_resolvers:
    if YAML_VERSION in _versions:
        _Writer.add_implicit_resolver(_tag, _pattern, _first)


def read_yaml(path: Path) -> dict[str, Any]:
    """A YAML mapping from `path`.

    Raises:
        ParamsError: not there, not UTF-8, not YAML, a repeated key, or not a mapping.
    """
    try:
        if path.stat().st_size > MAX_BYTES:
            raise ParamsError(f"it has {path.stat().st_size} bytes; up to {MAX_BYTES} are read")
        values = parse_yaml(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ParamsError(f"{path} is not there: run from the folder that holds it") from None
    except UnicodeDecodeError as error:
        raise ParamsError(f"{path} is not UTF-8 text: {error}") from None
    except ParamsError as error:
        raise ParamsError(f"{path}, {error}") from None
    if values is None:
        raise ParamsError(f"{path} is empty: put its sections back (key: value), or take the file of a release")
    if not isinstance(values, dict):
        raise ParamsError(f"{path} must hold sections (key: value), found {type(values).__name__}")
    return values


def parse_yaml(text: str) -> Any:
    """Plain values from YAML: mappings, lists, words and numbers.

    Raises:
        ParamsError: not YAML, a tag, an alias, a repeated key, nested too deeply, or no value (month 99).
    """
    try:
        return _load(YAML(typ="safe"), text)
    except YAMLError:
        pass  # libyaml refuses [cpu:bf16], which YAML allows
    try:
        return _load(YAML(typ="safe", pure=True), text)
    except YAMLError as error:
        raise ParamsError(f"it is not YAML: {error}") from None


def _load(reader: YAML, text: str) -> Any:
    try:
        _require_plain(reader, text)
        reader.Constructor = _PlainValues
        return reader.load(text)
    except ValueError as error:  # what looks like a date or a number and is none
        raise ParamsError(f"a value cannot be read: {error}; put quotes around text") from None


def _require_plain(reader: YAML, text: str) -> None:
    """Refuse what libyaml unfolds or descends into without an end, and another version's rules."""
    depth = 0
    for event in reader.parse(text):
        line = event.start_mark.line + 1
        if isinstance(event, AliasEvent):
            raise ParamsError(f"line {line}: an alias (*name) is not read; write the value out")
        if isinstance(event, DocumentStartEvent) and event.version not in (None, YAML_VERSION):
            raise ParamsError(f"line {line}: YAML {'.'.join(map(str, event.version))} is stated; only 1.2 is read")
        depth += isinstance(event, CollectionStartEvent) - isinstance(event, CollectionEndEvent)
        if depth > DEEPEST:
            raise ParamsError(f"line {line}: it is nested too deeply")


def yaml_text(values: Any, flow: bool = False) -> str:
    """Return plain values as YAML that gives the same values back, to readers of YAML 1.1 also.

    Args:
        flow: on one line.
    """
    return str(
        yaml.dump(
            values, Dumper=_Writer, sort_keys=False, allow_unicode=True, width=float("inf"), default_flow_style=flow
        )
    )


def value_at(values: Any, name: str) -> Any:
    """The value of a dotted name; None where there is none."""
    for part in name.split("."):
        values = values.get(part) if isinstance(values, Mapping) else None
    return values


def leaves(values: Mapping[str, Any], place: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Dotted name and value of everything in nested mappings that is no mapping, or an empty one."""
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from leaves(value, (*place, str(key)))
        else:
            yield ".".join((*place, str(key))), value
