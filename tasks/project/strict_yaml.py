"""YAML as people write it, read without surprises: a repeated key, a tag or a non-mapping is refused."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from tasks.project.errors import ParamsError

MAX_BYTES = 1 << 20
"""A params.yaml has a few kilobytes."""


class _PlainValues(yaml.SafeLoader):
    """YAML keeps the last of two equal keys without a word, and unfolds aliases of aliases without an end."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark
            raise ParamsError(f"line {mark.line + 1}: an alias (*name) is not read; write the value out")
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str | int | float | bool | None):
                raise ParamsError(f"line {key_node.start_mark.line + 1}: a key must be a word, found {key!r:.80}")
            if key in seen:
                raise ParamsError(f"line {key_node.start_mark.line + 1}: the key {key!r} stands twice")
            seen.add(key)
        return super().construct_mapping(node, deep)


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
        return yaml.load(text, Loader=_PlainValues)  # noqa: S506 (a SafeLoader)
    except yaml.YAMLError as error:
        raise ParamsError(f"it is not YAML: {error}") from None
    except RecursionError:
        raise ParamsError("it is nested too deeply") from None
    except ValueError as error:  # what looks like a date or a number and is none
        raise ParamsError(f"a value cannot be read: {error}; put quotes around text") from None


def nearest(name: str, valid: Sequence[str]) -> str:
    """The end of a message about an unknown name: the nearest valid one, or all of them."""
    near = difflib.get_close_matches(name, valid, 1)
    return f"; did you mean {near[0]}?" if near else f"; valid: {', '.join(sorted(valid)) or '(none)'}"
