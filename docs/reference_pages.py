"""Documents that are made: from the types of params.yaml, from presets/, and from what click knows of the commands.

conf.py writes the pages of all parameters and all commands when the documents are built. schemas/ and a part of
docs/presets.md are kept by git, and written by: python -m docs.reference_pages
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
from ipu_model.files import write_text
from tasks.params.documentation import params_schema, preset_schema
from tasks.params.overlays import Preset, preset_names, read_preset, resolve
from tasks.params.schema import Params, check
from tasks.plan.main import run_main
from tasks.stage import artifacts
from tasks.stage.errors import InputError
from tasks.stage.process import takes_no_words

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
SCHEMAS = Path("schemas")
"""JSON Schemas of params.yaml and of presets, which editors read (`# yaml-language-server: ...`)."""
MAKERS = {"params": params_schema, "preset": preset_schema}
"""File of SCHEMAS without its ending -> what it holds."""
PAGE = Path("docs/presets.md")
BEGIN, END = "<!-- made by `python -m docs.reference_pages` from here", "<!-- to here -->"
COLUMNS = (
    "preset",
    "device",
    "pre-training: tokens in a row, sequences in an update, updates",
    "fine-tuning",
    "published by its source",
)
PRESETS_HEAD = f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}\n"


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
    with click.Context(cli, info_name="podium", **cli.context_settings) as parent:
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


def schema_text(name: str) -> str:
    """One of the schemas, as its file must be."""
    return json.dumps(MAKERS[name](), indent=1, ensure_ascii=False) + "\n"


def new_page(text: str, presets: Path = artifacts.PRESETS) -> str:
    """Return the page `text` with the part between its marks written from the presets.

    Raises:
        InputError: the page has no marks.
        ParamsError: a preset that cannot be used.
    """
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise InputError(f"{PAGE} must hold the lines {BEGIN} --> and {END}, between which the table stands")
    found = [read_preset(name, presets) for name in preset_names(presets)]
    resolved = [check(resolve({}, one.name, [], presets), one.name) for one in found]
    table = PRESETS_HEAD + "".join(_preset_row(one, params) for one, params in zip(found, resolved, strict=True))
    return f"{before}{BEGIN} -->\n{table}\n{''.join(map(_preset_section, found))}{END}{after}"


def _preset_row(preset: Preset, params: Params) -> str:
    tunings = [entry.finetune for entry in params.downstream.values()]
    cells = (
        f"[`{preset.name}`](#{preset.name})",
        params.device.runtime,
        _phases(params),
        "; ".join(
            f"{one.global_batch_size:,} sequences, {one.epochs:g} epochs, rate {one.learning_rate:g}" for one in tunings
        )
        or "none",
        ", ".join(f"{name} {value:g}" for name, value in preset.head.expected.published().items()) or "none",
    )
    return f"| {' | '.join(cells)} |\n"


def _phases(params: Params) -> str:
    if not params.pretrain.enabled:
        return f"none; starts from {params.base_model.repository or params.base_model.path}"
    rows, training = params.pretrain_rows, params.pretrain
    return "; ".join(
        f"{shape.row_length}, {batch.global_batch_size:,}, {batch.steps:,}"
        for shape, batch in ((rows.phase1, training.phase1), (rows.phase2, training.phase2))
    )


def _preset_section(preset: Preset) -> str:
    sources = "".join(f"* {source}\n" for source in preset.head.source)
    return f"### {preset.name}\n\n{preset.head.description.strip()}\n\n" + (f"{sources}\n" if sources else "")


def write_page(path: Path = PAGE) -> bool:
    """Write the page again; return whether it changed.

    Raises:
        InputError, ParamsError: see new_page.
    """
    before = path.read_text(encoding="utf-8")
    after = new_page(before)
    if after != before:
        write_text(path, after)
    return after != before


def main() -> None:
    takes_no_words(f"Write {SCHEMAS}/ from the types of params.yaml, and the presets into {PAGE}.")
    for name in MAKERS:
        write_text(SCHEMAS / f"{name}.json", schema_text(name))
        sys.stdout.write(f"{SCHEMAS / name}.json\n")
    changed = write_page()
    sys.stdout.write(f"{PAGE} {'was written' if changed else 'is up to date'}\n")


if __name__ == "__main__":
    run_main(main)
