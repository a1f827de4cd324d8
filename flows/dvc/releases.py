"""Fetch released models before the stages that compare with them, and publish new ones, each in a child process."""

import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from flows import dvc
from flows.runs.stopping import RunFailed, stop
from ipu_model.core.files import read_json
from tasks.plan.plan_file import Stage, read_plan
from tasks.stage import artifacts
from tasks.stage.errors import REJECTED
from tasks.stage.process import describe_exit

RELEASE_STAGES = "predict_released"
"""Group of the stages that use fetched releases, one for each entry."""
ERROR = "error: "
"""Prefix of a command's error (tasks/plan/main.py)."""
MODULE, FETCH_FAILED = "tasks.release.fetch", "the released model could not be fetched"

ReleaseSelection = Mapping[str, Sequence[str]]
"""Entry -> TAG@COMMIT of its releases to fetch, newest first."""


class ReleaseFailed(RunFailed):
    """Fetching or publishing a release failed; the message says why."""


def fetch_releases(
    plan: Sequence[str],
    root: Path,
    say: Callable[[str], None],
    chosen: ReleaseSelection | None = None,
    unchanged: Collection[str] = (),
) -> bool:
    """Fetch the releases that the stages of `plan` or their dependencies compare with, unless they are here already.

    Args:
        chosen: the releases, if another host has selected them; None: the newest ones.
        unchanged: stages that are up to date; a model that was published since is not compared with itself.

    Returns:
        Whether anything here changed.

    Raises:
        ReleaseFailed: has the output of the child process.
    """
    from tasks.downstream.inference.fetched_releases import RECORD  # slow to import

    names = _entries(plan, root)
    records = [root / artifacts.FETCHED / name / RECORD for name in names]
    before = [path.read_bytes() if path.is_file() else b"" for path in records]
    for name in names:
        words = [] if chosen is None or name not in chosen else ["--releases", *chosen[name]]
        words += ["--trained"] if f"finetune@{name}" in unchanged else []
        _run(FETCH_FAILED, [MODULE, name, *words], root, say)
    return before != [path.read_bytes() if path.is_file() else b"" for path in records]


def select_releases(plan: Sequence[str], root: Path) -> ReleaseSelection:
    """Select the newest releases that the stages of `plan` compare with, so that all workers use the same ones.

    Raises:
        ReleaseFailed: the Hub is not available.
    """
    from tasks.downstream.inference.fetched_releases import CHOSEN  # slow to import

    return {
        # The output may also contain warnings of the Hub's client.
        name: list(filter(CHOSEN.fullmatch, _run(FETCH_FAILED, [MODULE, name, "--list"], root, lambda line: None)))
        for name in _entries(plan, root)
    }


def _entries(plan: Sequence[str], root: Path) -> list[str]:
    known = read_plan(root)
    return [known[stage].item for stage in known.with_upstream(plan) if known[stage].group == RELEASE_STAGES]


def publish_command(gate: Stage) -> list[str]:
    """Return the module that publishes the model of a gate, as its `meta` states, and its argument."""
    return [str(gate.meta["publish"]), gate.item]


def publish_release(gate: Stage, root: Path, say: Callable[[str], None]) -> dict[str, Any]:
    """Publish the model that the gate accepted, unless it is already published; return the receipt.

    Raises:
        ReleaseFailed: has the output of the child process.
    """
    _run("publish failed", publish_command(gate), root, say)
    return read_json(root / artifacts.receipt_file(gate.item))


def _run(failed: str, module: Sequence[str], root: Path, say: Callable[[str], None]) -> list[str]:
    """Run a module and return its lines of output."""
    lines: list[str] = []

    def take(line: str) -> None:
        lines.append(line)
        if not stop.number:  # a module that a signal ends while it imports prints a traceback
            say(line)

    code = stop.run_child([sys.executable, "-m", *module], root, dvc.stage_environment(), take)
    if code:
        stop.check()
        last = max((number for number, line in enumerate(lines) if line.startswith(ERROR)), default=0)
        said = "\n".join(lines[last:]).strip().removeprefix(ERROR) or "no output"
        rejected = "the gate's decision has changed, " if code == REJECTED else ""
        raise ReleaseFailed(f"{failed} ({rejected}{describe_exit(code)}): {said}")
    return lines
