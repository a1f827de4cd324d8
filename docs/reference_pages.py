"""Generated documents: parameters from the types of params.yaml, presets from presets/, commands from click.

conf.py writes the pages of all parameters and all commands when the site is built. A part of docs/presets.md is in git,
and written by: python -m docs.reference_pages
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from flows.cli import COMMANDS, cli
from ipu_model.core.files import write_text
from tasks.params.documentation import params_schema
from tasks.params.overlays import Preset, list_preset_names, read_preset, resolve
from tasks.params.schema import Params, validate_params
from tasks.plan.main import run_main
from tasks.stage import artifacts
from tasks.stage.errors import InputError
from tasks.stage.process import parse_no_arguments

PARAMS_HEAD = """# Which parameters are there?

This page is generated from the types, so it lists what this version reads. `podium params list WORD` shows the same
on the terminal with the values of your project. `podium params schema` prints it for programs, and editors with a
YAML language server read it from `schemas/`, which `make setup` writes. Defaults apply to presets, `podium finetune`
and `podium pretrain`; params.yaml states every value itself, initially those of the demo.
"""
TABLE = "| key | values | default | meaning |\n|---|---|---|---|\n"
MARKS = re.compile(r"([\\*_\[\]<>|#{}$~])")
DOCUMENT = re.compile(r"docs/([\w-]+\.md)")
COMMANDS_HEAD = """# Which commands are there?

This page is generated from the commands: `podium COMMAND --help` prints the same. `--project DIR` before a command
selects a clone of Podium other than that of the current folder. Paths are relative to the current folder. See also
[exit codes](../survive.md#exit-codes).
"""
PAGE = Path("docs/presets.md")
BEGIN, END = "<!-- made by `python -m docs.reference_pages` from here", "<!-- to here -->"
COLUMNS = (
    "presets",
    "layers of width",
    "pre-training: tokens in a row, sequences in an update, updates",
    "fine-tuning",
    "published by their source",
)
PRESETS_HEAD = f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}\n"


def escape_markdown(text: str) -> str:
    """Return text as Markdown that shows it unchanged; backticks mark code, and names of documents become links."""
    parts = " ".join(text.split()).split("`")
    if len(parts) % 2 == 0:  # an unpaired backtick
        return r"\`".join(map(_link_documents, (MARKS.sub(r"\\\1", part) for part in parts)))
    shown = [
        _link_documents(MARKS.sub(r"\\\1", part)) if at % 2 == 0 else _format_code(part)
        for at, part in enumerate(parts)
    ]
    return "".join(shown)


def _link_documents(text: str) -> str:
    return DOCUMENT.sub(r"[docs/\1](../\1)", text)


def _format_code(text: str) -> str:
    """Return text as code that is also valid in a table cell."""
    return "`" + text.replace("|", "\\|") + "`"


def build_params_page() -> str:
    """Return the page of all parameters in Markdown."""
    schema = params_schema()
    plain = [(key, one) for key, one in schema["properties"].items() if "properties" not in one and key != "downstream"]
    parts = [PARAMS_HEAD, "\n## Top-level keys\n\n", TABLE, *(_parameter_row(key, one) for key, one in plain)]
    for key, one in schema["properties"].items():
        if "properties" in one:
            parts += _section_tables(key, one, 2)
        elif key == "downstream":
            parts += [f"\n## {key}\n\n{escape_markdown(one['description'])}\n", *_kind_tables(schema["$defs"])]
    return "".join(parts)


def _kind_tables(kinds: dict[str, Any]) -> Iterator[str]:
    for kind, one in kinds.items():
        yield from _section_tables(f"downstream.NAME, kind {kind}", one, 3)


def _section_tables(name: str, schema: dict[str, Any], depth: int) -> Iterator[str]:
    """Yield a heading and one table of all keys of a section; keys of nested sections have dotted names."""
    yield f"\n{'#' * depth} {name}\n\n"
    if text := schema.get("description"):
        yield f"{escape_markdown(text)}\n\n"
    rows = list(_parameter_rows(schema, ""))
    if rows:
        yield TABLE
        yield from rows


def _parameter_rows(schema: dict[str, Any], before: str) -> Iterator[str]:
    for key, one in schema["properties"].items():
        if "properties" in one:
            yield from _parameter_rows(one, f"{before}{key}.")
        else:
            yield _parameter_row(f"{before}{key}", one)


def _parameter_row(name: str, schema: dict[str, Any]) -> str:
    default = _format_code(json.dumps(schema["default"], ensure_ascii=False)) if "default" in schema else "required"
    return (
        f"| {_format_code(name)} | {format_values(schema)} | {default} | {escape_markdown(schema['description'])} |\n"
    )


def format_values(schema: dict[str, Any]) -> str:
    """Return the values that a parameter accepts: an enumeration, or a type and its bounds."""
    if "anyOf" in schema:
        return " or ".join(format_values(one) for one in schema["anyOf"])
    if "enum" in schema:
        return ", ".join(_format_code(str(one)) for one in schema["enum"])
    if "const" in schema:
        return _format_code(str(schema["const"]))
    kind = schema.get("type", "any")
    if kind == "array":
        return f"list of {format_values(schema['items'])}"
    words = {"boolean": "true or false", "string": "text", "object": "keys with values"}
    return ", ".join([words.get(kind, kind), *_format_bounds(schema)])


def _format_bounds(schema: dict[str, Any]) -> Iterator[str]:
    for word, text in (
        ("minimum", "at least"),
        ("exclusiveMinimum", "above"),
        ("maximum", "at most"),
        ("exclusiveMaximum", "below"),
        ("minLength", "minimum length"),
    ):
        if word in schema:
            yield f"{text} {schema[word]:,}" if isinstance(schema[word], int) else f"{text} {schema[word]:g}"


def build_commands_page() -> str:
    """Return the page of all commands in Markdown."""
    parts = [COMMANDS_HEAD]
    with click.Context(cli, info_name="podium", **cli.context_settings) as parent:
        for name, line in COMMANDS.items():
            command = cli.get_command(parent, name)
            assert command is not None
            parts += _command_sections(command, name, parent, line, 2)
    return "".join(parts)


def _command_sections(command: click.Command, name: str, parent: click.Context, line: str, depth: int) -> Iterator[str]:
    """Yield a command with its usage and options, then its subcommands."""
    with click.Context(command, info_name=name, parent=parent) as here:
        yield f"\n{'#' * depth} {here.command_path}\n\n"
        yield f"{escape_markdown(command.help or line)}\n\n"
        yield f"```text\n{' '.join([here.command_path, *command.collect_usage_pieces(here)])}\n```\n"
        yield from _options_table(command, here)
        if isinstance(command, click.Group):
            for below in command.list_commands(here):
                found = command.get_command(here, below)
                assert found is not None
                yield from _command_sections(found, below, here, "", depth + 1)


def _options_table(command: click.Command, here: click.Context) -> Iterator[str]:
    """Yield a table of the options."""
    records = [one.get_help_record(here) for one in command.params if not getattr(one, "hidden", False)]
    rows = [(words, text) for words, text in filter(None, records) if text]  # the usage line names the arguments
    if rows:
        yield "\n| option | meaning |\n|---|---|\n"
    for words, text in rows:
        code = words.replace("|", "\\|")
        yield f"| `{code}` | {escape_markdown(text)} |\n"


def fill_presets_page(text: str, presets: Path = artifacts.PRESETS) -> str:
    """Return the page `text` with the presets between its marks.

    Raises:
        InputError: the page has no marks.
        ParamsError: a preset is invalid.
    """
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise InputError(f"{PAGE} needs the lines {BEGIN} --> and {END} around the generated table")
    found = [read_preset(name, presets) for name in list_preset_names(presets)]
    resolved = [validate_params(resolve({}, one.name, [], presets), one.name) for one in found]
    recipes: dict[str, list[str]] = {}
    for one, params in zip(found, resolved, strict=True):
        device = f" ({params.device.runtime})" if not one.name.startswith(f"{params.device.runtime}-") else ""
        recipes.setdefault(_format_recipe(one, params), []).append(
            f"[`{one.name}`](../presets/{one.name}.yaml){device}"
        )
    table = PRESETS_HEAD + "".join(f"| {', '.join(names)} | {recipe} |\n" for recipe, names in recipes.items())
    return f"{before}{BEGIN} -->\n{table}{END}{after}"


def _format_recipe(preset: Preset, params: Params) -> str:
    """Return the cells that presets for several devices and pods have in common."""
    tunings = [entry.finetune for entry in params.downstream.values()]
    cells = (
        f"{params.model.num_layers} of {params.model.hidden_size}",
        _format_phases(params),
        "; ".join(
            f"{one.global_batch_size:,} sequences, {one.epochs:g} epochs, rate {one.learning_rate:g}" for one in tunings
        )
        or "none",
        ", ".join(f"{name} {value:g}" for name, value in preset.head.expected.items()) or "none",
    )
    return " | ".join(cells)


def _format_phases(params: Params) -> str:
    if not params.pretrain.enabled:
        return f"none; starts from {params.base_model.repository or params.base_model.path}"
    phases = [
        (params.pretrain_rows.get_phase(phase), params.pretrain.get_phase(phase))
        for phase in params.pretrain.list_phases()
    ]
    return "; ".join(f"{rows.row_length}, {batch.global_batch_size:,}, {batch.steps:,}" for rows, batch in phases)


def write_presets_page(path: Path = PAGE) -> bool:
    """Write the page again and return True if it changed.

    Raises:
        InputError, ParamsError: see fill_presets_page.
    """
    before = path.read_text(encoding="utf-8")
    after = fill_presets_page(before)
    if after != before:
        write_text(path, after)
    return after != before


def main() -> None:
    parse_no_arguments(f"Write the presets into {PAGE}.")
    changed = write_presets_page()
    sys.stdout.write(f"{PAGE} {'was written' if changed else 'is up to date'}\n")


if __name__ == "__main__":
    run_main(main)
