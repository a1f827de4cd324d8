"""`podium data show`: what reaches the loss."""

from __future__ import annotations

from typing import Any

import click

from flows.commands import options
from flows.commands.project import entered


@click.group(help="What is learned from, as it reaches the loss.")
def command() -> None:
    pass


@command.command(
    help="Print the first sequences of NAME, an entry of downstream, phase1 or phase2: text, ids, labels, and where an "
    "example was cut into windows. The rows are those of the project, or of --run."
)
@click.argument("name")
@click.option("-n", "count", type=click.IntRange(min=1), default=5, show_default=True, help="sequences")
@click.option("--split", default="train", show_default=True, help="of an entry: train, or a development set")
@click.option("--run", "run", metavar="NAME", help="a run of runs/checkouts")
@options.as_json
@click.pass_context
def show(ctx: click.Context, name: str, count: int, split: str, run: str | None, json_wanted: bool) -> None:
    from flows.runs.checkout import own_folder
    from flows.views.shown_rows import first_sequences
    from tasks.params.entries import entry_of
    from tasks.params.schema import PHASES, load_params
    from tasks.plan.kinds import about
    from tasks.stage import artifacts
    from tasks.stage.errors import ParamsError

    project = entered(ctx)
    root = project if run is None else own_folder(project, run)
    if not (root / artifacts.PARAMS).is_file():
        raise ParamsError(f"there is no run {run} in {root.parent}: name one of its folders")
    labels, rows, stage = [], root / artifacts.rows_folder(name), f"pretrain_rows@{name}"
    if name not in PHASES:
        task = about(entry_of(load_params(root / artifacts.PARAMS), name))
        if split not in task.splits:
            raise ParamsError(f"--split {split}: {name} has {', '.join(task.splits)}")
        rows, stage = task.rows_folder(split, root), task.entry.stage("rows")
        labels = list(task.labels_of(rows)) if rows.is_dir() else []
    found = list(first_sequences(rows, root / artifacts.TOKENIZER, count, labels, stage))
    options.answer(json_wanted, found, "\n".join(map(_lines, found)), "--split dev, -n 20 and --json show more")


def _lines(one: dict[str, Any]) -> str:
    """A sequence for people; its text may hold the control characters of a terminal."""
    from tasks.pages.markup import readable

    window = one.get("window")
    cut = f", window {window['number']} of {window['of']} of its example" if window else ""
    lines = [f"row {one['row']}, sequence {one['slot'] + 1}: {one['tokens']} tokens{cut}"]
    lines += [f"  text    {readable(one['text'])}", f"  ids     {' '.join(map(str, one['ids']))}"]
    for name, said in one["labels"].items():
        words = ", ".join(said) if isinstance(said, list) else said
        lines.append(f"  {name}  {readable(words)}")
    return "\n".join(lines) + "\n"
