"""Fetch released models before the stages that compare with them, and publish new ones, each in a child process."""

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from flows import dvc
from flows.dvc.session import ERROR
from flows.runs.stopping import RunFailed, stop
from ipu_model.files import read_json
from tasks.plan.plan_file import Stage, read_plan
from tasks.stage import artifacts
from tasks.stage.errors import REJECTED
from tasks.stage.process import describe_exit

RELEASE_STAGES = "predict_released"
"""Group of the stages that use fetched releases, one for each entry."""
MODULE, FETCH_FAILED = "tasks.release.fetch", "the released model could not be fetched"

ReleaseSelection = Mapping[str, Sequence[str]]
"""Entry -> TAG@COMMIT of its releases to fetch, newest first."""


class ReleaseFailed(RunFailed):
    """Fetching or publishing a release failed; the message says why."""


def fetch_releases(
    plan: Sequence[str], root: Path, say: Callable[[str], None], chosen: ReleaseSelection | None = None
) -> None:
    """Fetch the releases that the stages of `plan` or their dependencies compare with, unless they are here already.

    Args:
        chosen: the releases, if another host has selected them; None: the newest ones.

    Raises:
        ReleaseFailed: has the output of the child process.
    """
    for name in _entries(plan, root):
        words = [] if chosen is None or name not in chosen else ["--releases", *chosen[name]]
        _run(FETCH_FAILED, [MODULE, name, *words], root, say)


def select_releases(plan: Sequence[str], root: Path) -> ReleaseSelection:
    """Select the newest releases that the stages of `plan` compare with, so that all workers use the same ones.

    Raises:
        ReleaseFailed: the Hub is not available, or releases are in a folder, which each worker has for itself.
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
    """Return the module that publishes the model of a gate, and its argument."""
    return [str(gate.meta["publish"]), gate.item]


def publish_release(gate: Stage, root: Path, say: Callable[[str], None]) -> dict[str, Any]:
    """Publish the model that the gate accepted, unless it is already published; return the receipt.

    Args:
        gate: its `meta` names the module that publishes.

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
        say(line)

    code = stop.run_child([sys.executable, "-m", *module], root, dvc.stage_environment(), take)
    if code:
        stop.check()
        last = max((number for number, line in enumerate(lines) if line.startswith(ERROR)), default=0)
        said = "\n".join(lines[last:]).strip().removeprefix(ERROR) or "no output"
        rejected = "the gate's decision has changed, " if code == REJECTED else ""
        raise ReleaseFailed(f"{failed} ({rejected}{describe_exit(code)}): {said}")
    return lines
