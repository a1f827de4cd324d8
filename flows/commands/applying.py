"""What the commands that use a finished model have in common: which model, where it is computed, and how."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from flows.commands.options import of_parameter, read_column, together
from flows.commands.project import Place, given
from tasks.params.downstream import RowsParams
from tasks.params.sections import DeviceParams
from tasks.stage import streams

if TYPE_CHECKING:
    from flows.runs.given_model import NamedModel
    from tasks.downstream.inference.job import How
    from tasks.downstream.inference.model import FoundModel
    from tasks.params.entries import Entry

AT_LEAST_ONE = click.IntRange(min=1)
ROWS_AT_ONCE, ROWS_ON_IPU = 64, 8

using_a_model = together(
    click.option(
        "--task", metavar="WORD", help="what the model is for, where its classes do not tell (sst2, qnli, ...)"
    ),
    click.option(
        "--tokenizer", type=click.Path(path_type=Path), metavar="FOLDER", help="where the model folder has none"
    ),
    click.option(
        "--column",
        "columns",
        multiple=True,
        type=read_column,
        metavar="PART=NAME",
        help="a column of the file, where it has another name",
    ),
    click.option(
        "--separator", metavar="SIGN", help="of the fields of a .csv file (comma, semicolon, tab, ...; found)"
    ),
    of_parameter(RowsParams, "row_length", metavar="TOKENS", help="of a window (as the release, else 384)"),
    click.option("--doc-stride", type=AT_LEAST_ONE, metavar="TOKENS", help="that windows of a text share"),
    click.option(
        "--null-threshold", type=float, metavar="ODDS", help="above it a question gets no answer (the model's own)"
    ),
    click.option("--batch-size", type=AT_LEAST_ONE, metavar="ROWS", help=f"of a forward pass ({ROWS_AT_ONCE})"),
    of_parameter(DeviceParams, "runtime", default="auto"),
    of_parameter(
        DeviceParams,
        "precision",
        help="(that of the scores which the release or run states, else fp32; with --runtime ipu auto)",
    ),
)
"""The options, as arguments of their names; `columns` are pairs."""


def named_model(ctx: click.Context, name: str, tokenizer: Path | None) -> NamedModel:
    """A model by its folder, seen from where one stands, by the run that trained it, or by its name on the Hub.

    Raises:
        ParamsError: a run that trained no model yet, or several.
    """
    from flows.runs.checkout import own_folder
    from flows.runs.given_model import NamedModel, trained_in
    from tasks.stage import artifacts

    place: Place = ctx.obj
    folder = given(ctx, Path(name))
    run = folder if folder.exists() or place.found is None else own_folder(place.found, name)
    if tokenizer is None and place.found is not None and (run / artifacts.PARAMS).is_file():
        return trained_in(place.found, run)
    return NamedModel(str(folder) if folder.exists() else name, tokenizer and given(ctx, tokenizer))


def found_model(ctx: click.Context, name: str, stated: Mapping[str, Any]) -> tuple[FoundModel, Entry]:
    """The model that was named, and what it is for."""
    from tasks.downstream.inference.entry import entry_of
    from tasks.downstream.inference.model import find_model

    named = named_model(ctx, name, stated["tokenizer"])
    model = find_model(named.name, named.tokenizer)
    rows = {key: stated[key] for key in ("row_length", "doc_stride") if stated[key] is not None}
    columns = {**named.entry.get("data", {}).get("columns", {}), **dict(stated["columns"])}
    data: dict[str, Any] = {"columns": columns} if columns else {}
    if stated["separator"] is not None:
        data["separator"] = stated["separator"]
    sections = {"rows": rows, "data": data}
    if stated["null_threshold"] is not None:
        sections["evaluate"] = {"null_threshold": stated["null_threshold"]}
        data["unanswerable"] = "use"
    own = {name: values for name, values in sections.items() if values}
    return model, entry_of(model, stated["task"], own, named.entry)


def how(model: FoundModel, stated: Mapping[str, Any]) -> How:
    """Where and how the model is computed; progress is said on standard error."""
    from tasks.downstream.inference.job import How, choose_place

    logging.basicConfig(format="%(message)s", stream=sys.stderr)
    logging.getLogger("tasks").setLevel(logging.INFO)
    place = choose_place(model.folder, stated["runtime"], stated["precision"])
    rows = stated["batch_size"] or (ROWS_ON_IPU if place.runtime == "ipu" else ROWS_AT_ONCE)
    return How(place, rows, lambda text: streams.note(text, ""))
