"""`podium deploy`: set up a Prefect server for runs on workers."""

import click

from flows.checks.server import import_prefect
from flows.commands import options
from flows.commands.project import enter_project
from tasks.stage import streams


@click.command(
    help="Create or update pools, queues, the automation and the deployments of prefect.yaml on the Prefect server at "
    "PREFECT_API_URL. It is safe to run again."
)
@click.option("--queue", "queues", multiple=True, metavar="POOL/QUEUE", help="extra queue, one per pod; repeatable")
@click.option(
    "--alarm",
    "alarms",
    multiple=True,
    metavar="TYPE/NAME",
    help="block of the server that is notified of failed, rejected, paused and lost runs; repeatable",
)
@click.pass_context
def command(ctx: click.Context, queues: tuple[str, ...], alarms: tuple[str, ...]) -> None:
    project = enter_project(ctx)
    import_prefect()
    from flows.workers.deploy import deploy  # takes seconds
    from flows.workers.dispatch import Queue

    deploy(project, [Queue.parse(text, "--queue") for text in queues], streams.say_line, alarms)
    options.print_next("start podium worker --pool cpu on a host (docs/workers.md), then podium run --on-workers")
