"""Hosts of real stages, and the parameter sets that they are sent."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import IO, Any

from tasks.params.strict_yaml import read_yaml
from tests.faults.small_run import SMALL
from tests.flows.workers.worker_hosts import Host, start_process
from tests.places import ROOT, copy_project

QUEUE = "cpu/default"
FIRST_SEED = 101


def overrides_of(number: int, code: Path = ROOT) -> list[str]:
    """Return the parameters of a set: a small fine-tuning of fresh weights, from generated data to a release."""
    values = read_yaml(code / "params.yaml")
    return [
        *(override for override in SMALL if _is_known(override.partition("=")[0], values)),
        "pretrain.enabled=false",
        f"downstream.squad.finetune.seed={FIRST_SEED + number}",
        f"downstream.squad.publish.folder=published/set-{number}",
    ]


def _is_known(parameter: str, values: dict[str, Any]) -> bool:
    section, _, rest = parameter.partition(".")
    return section in values and (not rest or _is_known(rest, values[section]))


class LoadHost(Host):
    """A host with a copy of a project, whose stages are the real ones."""

    code = ROOT
    """The project that is copied."""

    def __init__(self, *places: Any) -> None:
        super().__init__(*places)
        self.work: tuple[str, ...] = ()
        """Arguments of `start_worker`, by which a worker that was killed is started again."""
        self.environment["PODIUM_THREADS"] = "1"

    def make_project(self) -> None:
        copy_project(self.project, self.code)
        shutil.copy2(self.code / "prefect.yaml", self.project)

    def send(self, number: int, log: IO[str]) -> Any:
        """Start a run of a set from this host, its stages on workers; returns the process."""
        words = [sys.executable, "-m", "flows", "run", "--on-workers", "--device-queue", QUEUE]
        words += [word for override in overrides_of(number, self.code) for word in ("--set", override)]
        return start_process(words, self.environment, log, self.project)

    def places(self) -> list[Path]:
        return [self.folder]
