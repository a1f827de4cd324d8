"""Released models: fetched before the stages that compare with them, and published; each by a child process."""

from __future__ import annotations

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

READS_THEM = "predict_released"
"""The stages that depend on what is fetched, one for each entry."""
MODULE = "tasks.release.fetch"

Chosen = Mapping[str, Sequence[str]]
"""Entry -> TAG@COMMIT of the releases that are fetched for it, the newest first."""


class ReleaseFailed(RunFailed):
    """What was released could not be fetched, or nothing, or nothing new, was published; the message says why."""


def fetch(plan: Sequence[str], root: Path, say: Callable[[str], None], chosen: Chosen | None = None) -> None:
    """Fetch what the stages of `plan`, or those before them, compare with; what is here already stays as it is.

    Args:
        plan: stages of dvc.yaml.
        root: the checkout.
        say: takes each line.
        chosen: the releases, where another host asked which they are; None: the newest ones.

    Raises:
        ReleaseFailed: with the last words of the child.
    """
    for name in _entries(plan, root):
        words = [] if chosen is None or name not in chosen else ["--releases", *chosen[name]]
        _fetch([name, *words], root, say)


def choose(plan: Sequence[str], root: Path) -> Chosen:
    """The newest releases that the stages of `plan` compare with, so that all workers take the same.

    Raises:
        ReleaseFailed: the Hub could not be asked, or releases go to a folder, of which each worker has its own.
    """
    from tasks.downstream.inference.fetched import CHOSEN  # here, as it loads numpy

    said = {name: _fetch([name, "--list"], root, lambda line: None) for name in _entries(plan, root)}
    # Warnings of the Hub's client come the same way.
    return {name: [line for line in lines if CHOSEN.fullmatch(line)] for name, lines in said.items()}


def _entries(plan: Sequence[str], root: Path) -> list[str]:
    known = read_plan(root)
    return [known[stage].item for stage in known.behind(plan) if known[stage].group == READS_THEM]


def module_of(gate: Stage) -> list[str]:
    """The module that publishes what a gate accepted, and its argument."""
    return [str(gate.meta["publish"]), gate.item]


def publish(gate: Stage, root: Path, say: Callable[[str], None]) -> dict[str, Any]:
    """Publish what the gate accepted, once; returns the receipt.

    Args:
        gate: its `meta` names the module that publishes.
        root: the checkout.
        say: takes each line at once: it also says what it waits for.

    Raises:
        ReleaseFailed: with the last words of the child.
    """
    _run("publish failed", module_of(gate), root, say)
    receipt: dict[str, Any] = read_json(root / artifacts.receipt_file(gate.item))
    return receipt


def _fetch(words: Sequence[str], root: Path, say: Callable[[str], None]) -> list[str]:
    return _run("the released model could not be fetched", [MODULE, *words], root, say)


def _run(failed: str, module: Sequence[str], root: Path, say: Callable[[str], None]) -> list[str]:
    """Run a module to its end; returns what it said.

    Args:
        failed: begins the message where it fails.
        module: its name and words.
        root: the checkout.
        say: takes each line.
    """
    lines: list[str] = []

    def take(line: str) -> None:
        lines.append(line)
        say(line)

    code = stop.follow([sys.executable, "-m", *module], root, dvc.environment(), take)
    if code:
        stop.check()
        said = "\n".join(lines).strip().removeprefix(ERROR) or "it said nothing"
        rejected = "the gate's verdict changed meanwhile, " if code == REJECTED else ""
        raise ReleaseFailed(f"{failed} ({rejected}{describe_exit(code)}): {said}")
    return lines
