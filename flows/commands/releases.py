"""`podium releases`: list the releases of a published model."""

from dataclasses import asdict
from typing import Any

import click

from flows.commands import options
from flows.commands.promote import open_releases
from tasks.plan.named_files import escape_name
from tasks.stage import streams


@click.command(
    help="List the releases of MODEL, newest first, with day, score, signature and names. MODEL is a run, a published "
    "folder or a Hub repository."
)
@click.argument("model", shell_complete=options.complete_runs)
@options.json_option
@click.pass_context
def command(ctx: click.Context, model: str, as_json: bool, **_: Any) -> None:
    target = open_releases(ctx, model)
    found = target.describe()
    if as_json:
        options.print_json([asdict(one) for one in found])
        return
    scores = [escape_name(one.score) for one in found]  # of a card that others may have edited
    for one, score in zip(found, scores, strict=True):
        signed = "signed" if one.signed else "unsigned"
        words = (one.tag, one.published or "", score.ljust(max(map(len, scores))), f"{signed:8}", ", ".join(one.names))
        streams.say_line("  ".join(words).rstrip())
    if not found:
        streams.note(f"{target.title} has no release yet: podium publish RUN publishes one", "")
