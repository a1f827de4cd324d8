"""`podium predict`: write a finished model's predictions for the examples of a file."""

from pathlib import Path
from typing import Any

import click

from flows.commands import model_options
from flows.commands.project import resolve_output, resolve_path
from tasks.stage import streams

FORMATS = ("json", "jsonl", "csv", "parquet")


@click.command(
    help="Answer the questions, or classify the sentences, in IN with MODEL: a run, a release folder, a model folder "
    "or a Hub repository. OUT ends in .jsonl, .csv, .parquet, or .json for {question id: text}; - is a standard stream."
)
@click.argument("model")
@click.argument("input", metavar="IN", type=model_options.FILE)
@click.argument("output", metavar="[OUT]", type=model_options.FILE, default=Path("-"))
@click.option(
    "--format", "kind", type=click.Choice(FORMATS), default="jsonl", show_default=True, help="of standard streams"
)
@click.option("--n-best", type=click.IntRange(min=0), default=0, metavar="N", help="answers per record, best first")
@click.option("--force", is_flag=True, help="overwrite OUT")
@model_options.inference_options
@click.pass_context
def command(ctx: click.Context, model: str, input: Path, output: Path, kind: str, **args: Any) -> None:
    from tasks.downstream.inference.model import read_files
    from tasks.downstream.inference.predict import PredictionOutput, predict, spool_input

    found, entry = model_options.load_model(ctx, model, args)
    read = [resolve_path(ctx, input), *read_files(found.folder), *read_files(found.tokenizer)]
    target = None if str(output) == "-" else resolve_output(ctx, output, read)
    if target is not None and target.exists() and not args["force"]:
        raise click.UsageError(f"{output} already exists: name another file, or pass --force", ctx)
    settings = model_options.choose_settings(found, args)
    ending = kind if target is None else target.suffix.lower().removeprefix(".")
    if ending not in FORMATS:
        raise click.UsageError(f"OUT is {output}, but it must end in one of .{', .'.join(FORMATS)}", ctx)
    wanted = PredictionOutput(target, ending, args["n_best"])
    with spool_input(resolve_path(ctx, input) if str(input) != "-" else None, kind) as path:
        examples, result, reading = predict(entry, found, path, wanted, settings)
    said = [f"{examples:,} answers in {result.train_seconds:.1f} s", *reading.summary()]
    streams.note(f"{', '.join(said)} ({result.runtime}, {result.precision})", "")
