"""schemas/: the JSON Schemas of params.yaml and of presets, which editors read (`# yaml-language-server: ...`)."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from ipu_model.files import write_text
from tasks.project.main import run_main
from tasks.project.param_docs import params_schema, preset_schema
from tasks.project.process import takes_no_words

FOLDER = Path("schemas")
MAKERS = {"params": params_schema, "preset": preset_schema}
"""File without its ending -> what it holds."""


def text_of(name: str) -> str:
    """One of the files, as it must be."""
    return json.dumps(MAKERS[name](), indent=1, ensure_ascii=False) + "\n"


def main() -> None:
    takes_no_words(f"Write {FOLDER}/ from the types of params.yaml.")
    for name in MAKERS:
        write_text(FOLDER / f"{name}.json", text_of(name))
        sys.stdout.write(f"{FOLDER / name}.json\n")


if __name__ == "__main__":
    run_main(main)
