"""`podium deploy`: what a Prefect server needs for runs on workers."""

from __future__ import annotations

import click

from flows.checks.server import load_settings
from flows.commands import options
from flows.commands.project import entered
from tasks.stage import streams


@click.command(
    help="Give the Prefect server of PREFECT_API_URL pools, queues, the automation and the deployments of "
    "prefect.yaml; may be run again at any time."
)
@click.option("--queue", "queues", multiple=True, metavar="POOL/QUEUE", help="also a queue for this pod, repeatable")
@click.pass_context
def command(ctx: click.Context, queues: tuple[str, ...]) -> None:
    project = entered(ctx)
    load_settings()
    from flows.workers.deploy import deploy_everything  # takes seconds
    from flows.workers.dispatch import Queue

    deploy_everything(project, [Queue.parse(text, "--queue") for text in queues], streams.say_line)
    options.say_next("podium worker --pool cpu on a host (docs/workers.md), then podium run --on-workers")
