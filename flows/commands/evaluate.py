"""`podium evaluate`: score a finished model on a labelled file."""

import re
from pathlib import Path
from typing import Any

import click

from flows.commands import model_options, options
from flows.commands.project import resolve_path
from tasks.stage import artifacts, streams


@click.command(
    help="Score MODEL on the labelled examples in FILE: official metrics with 95% intervals, and a report, in a new "
    "folder. MODEL is a run, a release folder, a model folder or a Hub repository."
)
@click.argument("model")
@click.argument("file", type=options.FILE)
@click.option("--output", type=options.FILE, metavar="DIR", help="new folder (default: evaluation-MODEL-FILE)")
@model_options.inference_options
@options.json_option
@click.pass_context
def command(ctx: click.Context, model: str, file: Path, output: Path | None, as_json: bool, **args: Any) -> None:
    from tasks.downstream.inference.predict import evaluate

    found, entry = model_options.load_model(ctx, model, args, resolve_path(ctx, file), labelled=True)
    named = resolve_path(ctx, Path(model))
    called = named.resolve().name if named.exists() else model
    folder = output or Path(re.sub(r"[^\w.-]+", "-", f"evaluation-{called}-{file.stem}"))
    settings = model_options.choose_settings(found, args)
    metrics, words = evaluate(entry, found, resolve_path(ctx, file), resolve_path(ctx, folder), settings, called)
    streams.note("computed on {runtime} in {precision}".format_map(metrics["predict"]), "")
    page = folder / artifacts.evaluation_page(entry.name).name
    options.print_result(as_json, metrics, f"{words}\n", f"open {page}")
