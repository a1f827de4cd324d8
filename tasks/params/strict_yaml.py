"""Strict YAML 1.2, parsed with DVC's parser.

Aliases, repeated keys, tags and non-mappings are rejected. Written YAML reads the same in YAML 1.1 and 1.2.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from ruamel.yaml import YAML
from ruamel.yaml.constructor import DuplicateKeyError
from ruamel.yaml.error import YAMLError
from ruamel.yaml.events import AliasEvent, CollectionEndEvent, CollectionStartEvent, DocumentStartEvent
from ruamel.yaml.resolver import implicit_resolvers

from tasks.stage.errors import ParamsError

MAX_BYTES = 1 << 20
"""Maximum size of a file; params.yaml has a few kilobytes."""


DEEPEST = 100
"""Maximum nesting; libyaml takes minutes for 100,000 levels."""
YAML_VERSION = (1, 2)
LINE = 100
"""Characters after which a list continues in the next line."""


class _Writer(yaml.SafeDumper):
    """PyYAML's dumper, extended to quote text that YAML 1.1 or YAML 1.2 would read as another type."""

    def ignore_aliases(self, data: Any) -> bool:
        return True  # the reader refuses them


class _ListWriter(_Writer):
    """Writer of short lists in one line, and of long ones in full lines."""

    def represent_sequence(self, tag: str, sequence: Any, flow_style: bool | None = None) -> Any:
        return super().represent_sequence(tag, sequence, True)


for _versions, _tag, _pattern, _first in implicit_resolvers:
    if YAML_VERSION in _versions:
        _Writer.add_implicit_resolver(_tag, _pattern, _first)


def read_yaml(path: Path) -> dict[str, Any]:
    """Read a YAML mapping from `path`.

    Raises:
        ParamsError: the file is missing, not UTF-8 or not YAML, repeats a key, or is not a mapping.
    """
    try:
        if path.stat().st_size > MAX_BYTES:
            raise ParamsError(f"the file has {path.stat().st_size} bytes, at most {MAX_BYTES} are allowed")
        values = parse_yaml(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ParamsError(f"{path} not found: run from the folder that contains it") from None
    except UnicodeDecodeError as error:
        raise ParamsError(f"{path} is not UTF-8 text: {error}") from None
    except ParamsError as error:
        raise ParamsError(f"{path}, {error}") from None
    if values is None:
        raise ParamsError(f"{path} is empty: restore its sections (key: value), or copy the file of a release")
    if not isinstance(values, dict):
        raise ParamsError(f"{path} must contain sections (key: value), found {type(values).__name__}")
    return values


def parse_yaml(text: str) -> Any:
    """Parse YAML into plain values: mappings, lists, text and numbers.

    Raises:
        ParamsError: the text is not YAML, has a tag, an alias or a repeated key, is nested too deeply, or contains
            an invalid value (month 99).
    """
    for is_pure in (False, True):  # libyaml refuses [cpu:bf16], which YAML allows
        reader = YAML(typ="safe", pure=is_pure)
        try:
            _require_plain(reader, text)
            return reader.load(text)
        except DuplicateKeyError as error:
            raise ParamsError(f"line {error.problem_mark.line + 1}: {error.problem}") from None
        except YAMLError as error:
            problem = str(error)
        except ValueError as error:  # an invalid date or number
            raise ParamsError(f"a value cannot be read: {error}; put quotes around text") from None
    raise ParamsError(f"it is not YAML: {problem}")


def _require_plain(reader: YAML, text: str) -> None:
    """Reject aliases and deep nesting, which libyaml expands without limits, and other YAML versions."""
    depth = 0
    for event in reader.parse(text):
        line = event.start_mark.line + 1
        if isinstance(event, AliasEvent):
            raise ParamsError(f"line {line}: aliases (*name) are not supported; write out the value")
        if isinstance(event, DocumentStartEvent) and event.version not in (None, YAML_VERSION):
            version = ".".join(map(str, event.version))
            raise ParamsError(f"line {line}: YAML {version} is declared, only 1.2 is supported")
        depth += isinstance(event, CollectionStartEvent) - isinstance(event, CollectionEndEvent)
        if depth > DEEPEST:
            raise ParamsError(f"line {line}: nested too deeply")


def yaml_text(values: Any, flow: bool = False, lists: bool = False) -> str:
    """Return plain values as YAML that parses to the same values, also in YAML 1.1.

    `flow`: write everything in one line; `lists`: write the items of a list next to each other.
    """
    writer, width = (_ListWriter, LINE) if lists else (_Writer, float("inf"))
    return str(
        yaml.dump(values, Dumper=writer, sort_keys=False, allow_unicode=True, width=width, default_flow_style=flow)
    )


def value_at(values: Any, name: str) -> Any:
    """Return the value of a dotted name; None if there is none."""
    for part in name.split("."):
        values = values.get(part) if isinstance(values, Mapping) else None
    return values


def leaves(values: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Yield dotted name and value of every leaf in nested mappings; an empty mapping counts as a leaf."""
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from leaves(value, (*path, str(key)))
        else:
            yield ".".join((*path, str(key))), value
