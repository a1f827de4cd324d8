"""YAML as people write it, read without surprises: a repeated key, a tag or a non-mapping is refused."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from tasks.errors import ParamsError


class _UniqueKeys(yaml.SafeLoader):
    """YAML keeps the last of two equal keys without a word; we refuse them."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
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
        values = yaml.load(path.read_text(encoding="utf-8"), Loader=_UniqueKeys)  # noqa: S506 (a SafeLoader)
    except FileNotFoundError:
        raise ParamsError(f"{path} is not there: run from the folder that holds it") from None
    except UnicodeDecodeError as error:
        raise ParamsError(f"{path} is not UTF-8 text: {error}") from None
    except yaml.YAMLError as error:
        raise ParamsError(f"{path} is not YAML: {error}") from None
    except ParamsError as error:
        raise ParamsError(f"{path}, {error}") from None
    if not isinstance(values, dict):
        raise ParamsError(f"{path} must hold sections (key: value), found {type(values).__name__}")
    return values


def nearest(name: str, valid: Sequence[str]) -> str:
    """The end of a message about an unknown name: the nearest valid one, or all of them."""
    near = difflib.get_close_matches(name, valid, 1)
    return f"; did you mean {near[0]}?" if near else f"; valid: {', '.join(sorted(valid)) or '(none)'}"
