"""Documentation of params.yaml from its types: a meaning for each parameter, and a JSON Schema for editors.

The docstring under a field is its meaning. `podium params list`, the schemas and the page of all parameters
(docs/reference_pages.py) use it.
"""

import ast
import inspect
import json
import textwrap
from collections.abc import Mapping
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from ipu_model.core.files import write_text
from tasks.params.downstream import ENTRY_NAME, EntryParams, kind_names, kind_params
from tasks.params.overlays import ENTRIES, PresetHeader
from tasks.params.schema import Params, walk_parameters
from tasks.params.sections import Section, SectionOfPhases, is_left_out

DRAFT = "https://json-schema.org/draft/2020-12/schema"
SCHEMAS = Path("schemas")
"""Folder of the schemas that the first line of params.yaml and of each preset names."""


@cache
def read_field_meanings(section: type[Section]) -> dict[str, str]:
    """Return key -> docstring under the field, inherited fields included; a subclass overrides its bases."""
    texts: dict[str, str] = {}
    for kind in reversed(section.__mro__):
        if not issubclass(kind, Section) or kind is Section:
            continue
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
        assert isinstance(tree, ast.ClassDef)
        for field, text in pairwise(tree.body):
            docstring = isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant) and text.value.value
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(docstring, str):
                texts[field.target.id] = " ".join(docstring.split())
    return {field.alias or name: texts.get(name, "") for name, field in section.model_fields.items()}


def collect_meanings(values: Mapping[str, Any]) -> dict[str, str]:
    """Return dotted name -> meaning of every parameter and section in `values`, for entries by their kind."""
    return {
        name: read_field_meanings(section)[key] for name, section, key, present in walk_parameters(values) if present
    }


def params_schema() -> dict[str, Any]:
    """Return the JSON Schema of params.yaml, which requires every key."""
    return _document("params.yaml of Podium", _section(Params, whole=True), whole=True)


def preset_schema() -> dict[str, Any]:
    """Return the JSON Schema of a preset file: a header and any of the parameters."""
    values, head = _section(Params, whole=False), _section(PresetHeader, whole=False)
    merged = {**values, "properties": {**head["properties"], **values["properties"]}, "required": ["description"]}
    return _document("Podium preset", merged, whole=False)


def write_schemas() -> list[Path]:
    """Write the schemas for editors into the project and return their paths."""
    schemas = {SCHEMAS / "params.json": params_schema(), SCHEMAS / "preset.json": preset_schema()}
    for path, schema in schemas.items():
        write_text(path, json.dumps(schema, indent=1, ensure_ascii=False) + "\n")
    return list(schemas)


def _document(title: str, schema: dict[str, Any], whole: bool) -> dict[str, Any]:
    kinds = {name: _section(kind_params(name), whole) for name in kind_names()}
    return {"$schema": DRAFT, "title": title, **schema, "$defs": kinds}


def _section(section: type[Section], whole: bool) -> dict[str, Any]:
    """Return the JSON Schema of a section with its inner sections written out; `whole`: require every key."""
    leaves = section.model_json_schema(by_alias=True)["properties"]
    properties: dict[str, Any] = {}
    for key, field in section.get_fields().items():
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, Section):
            schema = _section(inner, whole)
        elif section is Params and key in ENTRIES:
            schema = _entries()
        else:
            schema = {word: value for word, value in leaves[key].items() if word != "title"}
        if issubclass(section, EntryParams) and key == "kind":
            schema["enum"] = kind_names()
        properties[key] = {"description": read_field_meanings(section)[key], **schema}
    written = [key for key, field in section.get_fields().items() if not is_left_out(field)]
    required = {"required": written} if whole else {}
    others: Any = False
    if issubclass(section, SectionOfPhases):
        added = section.added
        others = _section(added, whole) if isinstance(added, type) else {"type": ["object", "null"]}
    return {"type": "object", "properties": properties, "additionalProperties": others, **required}


def _entries() -> dict[str, Any]:
    """Return the JSON Schema of entries by name; the kind of each decides its keys."""
    kinds = [
        {"if": {"properties": {"kind": {"const": name}}, "required": ["kind"]}, "then": {"$ref": f"#/$defs/{name}"}}
        for name in kind_names()
    ]
    kind = {"enum": kind_names(), "description": read_field_meanings(EntryParams)["kind"]}
    entry = {"type": "object", "required": ["kind"], "properties": {"kind": kind}, "allOf": kinds}
    return {
        "type": "object",
        "propertyNames": {"pattern": f"^{ENTRY_NAME.pattern}$"},
        "additionalProperties": entry,
    }
