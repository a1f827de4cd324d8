"""`podium worker`: run a worker of a Prefect work pool."""

import click

from flows.checks.server import import_prefect
from flows.commands.project import enter_project
from tasks.stage import streams


@click.command(
    help="Run a worker for a pool of the Prefect server at PREFECT_API_URL until it is stopped. It only starts the "
    "flows of this checkout, whatever the server requests (docs/workers.md)."
)
@click.option("--pool", required=True, help="work pool: cpu, cuda, ipu or flows")
@click.option("--queue", "queues", multiple=True, help="queue of the pool; repeatable; default: all")
@click.option("--name", help="name of this worker on the server's pages")
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    help="concurrent runs; default: 1 for cuda and ipu, else as many as cores and memory allow",
)
@click.pass_context
def command(ctx: click.Context, pool: str, queues: tuple[str, ...], name: str | None, limit: int | None) -> None:
    project = enter_project(ctx)
    import_prefect()
    from flows.workers.worker import run_worker  # takes seconds

    run_worker(project, pool, list(queues), name, limit, streams.say_line)
