"""`podium worker`: takes runs of a pool of the Prefect server."""

from __future__ import annotations

import click

from flows.checks.server import load_settings
from flows.commands.project import entered
from tasks.stage import streams


@click.command(
    help="Take runs of a pool of the Prefect server of PREFECT_API_URL, until it is stopped. It starts nothing but the "
    "flows of this checkout, whatever the server says (docs/workers.md)."
)
@click.option("--pool", required=True, help="cpu, cuda, ipu or flows")
@click.option("--queue", "queues", multiple=True, help="of the pool, repeatable; default: all of them")
@click.option("--name", help="of this worker, in the server's pages")
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    help="runs at a time; default: 1 for cuda and ipu, else what cores and memory allow",
)
@click.pass_context
def command(ctx: click.Context, pool: str, queues: tuple[str, ...], name: str | None, limit: int | None) -> None:
    project = entered(ctx)
    load_settings()
    from flows.workers.worker import work  # takes seconds

    work(project, pool, list(queues), name, limit, streams.say_line)
