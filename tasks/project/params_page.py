"""The reference page of all parameters, made from the schema of params.yaml when the documents are built."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from tasks.project.param_docs import params_schema

HEAD = """# All parameters

Made from the types, so that it is what this version reads. `podium params list WORD` says the same on the terminal with
the values of your project; `podium params schema` gives it to programs, and editors with a YAML language server read it
from `schemas/`. A default is that of presets, of `podium finetune` and of `podium pretrain`; params.yaml states every
value itself, at first those of the demo.
"""
TABLE = "| key | what it may be | default | what it means |\n|---|---|---|---|\n"
MARKS = re.compile(r"([\\*_\[\]<>|#{}$~])")
DOCUMENT = re.compile(r"docs/([\w-]+\.md)")


def escaped(text: str) -> str:
    """Words as Markdown that shows them; what stands between backticks stays code, and a document becomes a link."""
    parts = " ".join(text.split()).split("`")
    if len(parts) % 2 == 0:  # a backtick without its other half
        return r"\`".join(map(_link, (MARKS.sub(r"\\\1", part) for part in parts)))
    shown = [_link(MARKS.sub(r"\\\1", part)) if at % 2 == 0 else _code(part) for at, part in enumerate(parts)]
    return "".join(shown)


def _link(text: str) -> str:
    return DOCUMENT.sub(r"[docs/\1](../\1)", text)


def _code(text: str) -> str:
    """As code, in a cell of a table, too."""
    return "`" + text.replace("|", "\\|") + "`"


def page() -> str:
    """The whole page, in Markdown."""
    schema = params_schema()
    plain = [(key, one) for key, one in schema["properties"].items() if "properties" not in one and key != "downstream"]
    parts = [HEAD, "\n## Beside the sections\n\n", TABLE, *(_row(key, one) for key, one in plain)]
    for key, one in schema["properties"].items():
        if "properties" in one:
            parts += _section(key, one, 2)
        elif key == "downstream":
            parts += [f"\n## {key}\n\n{escaped(one['description'])}\n", *_kinds(schema["$defs"])]
    return "".join(parts)


def _kinds(kinds: dict[str, Any]) -> Iterator[str]:
    for kind, one in kinds.items():
        yield from _section(f"downstream.NAME, kind {kind}", one, 3)


def _section(name: str, schema: dict[str, Any], depth: int) -> Iterator[str]:
    """A heading, a table of the keys that are no sections, and the sections below as tables of their own."""
    yield f"\n{'#' * depth} {name}\n\n"
    if text := schema.get("description"):
        yield f"{escaped(text)}\n\n"
    rows = list(_rows(schema, ""))
    if rows:
        yield TABLE
        yield from rows


def _rows(schema: dict[str, Any], before: str) -> Iterator[str]:
    for key, one in schema["properties"].items():
        if "properties" in one:
            yield from _rows(one, f"{before}{key}.")
        else:
            yield _row(f"{before}{key}", one)


def _row(name: str, schema: dict[str, Any]) -> str:
    default = _code(json.dumps(schema["default"], ensure_ascii=False)) if "default" in schema else "must be said"
    return f"| {_code(name)} | {values_in_words(schema)} | {default} | {escaped(schema['description'])} |\n"


def values_in_words(schema: dict[str, Any]) -> str:
    """What a value may be: words of an enumeration, a type with its bounds."""
    if "anyOf" in schema:
        return " or ".join(values_in_words(one) for one in schema["anyOf"])
    if "enum" in schema:
        return ", ".join(_code(str(one)) for one in schema["enum"])
    if "const" in schema:
        return _code(str(schema["const"]))
    kind = schema.get("type", "any")
    if kind == "array":
        return f"list of {values_in_words(schema['items'])}"
    words = {"boolean": "true or false", "string": "text", "object": "keys with values"}
    return ", ".join([words.get(kind, kind), *_bounds(schema)])


def _bounds(schema: dict[str, Any]) -> Iterator[str]:
    for word, text in (
        ("minimum", "at least"),
        ("exclusiveMinimum", "above"),
        ("maximum", "at most"),
        ("exclusiveMaximum", "below"),
        ("minLength", "letters at least:"),
    ):
        if word in schema:
            yield f"{text} {schema[word]:,}" if isinstance(schema[word], int) else f"{text} {schema[word]:g}"
