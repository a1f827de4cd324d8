"""`podium rollback`: give a name back to the release that had it before."""

from typing import Any

import click

from flows.commands.promote import name_options, open_releases, print_change


@click.command(
    help="Give the name champion, or one of your own, back to the release of MODEL that had it before. MODEL is a run, "
    "a published folder or a Hub repository. Nothing is deleted."
)
@name_options
@click.pass_context
def command(ctx: click.Context, model: str, name: str, as_json: bool, **_: Any) -> None:
    target = open_releases(ctx, model)
    print_change(target, name, target.rollback(name), as_json)
