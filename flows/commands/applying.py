"""What the commands that use a finished model have in common: which model, where it is computed, and how."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from flows.commands.options import Column, together
from flows.commands.project import given

if TYPE_CHECKING:
    from tasks.downstream.applying.job import How
    from tasks.downstream.applying.model import FoundModel
    from tasks.downstream.entries import Entry

AT_LEAST_ONE = click.IntRange(min=1)
ROWS_AT_ONCE, ROWS_ON_IPU = 64, 8


OPTIONS = (
    click.option(
        "--task", metavar="WORD", help="what the model is for, where its classes do not tell (sst2, qnli, ...)"
    ),
    click.option(
        "--tokenizer", type=click.Path(path_type=Path), metavar="FOLDER", help="where the model folder has none"
    ),
    click.option(
        "--column", "columns", multiple=True, type=Column(), help="a column of the file, where it has another name"
    ),
    click.option("--row-length", type=AT_LEAST_ONE, metavar="TOKENS", help="of a window (as the release, else 384)"),
    click.option("--doc-stride", type=AT_LEAST_ONE, metavar="TOKENS", help="that windows of a text share"),
    click.option(
        "--null-threshold", type=float, metavar="ODDS", help="above it a question gets no answer (the model's own)"
    ),
    click.option("--batch-size", type=AT_LEAST_ONE, metavar="ROWS", help=f"of a forward pass ({ROWS_AT_ONCE})"),
    click.option("--runtime", type=click.Choice(("auto", "cpu", "cuda", "ipu")), default="auto", show_default=True),
    click.option(
        "--precision", type=click.Choice(("auto", "fp32", "bf16", "fp16")), help="(fp32; with --runtime ipu auto)"
    ),
)


using_a_model = together(*OPTIONS)
"""The options, as arguments of their names; `columns` are pairs."""


def found_model(ctx: click.Context, name: str, stated: Mapping[str, Any]) -> tuple[FoundModel, Entry]:
    """The model that was named, and what it is for."""
    from tasks.downstream.applying.entry import entry_of
    from tasks.downstream.applying.model import find_model

    folder = given(ctx, Path(name))
    tokenizer = None if stated["tokenizer"] is None else given(ctx, stated["tokenizer"])
    model = find_model(str(folder) if folder.exists() else name, tokenizer)
    rows = {key: stated[key] for key in ("row_length", "doc_stride") if stated[key] is not None}
    data: dict[str, Any] = {"columns": dict(stated["columns"])} if stated["columns"] else {}
    sections = {"rows": rows, "data": data}
    if stated["null_threshold"] is not None:
        sections["evaluate"] = {"null_threshold": stated["null_threshold"]}
        data["unanswerable"] = "use"
    return model, entry_of(model, stated["task"], {name: values for name, values in sections.items() if values})


def how(stated: Mapping[str, Any]) -> How:
    """Where and how the model is computed; progress is said on standard error."""
    from tasks.downstream.applying.job import How
    from tasks.project.param_sections import Place

    logging.basicConfig(format="%(message)s", stream=sys.stderr)
    logging.getLogger("tasks").setLevel(logging.INFO)
    on_ipu = stated["runtime"] == "ipu"
    place = Place(stated["runtime"], stated["precision"] or ("auto" if on_ipu else "fp32"))
    rows = stated["batch_size"] or (ROWS_ON_IPU if on_ipu else ROWS_AT_ONCE)
    return How(place, rows, lambda text: click.echo(text, err=True))
