"""`podium publish`: publish what the gate of a finished run accepted."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import click

from flows import checkout, dvc
from flows.commands import options
from flows.commands.project import entered
from tasks.project import artifacts
from tasks.project.errors import InputError


@click.command(
    help="Publish the model of a finished run, if its gate accepted it; the same content makes no second release."
)
@options.parameters
@click.option("--task", metavar="NAME", help="of GLUE, such as sst2; default: the question-answering model")
@click.option("--dry-run", is_flag=True, help="show what would be published; touch nothing")
@click.pass_context
def command(
    ctx: click.Context, preset: str | None, overrides: tuple[str, ...], task: str | None, dry_run: bool
) -> None:
    project = entered(ctx)
    values = checkout.resolved_params(project, preset, list(overrides))
    checkout.require_one_plan(project, values)
    root = checkout.folder_of(project, values, preset, list(overrides))
    if not root.is_dir():
        raise InputError("no run had these parameters here: podium run with the same words makes the model first")
    code = _publish(root, ["tasks.downstream.glue.publish", task] if task else ["tasks.release.publish"], dry_run)
    if code:
        raise SystemExit(code)
    if not dry_run:
        receipt = root / artifacts.publish_receipt(task or "")
        options.say_next(f"podium ask the published model; the receipt is {receipt.relative_to(project)}")


def _publish(root: Path, module: list[str], dry_run: bool) -> int:
    """Run the module that publishes in the checkout of the run; what it prints is for people."""
    words = [sys.executable, "-m", *module, *(["--dry-run"] if dry_run else [])]
    return subprocess.run(words, cwd=root, env=dvc.environment(), check=False).returncode
