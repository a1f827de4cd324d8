"""What the types of params.yaml say of themselves: a meaning for each parameter, a JSON Schema for editors, and the
reference page of all parameters.

The meaning is the docstring under the field; `podium params list`, the schemas and the page of all parameters take it
from here.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
import textwrap
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import pairwise
from typing import Any

from tasks.project.overlays import ENTRIES, Head
from tasks.project.param_downstream import ENTRY_NAME, EntryParams, kind_names, kind_params
from tasks.project.param_sections import Section
from tasks.project.params import Params

DRAFT = "https://json-schema.org/draft/2020-12/schema"
PAGE_HEAD = """# All parameters

Made from the types, so that it is what this version reads. `podium params list WORD` says the same on the terminal with
the values of your project; `podium params schema` gives it to programs, and editors with a YAML language server read it
from `schemas/`. A default is that of presets, of `podium finetune` and of `podium pretrain`; params.yaml states every
value itself, at first those of the demo.
"""
TABLE = "| key | what it may be | default | what it means |\n|---|---|---|---|\n"
MARKS = re.compile(r"([\\*_\[\]<>|#{}$~])")
DOCUMENT = re.compile(r"docs/([\w-]+\.md)")


@cache
def said_of_fields(section: type[Section]) -> dict[str, str]:
    """The docstring under each field of a section, of those too that it inherits; the last word counts."""
    found: dict[str, str] = {}
    for kind in reversed(section.__mro__):
        if issubclass(kind, Section) and kind is not Section:
            found.update(_docstrings(kind))
    return found


def _docstrings(kind: type) -> Iterator[tuple[str, str]]:
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(tree, ast.ClassDef)
    for field, text in pairwise(tree.body):
        stated = isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant) and text.value.value
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(stated, str):
            yield field.target.id, " ".join(stated.split())


def meanings(values: Mapping[str, Any], section: type[Section] = Params) -> dict[str, str]:
    """Dotted name -> meaning, of every parameter and section of `values`; of an entry, those of its kind."""
    found: dict[str, str] = {}
    for name, field in section.model_fields.items():
        key = field.alias or name
        if key not in values:
            continue
        found[key] = said_of_fields(section).get(name, "")
        for inner, of_inner, place in _inside(section, key, field.annotation, values[key]):
            found.update({f"{place}.{below}": text for below, text in meanings(of_inner, inner).items()})
    return found


def _inside(
    section: type[Section], key: str, inner: Any, value: Any
) -> Iterator[tuple[type[Section], Mapping[str, Any], str]]:
    """The sections that a value holds, each with its own values and its place."""
    if isinstance(inner, type) and issubclass(inner, Section) and isinstance(value, Mapping):
        yield inner, value, key
    elif section is Params and key in ENTRIES and isinstance(value, Mapping):
        for name, entry in value.items():
            if isinstance(entry, Mapping) and entry.get("kind") in kind_names():
                yield kind_params(entry["kind"]), entry, f"{key}.{name}"


def params_schema() -> dict[str, Any]:
    """The JSON Schema of params.yaml, which states every key."""
    return _document("params.yaml of Podium", _section(Params, whole=True), whole=True)


def preset_schema() -> dict[str, Any]:
    """The JSON Schema of a file of presets/: a head, and any of the parameters."""
    values, head = _section(Params, whole=False), _section(Head, whole=False)
    head["properties"]["expected"]["description"] = "Figures that the source published, as Podium names them."
    merged = {**values, "properties": {**head["properties"], **values["properties"]}, "required": ["description"]}
    return _document("A preset of Podium", merged, whole=False)


def _document(title: str, schema: dict[str, Any], whole: bool) -> dict[str, Any]:
    kinds = {name: _section(kind_params(name), whole) for name in kind_names()}
    return {"$schema": DRAFT, "title": title, **schema, "$defs": kinds}


def _section(section: type[Section], whole: bool) -> dict[str, Any]:
    """A section as JSON Schema, those in it written out.

    Args:
        whole: every key must be stated, as in params.yaml, and not only what differs, as in a preset.
    """
    leaves = section.model_json_schema(by_alias=True)["properties"]
    properties: dict[str, Any] = {}
    for name, field in section.model_fields.items():
        key, inner = field.alias or name, field.annotation
        if isinstance(inner, type) and issubclass(inner, Section):
            schema = _section(inner, whole)
        elif section is Params and key in ENTRIES:
            schema = _entries()
        else:
            schema = {word: value for word, value in leaves[key].items() if word != "title"}
        if issubclass(section, EntryParams) and key == "kind":
            schema["enum"] = kind_names()
        properties[key] = {"description": said_of_fields(section).get(name, ""), **schema}
    required = {"required": list(properties)} if whole else {}
    return {"type": "object", "properties": properties, "additionalProperties": False, **required}


def _entries() -> dict[str, Any]:
    """Entries by their names; the kind of each says what it holds."""
    kinds = [
        {"if": {"properties": {"kind": {"const": name}}, "required": ["kind"]}, "then": {"$ref": f"#/$defs/{name}"}}
        for name in kind_names()
    ]
    kind = {"enum": kind_names(), "description": said_of_fields(EntryParams)["kind"]}
    entry = {"type": "object", "required": ["kind"], "properties": {"kind": kind}, "allOf": kinds}
    return {
        "type": "object",
        "propertyNames": {"pattern": f"^{ENTRY_NAME.pattern}$"},
        "additionalProperties": entry,
    }


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


def params_page() -> str:
    """The whole page, in Markdown."""
    schema = params_schema()
    plain = [(key, one) for key, one in schema["properties"].items() if "properties" not in one and key != "downstream"]
    parts = [PAGE_HEAD, "\n## Beside the sections\n\n", TABLE, *(_row(key, one) for key, one in plain)]
    for key, one in schema["properties"].items():
        if "properties" in one:
            parts += _section_tables(key, one, 2)
        elif key == "downstream":
            parts += [f"\n## {key}\n\n{escaped(one['description'])}\n", *_kinds(schema["$defs"])]
    return "".join(parts)


def _kinds(kinds: dict[str, Any]) -> Iterator[str]:
    for kind, one in kinds.items():
        yield from _section_tables(f"downstream.NAME, kind {kind}", one, 3)


def _section_tables(name: str, schema: dict[str, Any], depth: int) -> Iterator[str]:
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
