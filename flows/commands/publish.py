"""`podium publish`: publish what the gate of a finished run accepted."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from flows import dvc
from flows.commands import options
from flows.commands.project import entered
from flows.dvc import releases
from flows.runs import checkout, locks, run_params
from ipu_model.strict import nearest
from tasks.plan.named_files import given_paths, require_one_plan
from tasks.plan.plan_file import Stage, read_plan
from tasks.stage import artifacts, streams
from tasks.stage.errors import InputError, ParamsError


@click.command(
    help="Publish the model of a finished run, if its gate accepted it; the same content makes no second release."
)
@options.parameters
@options.run_name
@click.option("--task", metavar="NAME", help="the entry to publish, where there are several: squad of gate@squad")
@click.option("--dry-run", is_flag=True, help="show what would be published; touch nothing")
@click.pass_context
def command(
    ctx: click.Context,
    preset: str | None,
    overrides: tuple[str, ...],
    name: str | None,
    task: str | None,
    dry_run: bool,
) -> None:
    project = entered(ctx)
    root = _root(project, preset, overrides, name)
    with locks.held(project, "." if root == project else root.name, lambda text: streams.note(text, "")):
        gate = _gate([stage for stage in read_plan(root).values() if stage.is_gate], task)
        # In the checkout of the run; what it prints is for people.
        words = [sys.executable, "-m", *releases.module_of(gate), *(["--dry-run"] if dry_run else [])]
        code = subprocess.run(words, cwd=root, env=dvc.environment(), check=False).returncode
    if code:
        raise SystemExit(code)
    if not dry_run:
        receipt = root / artifacts.receipt_file(gate.item)
        options.say_next(f"podium ask the published model; the receipt is {receipt.relative_to(project)}")


def _root(project: Path, preset: str | None, overrides: Sequence[str], name: str | None) -> Path:
    """The folder of the run that is meant: by its parameters, or by its name alone.

    Raises:
        ParamsError: the parameters are wrong, or not those of the name.
        InputError: there is no such run.
    """
    if name is not None and preset is None and not overrides:
        root = checkout.own_folder(project, checkout.checked_name(name))
        if not (root / artifacts.PARAMS).is_file():
            raise InputError(f"there is no run {name} here: podium runs lists those there are")
        values = run_params.params_of(project, root)
    else:
        from flows.runs.run_request import resolve_request

        request = resolve_request(project, preset, overrides, name=name)
        values, root = request.values, request.root
    require_one_plan(project, given_paths(values))
    if not root.is_dir():
        raise InputError("no run had these parameters here: podium run with the same words makes the model first")
    return root


def _gate(gates: Sequence[Stage], task: str | None) -> Stage:
    """The gate that decided on what is to be published: where only one is there, its entry need not be named."""
    names = [gate.item for gate in gates]
    found = [gate for gate in gates if task in (None, gate.item)]
    if task is not None and not found:
        raise ParamsError(f"--task {task} is not known{nearest(task, names)}")
    if len(found) != 1:
        raise ParamsError(
            f"there are {len(names)} gates ({', '.join(names) or 'none'}): say with --task which to publish"
        )
    return found[0]
