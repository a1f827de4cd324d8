"""`podium score`: exact match and F1 of any predictions."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import click

from flows.commands import options
from flows.commands.project import given
from tasks.project.files import write_json

FILE = click.Path(path_type=Path)


@click.command(
    help="Score PREDICTIONS, a JSON object {question id: text}, against QUESTIONS, SQuAD v1.1 JSON, as the official "
    "script does."
)
@click.argument("questions", type=FILE)
@click.argument("predictions", type=FILE)
@click.option("--output", type=FILE, metavar="FILE", help="also write the scores to this file, as JSON")
@options.as_json
@click.pass_context
def command(ctx: click.Context, questions: Path, predictions: Path, output: Path | None, json_wanted: bool) -> None:
    from tasks.downstream.squad.scoring import score_files

    logging.basicConfig(format="%(levelname)s: %(message)s", stream=sys.stderr)
    summary = score_files(given(ctx, questions), given(ctx, predictions)).summary()
    if output is not None:
        write_json(given(ctx, output), summary)
    if json_wanted:
        options.print_json(summary)
        return
    total, exact, overlap = (summary[name] for name in ("total", "exact_match", "f1"))
    sys.stdout.write(f"{total} questions, exact match {exact:.2f}, F1 {overlap:.2f}\n")
    options.say_next(f"podium compare OTHER.json {predictions} --questions {questions} says which of two is better")
