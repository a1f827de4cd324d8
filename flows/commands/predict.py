"""`podium predict`: write a finished model's predictions for a text or for the examples of a file."""

import sys
from pathlib import Path
from typing import Any

import click

from flows.commands import model_options, questions
from flows.commands.project import resolve_output, resolve_path
from tasks.stage import streams

FORMATS = ("json", "jsonl", "csv", "parquet", "npy")


@click.command(
    help="Classify a text, find its entities, write its embedding, or answer a question about a --context, with MODEL: "
    "a run, a release folder, a model folder or a Hub repository; or answer every record of IN, a table or .txt file "
    "with one text a line. OUT ends in .jsonl, .csv, .parquet, .json for {question id: text}, or .npy for embeddings; "
    "- is a standard stream."
)
@click.argument("model")
@click.argument("input", metavar="[IN]", type=model_options.FILE, required=False)
@click.argument("output", metavar="[OUT]", type=model_options.FILE, default=Path("-"))
@click.option("--text", metavar="TEXT", help="text to predict, instead of IN")
@click.option("--text-pair", metavar="TEXT", help="second text, for a model of pairs")
@questions.question_options
@click.option("--plain", is_flag=True, help="read IN as plain text, one text a line, whatever it looks like")
@click.option(
    "--format",
    "kind",
    type=click.Choice((*FORMATS, "text")),
    help="of standard output (jsonl; text: lines to read, the default for --text and on a terminal)",
)
@click.option("--json", "as_json", is_flag=True, help="print JSON lines (--format jsonl)")
@click.option("--with-text", is_flag=True, help="repeat the text, or the question, in each record")
@click.option("--n-best", type=click.IntRange(min=0), default=0, metavar="N", help="answers per record, best first")
@click.option("--force", is_flag=True, help="overwrite OUT")
@model_options.inference_options
@click.pass_context
def command(ctx: click.Context, model: str, input: Path | None, output: Path, plain: bool, **args: Any) -> None:
    from tasks.downstream.inference.model import read_files
    from tasks.downstream.inference.plain_input import open_input
    from tasks.downstream.inference.predict import PredictionOutput, predict
    from tasks.records.text_files import file_suffix

    if args["context"] is not None or args["context_file"] is not None:
        if args["text"] is None or args["text_pair"] is not None or input is not None:
            raise click.UsageError("--context and --context-file take one question: pass it with --text", ctx)
        questions.answer_question(ctx, model, args["text"], args["as_json"], args)
        return
    texts = [text for text in (args["text"], args["text_pair"]) if text is not None]
    if (args["text"] is None) != (input is not None) or (texts and args["text"] is None):
        raise click.UsageError("pass either IN (a file, or - for standard input) or --text TEXT", ctx)
    if not all(map(str.strip, texts)):
        raise click.UsageError("the text is empty", ctx)
    source = None if input is None or str(input) == "-" else resolve_path(ctx, input)
    table = None if plain or source is None or file_suffix(source) == ".txt" else source
    loaded, entry = model_options.load_model(ctx, model, args, table, labelled=False)
    read = [*([source] if source else []), *read_files(loaded.folder), *read_files(loaded.tokenizer)]
    target = None if str(output) == "-" else resolve_output(ctx, output, read)
    if target is not None and target.exists() and not args["force"]:
        raise click.UsageError(f"{output} already exists: name another file, or pass --force", ctx)
    settings = model_options.choose_settings(loaded, args)
    for_people = bool(texts) or sys.stdout.isatty()
    usual = "jsonl" if args["as_json"] or not for_people else "text"
    ending = args["kind"] or usual if target is None else target.suffix.lower().removeprefix(".")
    if target is not None and ending not in FORMATS:
        raise click.UsageError(f"OUT is {output}, but it must end in one of .{', .'.join(FORMATS)}", ctx)
    with_text = args["with_text"] or (ending == "text" and not texts)
    with open_input(entry, source, texts, plain=plain) as (path, note):
        if note:
            streams.note(note, "")
        wanted = PredictionOutput(target, ending, args["n_best"], with_text)
        examples, result = predict(entry, loaded, path, wanted, settings, says_reading=not texts)
    if not texts:
        took = f"{examples:,} answers in {result.train_seconds:.1f} s"
        streams.note(f"{took} ({result.runtime}, {result.precision})", "")
