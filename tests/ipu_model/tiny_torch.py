"""What tests of several folders share and needs torch; tiny_jobs.py has what needs none."""

from __future__ import annotations

import contextlib
import dataclasses
import random
import shutil
import socket
import subprocess
from pathlib import Path
from typing import Any, Dict, List

import numpy as np
import pytest
import torch
from tiny_jobs import STEADY, TINY, Finished, finish, head_of, labels_of, make_columns, start_job, write_rows

from ipu_model.jobs.job import Job
from ipu_model.models.config import ModelConfig
from ipu_model.models.model_folder import ModelOrigin, write_model
from ipu_model.models.modeling import build_model, initialise
from ipu_model.rows.row_folder import Batch, RowFolder
from ipu_model.runtimes import cuda
from ipu_model.runtimes.compilation import OLDEST
from ipu_model.runtimes.cuda import PaddedAttention
from ipu_model.train.checkpoint import Checkpoint

VERSION = tuple(int(part) for part in torch.__version__.split(".")[:2])


needs_compiler = pytest.mark.skipif(
    VERSION < OLDEST or shutil.which("g++") is None, reason="needs torch 2.4 and g++, as device.compile does"
)


needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch.cuda.is_available() is False: no GPU here")


WIDE = dataclasses.replace(TINY, hidden_size=128, intermediate_size=256)
"""Heads of 64, as published BERTs have them."""


def make_batch(folder: Path, head: str, rows: int = 12) -> Batch:
    kind = "pretrain" if head == "pretraining" else head
    manifest = write_rows(folder, kind, make_columns(kind, rows))
    return RowFolder(folder, kind, TINY, manifest.num_labels).take(np.arange(rows))


class Elsewhere(cuda.CudaDevice):
    """The device of a GPU, its kernels and copies left out: everything else of it computes on the CPU."""

    def __init__(self) -> None:
        self.device = torch.device("cpu")
        self._attention = PaddedAttention

    def _move(self, packed: torch.Tensor) -> torch.Tensor:
        return packed.clone()

    def rng_state(self) -> Dict[str, torch.Tensor]:
        return {"torch": torch.get_rng_state()}


FINGERPRINT = {"seed": 7, "plan.rows_per_update": 6}


def state_at(step: int) -> Checkpoint:
    return Checkpoint(
        step,
        model={"w": torch.full((3,), float(step))},
        optimizer={"w/exp_avg": torch.full((3,), -float(step)), "w/step": torch.tensor(float(step))},
        device_rng={"torch": torch.arange(5, dtype=torch.uint8)},
        history={"sums": {"loss": 0.1 + 0.2}, "updates": 1, "last": {}},
    )


def make_model(kind: str, config: ModelConfig = STEADY, seed: int = 3) -> Any:
    model = build_model(head_of(kind), config, labels_of(kind))
    initialise(model, config, seed)
    return model


def write_tiny(folder: Path) -> None:
    weights = build_model("pretraining", TINY).state_dict()
    write_model(folder, "pretraining", TINY, weights, ModelOrigin("a", "b", "c", 1, 2))


def children_of(parent: int) -> List[int]:
    """Process numbers, by /proc."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended
            fields = stat.read_text().rpartition(")")[2].split()
            if int(fields[1]) == parent and fields[0] != "Z":
                found.append(int(stat.parent.name))
    return found


def free_port() -> int:
    """A port below those of clients: one that waits for a server at its own port would connect to itself."""
    for port in random.SystemRandom().sample(range(15000, 30000), 20):
        with socket.socket() as free, contextlib.suppress(OSError):
            free.bind(("127.0.0.1", port))
            return port
    raise AssertionError("20 ports are taken")


def start_two(job: Job, other: Job) -> List[subprocess.Popen]:
    port = free_port()
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    return [
        start_job(each, {**shared, "RANK": str(index), "LOCAL_RANK": str(index)})
        for index, each in enumerate((job, other))
    ]


def run_two(job: Job) -> List[Finished]:
    return [finish(process) for process in start_two(job, job)]
