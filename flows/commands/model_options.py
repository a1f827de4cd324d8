"""Options of the commands that use a finished model: which model, on which device, and in which precision."""

from __future__ import annotations

import functools
import logging
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from flows.commands.options import (
    FILE,
    READING,
    column_option,
    combine_options,
    join_columns,
    parameter_option,
    reading_options,
)
from flows.commands.project import CommandContext, resolve_path
from tasks.params.downstream import RowsParams, data_params, kind_names
from tasks.params.sections import DeviceParams
from tasks.stage import artifacts, streams
from tasks.stage.errors import InputError, require_packages

if TYPE_CHECKING:
    from tasks.downstream.inference.job import InferenceOptions
    from tasks.downstream.inference.model import InferenceModel
    from tasks.params.entries import Entry

AT_LEAST_ONE = click.IntRange(min=1)
PROBABILITY = click.FloatRange(0, 1)
ROWS_AT_ONCE, ROWS_ON_IPU = 64, 8
SECTIONS = {
    "rows": ("row_length", "doc_stride"),
    "data": ("separator", *READING),
    "evaluate": ("null_threshold", "threshold", "min_probability"),
}
"""Section of an entry -> its parameters that are options here."""

tokenizer_option = click.option("--tokenizer", type=FILE, metavar="DIR", help="tokenizer, if the model folder has none")
null_threshold_option = click.option(
    "--null-threshold",
    type=float,
    metavar="ODDS",
    help="score above which no answer is returned (default: the model's)",
)
inference_options = combine_options(
    click.option("--task", metavar="NAME", help="task of the model, if its classes do not tell (sst2, qnli, ...)"),
    tokenizer_option,
    column_option("the file that holds PART (context, question, ...)"),
    click.option("--separator", metavar="SIGN", help="field separator of a .csv file (default: detect)"),
    *reading_options(*map(data_params, kind_names())),
    parameter_option(
        RowsParams, "row_length", metavar="TOKENS", help="window length (default: of the release, else 384)"
    ),
    click.option("--doc-stride", type=AT_LEAST_ONE, metavar="TOKENS", help="overlap of consecutive windows of a text"),
    null_threshold_option,
    click.option("--threshold", type=PROBABILITY, metavar="P", help="predict labels above this probability"),
    click.option("--min-probability", type=PROBABILITY, metavar="P", help="predict no class below this probability"),
    click.option("--batch-size", type=AT_LEAST_ONE, metavar="ROWS", help=f"rows per forward pass ({ROWS_AT_ONCE})"),
    click.option(
        "--backend",
        type=click.Choice(("torch", *artifacts.EXPORT_FILES)),
        default="torch",
        help="answer with the weights (torch), or with the exported file onnx/model.onnx or its int8 version",
    ),
    parameter_option(DeviceParams, "runtime", default="auto"),
    parameter_option(
        DeviceParams,
        "precision",
        help="precision (default: that of the recorded scores, else fp32; auto with --runtime ipu)",
    ),
)
"""Options of commands that use a model. Arguments have the options' names; `columns` holds pairs."""


def resolve_model(
    ctx: click.Context, name: str, tokenizer: Path | None, find: Callable[[str, Path | None], InferenceModel]
) -> tuple[InferenceModel, Mapping[str, Any]]:
    """Return a model: a folder, relative to the current one; the run that trained it; or a repository of the Hub.

    Args:
        ctx: context of the command.
        name: name of the model.
        tokenizer: folder of its tokenizer, if it is elsewhere.
        find: finds a folder or a repository, with a tokenizer.

    Returns:
        The model, and the entry of `downstream` that a run trained it for; empty for other models.

    Raises:
        ParamsError: the run has not trained a model yet, or has trained several.
    """
    from flows.runs.checkout import checkout_folder
    from flows.runs.model_source import find_finetuned

    context: CommandContext = ctx.obj
    folder = resolve_path(ctx, Path(name))
    run = folder if folder.exists() or context.project is None else checkout_folder(context.project, name)
    if tokenizer is None and context.project is not None and (run / artifacts.PARAMS).is_file():
        trained, entry = find_finetuned(context.project, run)
        return find(str(trained), run / artifacts.TOKENIZER), entry
    if folder.is_dir():
        _note_champion(folder, name)
    elif (
        context.project is not None
        and folder.parent == context.project / artifacts.RELEASES
        and checkout_folder(context.project, folder.name).is_dir()
    ):
        raise InputError(f"run {folder.name} has published nothing: podium runs show {folder.name} tells why")
    return find(str(folder) if folder.exists() else name, tokenizer and resolve_path(ctx, tokenizer)), {}


def _note_champion(folder: Path, name: str) -> None:
    """Note that a published folder has its newest release if its champion is another one, as after a rollback."""
    from tasks.release.names import CHAMPION, FolderReleases

    releases = FolderReleases(folder, name.rstrip("/"))
    if champion := releases.find_other_champion():
        streams.note(f"{name} is its newest release; {CHAMPION} is {champion}: {releases.address(CHAMPION)}")


def load_model(
    ctx: click.Context, name: str, args: Mapping[str, Any], table: Path | None, *, labelled: bool
) -> tuple[InferenceModel, Entry]:
    """Load the model of a command and the entry that describes its task.

    Args:
        table: file of examples with columns; None for other inputs.
        labelled: it has labels.
    """
    from tasks.downstream.inference.entry import choose_entry, infer_entry
    from tasks.downstream.inference.model import find_model
    from tasks.downstream.inference.onnx_answers import ANSWERING

    if args["backend"] != "torch":
        require_packages("export", ANSWERING)
    find = functools.partial(find_model, backend=args["backend"])
    model, run = resolve_model(ctx, name, args["tokenizer"], find)
    sections: dict[str, dict[str, Any]] = {
        section: {key: args[key] for key in keys if args.get(key) is not None} for section, keys in SECTIONS.items()
    }
    trained = run.get("data", {})
    if columns := {**trained.get("columns", {}), **join_columns(args["columns"])}:
        sections["data"]["columns"] = columns
    for key in READING:
        if trained.get(key):
            sections["data"].setdefault(key, trained[key])
    if args["null_threshold"] is not None:
        sections["data"]["unanswerable"] = "use"
    chosen = {section: values for section, values in sections.items() if values}
    if run or args["task"] or table is None:
        return model, infer_entry(model, args["task"], chosen, run)
    return model, choose_entry(model, table, chosen, labelled=labelled)


def choose_settings(model: InferenceModel, args: Mapping[str, Any]) -> InferenceOptions:
    """Choose device, precision and batch size of the model. Progress goes to standard error."""
    from tasks.downstream.inference.job import InferenceOptions, choose_place
    from tasks.downstream.inference.model import find_exported

    logging.basicConfig(format="%(message)s", stream=sys.stderr)
    logging.getLogger("tasks").setLevel(logging.INFO)
    exported = None if args["backend"] == "torch" else find_exported(model, args["backend"])
    spec = choose_place(model.folder, args["runtime"], args["precision"])
    rows = args["batch_size"] or (ROWS_ON_IPU if spec.runtime == "ipu" else ROWS_AT_ONCE)
    return InferenceOptions(spec, rows, lambda text: streams.note(text, ""), exported)
