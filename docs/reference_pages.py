"""The reference pages of all parameters and all commands, which conf.py writes when the documents are built.

They are made from the types of params.yaml and from what click knows of the commands.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import click

from flows.cli import COMMANDS, cli
from tasks.project.param_docs import params_schema

PARAMS_HEAD = """# All parameters

Made from the types, so that it is what this version reads. `podium params list WORD` says the same on the terminal with
the values of your project; `podium params schema` gives it to programs, and editors with a YAML language server read it
from `schemas/`. A default is that of presets, of `podium finetune` and of `podium pretrain`; params.yaml states every
value itself, at first those of the demo.
"""
TABLE = "| key | what it may be | default | what it means |\n|---|---|---|---|\n"
MARKS = re.compile(r"([\\*_\[\]<>|#{}$~])")
DOCUMENT = re.compile(r"docs/([\w-]+\.md)")
COMMANDS_HEAD = """# All commands

Made from the commands themselves: `podium COMMAND --help` says the same. `--project DIR` before a command names a clone
of Podium other than the one around the folder you stand in. Files count from where you stand. What a run's exit code
means is told in [How a run ends](../ending.md).
"""


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
    parts = [PARAMS_HEAD, "\n## Beside the sections\n\n", TABLE, *(_row(key, one) for key, one in plain)]
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
    """Return the values that a parameter accepts: the words of an enumeration, or a type and its bounds."""
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


def commands_page() -> str:
    """The whole page, in Markdown."""
    parts = [COMMANDS_HEAD]
    with click.Context(cli, info_name="podium") as parent:
        for name, line in COMMANDS.items():
            command = cli.get_command(parent, name)
            assert command is not None
            parts += _command(command, name, parent, line, 2)
    return "".join(parts)


def _command(command: click.Command, name: str, parent: click.Context, line: str, depth: int) -> Iterator[str]:
    """A command with its usage and words, then those below it."""
    with click.Context(command, info_name=name, parent=parent) as here:
        yield f"\n{'#' * depth} {here.command_path}\n\n"
        yield f"{escaped(command.help or line)}\n\n"
        yield f"```text\n{' '.join([here.command_path, *command.collect_usage_pieces(here)])}\n```\n"
        yield from _options(command, here)
        if isinstance(command, click.Group):
            for below in command.list_commands(here):
                found = command.get_command(here, below)
                assert found is not None
                yield from _command(found, below, here, "", depth + 1)


def _options(command: click.Command, here: click.Context) -> Iterator[str]:
    """A table of the options."""
    records = [one.get_help_record(here) for one in command.params if not getattr(one, "hidden", False)]
    rows = [(words, text) for words, text in filter(None, records) if text]  # the usage line names the arguments
    if rows:
        yield "\n| option | what it says |\n|---|---|\n"
    for words, text in rows:
        code = words.replace("|", "\\|")
        yield f"| `{code}` | {escaped(text)} |\n"
