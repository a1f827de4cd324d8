"""`podium compare`: whether one set of predictions is better than another."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from flows.commands import options
from flows.commands.project import Place, given
from tasks.project.files import write_json, write_text

FILE = click.Path(path_type=Path)


@click.command(help="Say how much better the predictions SECOND are than FIRST, on the same questions.")
@click.argument("first", type=FILE)
@click.argument("second", type=FILE)
@click.option("--questions", type=FILE, metavar="FILE", help="with references (those of the one entry of kind squad)")
@click.option(
    "--confidence",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    default=0.95,
    show_default=True,
    help="of the intervals",
)
@click.option("--output", type=FILE, metavar="FILE", help="write the comparison as JSON")
@click.option("--changed", type=FILE, metavar="FILE", help="write the changed answers as CSV")
@options.as_json
@click.pass_context
def command(
    ctx: click.Context,
    first: Path,
    second: Path,
    questions: Path | None,
    confidence: float,
    output: Path | None,
    changed: Path | None,
    json_wanted: bool,
) -> None:
    from tasks.downstream.squad.compare import changed_csv, compare_files, in_words

    place: Place = ctx.obj
    references = _own_questions(place.found or place.here) if questions is None else given(ctx, questions)
    found = compare_files(references, given(ctx, first), given(ctx, second), confidence)
    if output is not None:
        write_json(given(ctx, output), found.record())
    if changed is not None:
        write_text(given(ctx, changed), changed_csv(found.changed))
    if json_wanted:
        options.print_json(found.record())
        return
    sys.stdout.write(in_words(found, confidence) + "\n")
    options.say_next("--changed FILE lists every answer that changed, --output FILE keeps the comparison")


def _own_questions(project: Path) -> Path:
    """The dev questions of the only entry that has some."""
    from tasks.downstream.entries import only_entry
    from tasks.project import artifacts
    from tasks.project.params import load_params

    return project / artifacts.examples_file(only_entry(load_params(project / artifacts.PARAMS), "squad").name, "dev")
