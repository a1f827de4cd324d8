"""Files that are made: schemas/ from the types of params.yaml, and a part of docs/presets.md from presets/.

python -m tasks.project.generated_docs
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from ipu_model.files import write_text
from tasks.project import artifacts
from tasks.project.errors import InputError
from tasks.project.main import run_main
from tasks.project.overlays import Preset, preset_names, read_preset, resolve
from tasks.project.param_docs import params_schema, preset_schema
from tasks.project.params import Params, check
from tasks.project.process import takes_no_words

SCHEMAS = Path("schemas")
"""JSON Schemas of params.yaml and of presets, which editors read (`# yaml-language-server: ...`)."""
MAKERS = {"params": params_schema, "preset": preset_schema}
"""File of SCHEMAS without its ending -> what it holds."""
PAGE = Path("docs/presets.md")
BEGIN, END = "<!-- made by `python -m tasks.project.generated_docs` from here", "<!-- to here -->"
COLUMNS = (
    "preset",
    "device",
    "pre-training: tokens in a row, sequences in an update, updates",
    "fine-tuning",
    "published by its source",
)
HEAD = f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}\n"


def schema_text(name: str) -> str:
    """One of the schemas, as its file must be."""
    return json.dumps(MAKERS[name](), indent=1, ensure_ascii=False) + "\n"


def new_page(text: str, presets: Path = artifacts.PRESETS) -> str:
    """The page, of which `text` is what it was, with what lies between its marks made anew.

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
    table = HEAD + "".join(_row(one, params) for one, params in zip(found, resolved, strict=True))
    return f"{before}{BEGIN} -->\n{table}\n{''.join(map(_section, found))}{END}{after}"


def _row(preset: Preset, params: Params) -> str:
    tunings = [entry.finetune for entry in params.downstream.values()]
    cells = (
        f"[`{preset.name}`](#{preset.name})",
        params.device.runtime,
        _phases(params),
        "; ".join(
            f"{one.global_batch_size:,} sequences, {one.epochs:g} epochs, rate {one.learning_rate:g}" for one in tunings
        )
        or "none",
        figures(preset),
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


def figures(preset: Preset) -> str:
    """The figures that the source of a preset published, in words."""
    said = preset.head.expected.published()
    return ", ".join(f"{name} {value:g}" for name, value in said.items()) or "none"


def _section(preset: Preset) -> str:
    sources = "".join(f"* {source}\n" for source in preset.head.source)
    return f"### {preset.name}\n\n{preset.head.description.strip()}\n\n" + (f"{sources}\n" if sources else "")


def write_page(path: Path = PAGE) -> bool:
    """Make the page anew; whether it changed.

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
    sys.stdout.write(f"{PAGE} {'was written anew' if changed else 'is as the presets are'}\n")


if __name__ == "__main__":
    run_main(main)
