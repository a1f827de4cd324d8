"""`podium publish`: publish the model of a finished run that its gate accepted."""

import contextlib
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from flows import dvc
from flows.commands import options
from flows.commands.project import enter_project
from flows.dvc import releases
from flows.runs import listing, locks, report, run_params
from flows.runs.next_step import suggest_next
from ipu_model.core.files import read_json
from ipu_model.core.strict import nearest
from tasks.params.overlays import read_setting, replace_overrides
from tasks.plan.named_files import list_input_paths, reject_dvc_files
from tasks.plan.plan_file import read_plan
from tasks.stage import artifacts, streams
from tasks.stage.errors import InputError, ParamsError

OF_PUBLISHING = re.compile(r"publish\..+|downstream\..+\.publish\.repository")
"""Parameters that no stage reads, so that they may change after a run."""


@click.command(
    help="Publish the model of the finished run RUN if its gate accepted it, or of the run with the parameters in the "
    "options. Content that is already published is not published again."
)
@click.argument("run", required=False, shell_complete=options.complete_runs)
@options.parameter_options
@options.name_option
@click.option("--task", metavar="NAME", help="entry to publish, if there are several: squad for gate@squad")
@click.option("--dry-run", is_flag=True, help="show what would be published; change nothing")
@click.pass_context
def command(ctx: click.Context, run: str | None, task: str | None, dry_run: bool, **asked: Any) -> None:
    if run is not None and asked["name"] not in (None, run):
        raise click.UsageError(f"{run} and --name {asked['name']} name two runs: leave one of them out", ctx)
    asked["name"] = run or asked["name"]
    project = enter_project(ctx)
    changed: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
    settings = [read_setting(text) for text in asked["overrides"]]
    if asked["name"] and not asked["preset"] and all(OF_PUBLISHING.fullmatch(setting.name) for setting in settings):
        [accepted] = listing.find_runs(project, [asked["name"]])
        root, values = accepted.folder, run_params.read_run_params(project, accepted.folder)
        if settings and accepted.name == listing.PROJECT:
            raise ParamsError(f"run {accepted.name} has its parameters in {artifacts.PARAMS}: change them there")
        if settings:
            changed = run_params.change_params(project, accepted, settings)
    else:
        root, values = _find_root(project, **asked)
    reject_dvc_files(project, list_input_paths(values))
    with locks.hold_run(project, "." if root == project else root.name, lambda text: streams.note(text, "")), changed:
        gates = {stage.item: stage for stage in read_plan(root).values() if stage.is_gate}
        if task is not None and task not in gates:
            raise ParamsError(f"--task {task} not found{nearest(task, list(gates))}")
        if task is None and len(gates) != 1:
            names = ", ".join(gates) or "none"
            raise ParamsError(f"there are {len(gates)} gates ({names}): choose the entry to publish with --task")
        gate = gates[task or next(iter(gates))]
        if not (root / artifacts.metrics_file(gate.item, "gate")).is_file():
            again = "podium run" if root == project else f"podium resume {root.name}"
            raise InputError(f"the run has no verdict on {gate.item} yet: {again}, then publish")
        # Runs in the checkout; its output is passed through.
        words = [sys.executable, "-m", *releases.publish_command(gate), *(["--dry-run"] if dry_run else [])]
        code = subprocess.run(words, cwd=root, env=dvc.stage_environment(), check=False).returncode
        if code or dry_run:
            raise SystemExit(code)
    receipt = root / artifacts.receipt_file(gate.item)
    streams.note(f"the receipt is {receipt.relative_to(project)}", "")
    record = report.read_report(project, root)
    if record is not None and gate.name in record.results:
        record.overrides = replace_overrides(record.overrides, list(map(str, settings)))
        record.add_receipt(read_json(receipt), gate.name)
        write_record(record, project, root)
        options.print_next(suggest_next(record))


def write_record(record: report.RunReport, project: Path, root: Path) -> None:
    """Write the changed record of an ended run, and its pages."""
    from flows.views import index_page, run_page  # slow to import

    record.write(project)
    run_page.write_ended(record, project, root)
    index_page.write_index(project, ended=record.name)


def _find_root(
    project: Path, preset: str | None, overrides: Sequence[str], name: str | None
) -> tuple[Path, dict[str, Any]]:
    """Return the folder of a run with these parameters, and all its parameters.

    Raises:
        ParamsError: the parameters are invalid, or differ from those of the run.
        InputError: there is no run with these parameters.
    """
    from flows.runs.run_options import RunOptions
    from flows.runs.run_request import resolve_request

    request = resolve_request(project, RunOptions(preset, overrides, name))
    values, root = request.values, request.root
    if root != project:  # podium gate may have changed the limits of a run without a name
        run_params.require_same_params(project, values, root.name)
    if not root.is_dir():
        raise InputError("no run with these parameters found: start podium run with the same options first")
    return root, values
