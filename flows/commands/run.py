"""`podium run`: the pipeline, from the corpus to the published model."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, NoReturn, get_args

import click

from flows import preflight
from flows.commands import options
from flows.commands.project import entered
from flows.plan import Part
from tasks.common import artifacts
from tasks.common.errors import FAILED, PAUSED, REJECTED

CODES = {"failed": FAILED, "rejected": REJECTED, "paused": PAUSED}
"""Exit codes of outcomes; of the others, 0."""


@click.command()
@options.parameters
@click.option("--no-publish", is_flag=True, help="stop after the gate")
@click.option(
    "--part",
    type=click.Choice(get_args(Part)),
    default="all",
    show_default=True,
    help="pre-train only; what follows; or pre-training and GLUE alone",
)
@click.option("--on-workers", is_flag=True, help="send the stages to workers (PREFECT_API_URL)")
@click.option("--cpu-queue", default="cpu/default", show_default=True, metavar="POOL/QUEUE", help="all but device jobs")
@click.option("--device-queue", metavar="POOL/QUEUE", help="for training and prediction")
@click.pass_context
def command(ctx: click.Context, preset: str | None, overrides: tuple[str, ...], **choices: Any) -> None:
    """Run the pipeline, from the corpus to the published model.

    Stages whose inputs did not change are skipped; a run that was stopped goes on where it was. With PREFECT_API_URL
    the run is seen on that server, else on one of its own that ends with it.
    """
    project = entered(ctx)
    wanted = preflight.of_run(
        project, preset, overrides, choices["part"], not choices["no_publish"], choices["on_workers"]
    )
    preflight.require(wanted, lambda text: click.echo(f"note: {text}", err=True))
    code = _run(project, preset, list(overrides), choices)
    if code:
        raise SystemExit(code)


def _run(project: Path, preset: str | None, overrides: list[str], choices: dict[str, Any]) -> int:
    from flows import pipeline  # takes seconds
    from flows.api import UNREACHED
    from flows.own_server import own_server

    (project / artifacts.RUN_REPORT).unlink(missing_ok=True)
    with own_server():
        try:
            state = pipeline.pipeline(
                preset, overrides, not choices["no_publish"], choices["part"], choices["on_workers"],
                choices["cpu_queue"], choices["device_queue"], return_state=True,
            )  # fmt: skip
        except UNREACHED as error:
            _end_without_server(project, error)
    code = _tell(project, f"the run left no report: {state.message}")
    return code if state.is_completed() else FAILED


def _tell(project: Path, without: str) -> int:
    """Print how the run ended, or `without` where it left no report; returns the exit code that says the same."""
    from flows import report

    said = report.read(project)
    sys.stdout.write(f"\n{report.summary(said) if said else without}\n")
    return CODES.get(report.outcome(said), 0) if said else FAILED


def _end_without_server(project: Path, error: Exception) -> NoReturn:
    """Say how a run ended whose last word the server did not take, and end with the code that says the same."""
    from flows.api import end_without_server

    code = _tell(project, "the run left no report")
    sys.stderr.write(
        f"the Prefect server does not answer ({type(error).__name__}), and does not know how this run ended; "
        f"{artifacts.RUN_REPORT} does\n"
    )
    end_without_server(code)
