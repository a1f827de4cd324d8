"""Fetching the released models that gates compare with, before the stages that depend on them; a child process each."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from flows import dvc
from flows.stopping import stop
from tasks.downstream.applying.fetched import CHOSEN
from tasks.project.plan_file import read_plan
from tasks.project.process import describe_exit

READS_THEM = "predict_released"
"""The stages that depend on what is fetched, one for each entry."""
MODULE = "tasks.release.fetch"
ERROR = "error: "

Chosen = Mapping[str, Sequence[str]]
"""Entry -> TAG@COMMIT of the releases that are fetched for it, the newest first."""


class FetchFailed(Exception):
    """What was released could not be fetched, or not even asked for; the message says why."""


def fetch(plan: Sequence[str], root: Path, say: Callable[[str], None], chosen: Chosen | None = None) -> None:
    """Fetch what the stages of `plan`, or those before them, compare with; what is here already stays as it is.

    Args:
        plan: stages of dvc.yaml.
        root: the checkout.
        say: takes each line.
        chosen: the releases, where another host asked which they are; None: the newest ones.

    Raises:
        FetchFailed: with the last words of the child.
    """
    for name in _entries(plan, root):
        words = [] if chosen is None or name not in chosen else ["--releases", *chosen[name]]
        _run([name, *words], root, say)


def choose(plan: Sequence[str], root: Path) -> Chosen:
    """The newest releases that the stages of `plan` compare with, so that all workers take the same.

    Raises:
        FetchFailed: the Hub could not be asked, or releases go to a folder, of which each worker has its own.
    """
    said = {name: _run([name, "--list"], root, lambda line: None) for name in _entries(plan, root)}
    # Warnings of the Hub's client come the same way.
    return {name: [line for line in lines if CHOSEN.fullmatch(line)] for name, lines in said.items()}


def _entries(plan: Sequence[str], root: Path) -> list[str]:
    known = read_plan(root)
    return [known[stage].item for stage in known.behind(plan) if known[stage].group == READS_THEM]


def _run(words: Sequence[str], root: Path, say: Callable[[str], None]) -> list[str]:
    lines: list[str] = []

    def take(line: str) -> None:
        lines.append(line)
        say(line)

    code = stop.follow([sys.executable, "-m", MODULE, *words], root, dvc.environment(), take)
    if code:
        stop.check()
        said = "\n".join(lines).strip().removeprefix(ERROR) or "it said nothing"
        raise FetchFailed(f"the released model could not be fetched ({describe_exit(code)}): {said}")
    return lines
