"""Publish as a child process; what comes of it is a receipt."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from flows import dvc
from flows.stopping import stop
from ipu_model.files import read_json
from tasks.project import artifacts
from tasks.project.errors import REJECTED
from tasks.project.plan_file import Stage
from tasks.project.process import describe_exit

ERROR = "error: "


class PublishFailed(Exception):
    """Nothing, or nothing new, was published; the message says why."""


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
        PublishFailed: with its last words.
    """
    lines: list[str] = []

    def take(line: str) -> None:
        lines.append(line)
        say(line)

    code = stop.follow([sys.executable, "-m", *module_of(gate)], root, dvc.environment(), take)
    if code:
        stop.check()
        said = "\n".join(lines).strip().removeprefix(ERROR) or "it said nothing"
        rejected = "the gate's verdict changed meanwhile, " if code == REJECTED else ""
        raise PublishFailed(f"publish failed ({rejected}{describe_exit(code)}): {said}")
    receipt: dict[str, Any] = read_json(root / artifacts.receipt_file(gate.item))
    return receipt
