"""`podium reproduce`: run a finished run of this project again from its own revision, and compare bytes and scores.

The code comes from a branch of this repository, never from a release. Tracking, checkpoints and publishing are those of
today's params.yaml, and the DVC cache is a private one, so that nothing is restored from the first run.
"""

import contextlib
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from flows import dvc
from flows.commands import options
from flows.commands.project import enter_project
from flows.runs import listing, locks, run_params
from flows.runs.checkout import rebase_paths
from flows.runs.stopping import Interrupted, stop
from ipu_model.core.files import read_json, write_text
from tasks.params.strict_yaml import yaml_text
from tasks.params.tables import find_differing
from tasks.plan.code_state import call_git, changed_code, code_hashes, run_git
from tasks.plan.dvc_records import LOCK
from tasks.plan.plan_file import read_locked_stages
from tasks.stage import artifacts, streams
from tasks.stage.errors import FAILED, InputError

OF_TODAY = ("checkpoint", "tracking", "publish")
"""Sections of today's params.yaml that replace those of the run: they name places that it writes to."""
COMPARED = ("models/", "predictions/", "metrics/")
"""Folders whose outputs are compared."""
LAST = ("pretrain", "evaluate")
"""Groups of the stages up to which the run is repeated: the gate also depends on releases made since."""
PRIVATE = "[core]\n    analytics = false\n    no_scm = true\n"
"""DVC settings of the private checkout, without a remote."""


@click.command(
    help="Run the finished run RUN again from the git revision that it recorded, in its own folder and cache, and "
    "compare bytes and scores. Exit code 1 if they differ."
)
@click.argument("name", metavar="RUN", shell_complete=options.complete_runs)
@click.pass_context
def command(ctx: click.Context, name: str) -> None:
    project = enter_project(ctx)
    [original] = listing.find_runs(project, [name])
    if original.record is None or original.status not in listing.FINISHED:
        raise InputError(f"run {name} is {original.status}: only a finished run can be reproduced")
    with stop.listen(), locks.hold_run(project, name, streams.note), _checkout(project, original) as folder:
        ends = [stage for stage in original.record.plan if stage.partition("@")[0] in LAST]
        words = ["run", "--no-publish", *(word for stage in ends for word in ("--to", stage))]
        try:
            code = stop.run_child([sys.executable, "-m", "flows", *words], folder, dvc.stage_environment(), _say)
        except Interrupted:
            raise SystemExit(stop.exit_code()) from None
        if code:
            raise SystemExit(code)
        first, again = (_read_outputs(root) for root in (original.folder, folder))
    differ = [path for path in again if again[path] != first.get(path)]
    for path in again:
        streams.say_line(f"{path}: {'differs' if path in differ else 'the same'}")
        if path in differ and isinstance(again[path], dict):
            rows = find_differing([first.get(path, {}), again[path]])
            streams.say(run_params.format_differences(rows, (name, "again")))
    streams.say_line(f"{len(again) - len(differ)} of {len(again)} outputs of {name} are the same")
    if differ:
        raise SystemExit(FAILED)


def _say(line: str) -> None:
    """Print a line of the repeated run, without its next step."""
    if not line.startswith("next: "):
        streams.say_line(line)


@contextlib.contextmanager
def _checkout(project: Path, run: listing.Run) -> Iterator[Path]:
    """Check out the revision of a run with its parameters within the context.

    Raises:
        InputError: the run has no revision, none of a branch, or its code was not that of the revision.
    """
    commit = run.record.commit if run.record is not None else None
    if not commit or not (run_git(project, "branch", "--contains", commit) or "").strip():
        raise InputError(f"the revision of run {run.name} ({commit or 'none recorded'}) is on no branch here")
    folder_name = "_project" if run.name == listing.PROJECT else run.name  # no name of a run begins so
    folder = project / artifacts.RUNS / "reproduced" / folder_name
    try:
        run_git(project, "worktree", "remove", "--force", str(folder))  # of a command that was killed
        done = call_git(project, "worktree", "add", "--force", "--detach", str(folder), commit)
        if done.returncode:
            raise InputError(f"git cannot check out {commit}: {done.stderr.strip()}")
        if changed := changed_code(code_hashes(read_locked_stages(run.folder / LOCK)), folder):
            raise InputError(f"run {run.name} ran with changes that {commit} does not have: {', '.join(changed)}")
        shutil.rmtree(folder / "inputs", ignore_errors=True)
        (folder / "inputs").symlink_to(project / "inputs")
        write_text(folder / ".dvc" / "config", PRIVATE)
        write_text(folder / artifacts.PARAMS, yaml_text(_repeat_params(project, run, folder)))
        yield folder
    finally:
        run_git(project, "worktree", "remove", "--force", str(folder))


def _repeat_params(project: Path, original: listing.Run, folder: Path) -> dict[str, Any]:
    """Return the parameters of a run, with the precision that it chose and with OF_TODAY."""
    values, today = (run_params.read_run_params(project, root) for root in (original.folder, project))
    chosen = {read_json(path).get("precision") for path in (original.folder / artifacts.METRICS).glob("*.json")} - {
        None
    }
    if len(chosen) == 1:
        values["device"]["precision"] = chosen.pop()
    return rebase_paths({**values, **{name: today[name] for name in OF_TODAY if name in today}}, project, folder)


def _read_outputs(root: Path) -> dict[str, Any]:
    """Return path -> MD5 of models and predictions, and the content of metrics without their job's fingerprint.

    The fingerprint has the precision as it was stated, so that a chosen one differs from a repeated one.
    """
    outs = [out for stage in read_locked_stages(root / LOCK).values() for out in stage.get("outs", ())]
    outputs: dict[str, Any] = {out["path"]: out.get("md5", "") for out in outs if out["path"].startswith(COMPARED)}
    for path in (path for path in outputs if path.endswith(".json")):
        outputs[path] = {key: value for key, value in read_json(root / path).items() if key != "fingerprint"}
    return outputs
