"""`podium search`: find the texts of a file that are nearest to a text, with a model of embeddings."""

from pathlib import Path
from typing import Any

import click

from flows.commands import model_options, options
from flows.commands.project import resolve_path
from tasks.pages.markup import replace_hidden
from tasks.stage import streams


@click.command(
    help="Find the lines of FILE, a table or .txt file with one text a line, that are nearest to TEXT, by the "
    "embeddings of MODEL: a run, a release folder, a model folder or a Hub repository."
)
@click.argument("model")
@click.argument("file", type=model_options.FILE)
@click.argument("text")
@click.option("--top", type=model_options.AT_LEAST_ONE, default=5, show_default=True, metavar="N", help="texts to show")
@click.option("--plain", is_flag=True, help="read FILE as plain text, one text a line, whatever it looks like")
@model_options.inference_options
@options.json_option
@click.pass_context
def command(
    ctx: click.Context, model: str, file: Path, text: str, top: int, plain: bool, as_json: bool, **args: Any
) -> None:
    from tasks.downstream.inference.plain_input import open_input
    from tasks.downstream.inference.search import search
    from tasks.records.text_files import file_suffix

    if not text.strip():
        raise click.UsageError("the text is empty", ctx)
    source = resolve_path(ctx, file)
    table = None if plain or file_suffix(source) == ".txt" else source
    loaded, entry = model_options.load_model(ctx, model, args, table, labelled=False)
    settings = model_options.choose_settings(loaded, args)
    with open_input(entry, source, [], plain=plain) as (path, note):
        if note:
            streams.note(note, "")
        matches, count = search(entry, loaded, path, text, top, settings)
    lines = (f"{match.similarity:.3f}  {match.id}  {replace_hidden(' '.join(match.text.split()))}" for match in matches)
    shown = "".join(f"{options.truncate_lines(line).rstrip()}\n" for line in lines)
    streams.note(f"{count:,} texts compared", "")
    options.print_result(
        as_json, [match._asdict() for match in matches], shown, "--top N shows more, --json prints JSON"
    )
