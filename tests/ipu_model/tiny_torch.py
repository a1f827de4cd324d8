"""What tests of several folders share and needs torch; tiny_jobs.py has what needs none."""

import contextlib
import dataclasses
import random
import shutil
import socket
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_jobs import STEADY, TINY, finish, head_of, labels_of, make_columns, start_job, write_rows

from ipu_model.models.model_folder import ModelOrigin, write_model
from ipu_model.models.modeling import build_model, initialise
from ipu_model.rows.row_folder import RowFolder
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
FINGERPRINT = {"seed": 7, "plan.rows_per_update": 6}


def make_batch(folder, head, rows=12):
    kind = "pretrain" if head == "pretraining" else head
    manifest = write_rows(folder, kind, make_columns(kind, rows))
    return RowFolder(folder, kind, TINY, manifest.num_labels).take(np.arange(rows))


class Elsewhere(cuda.CudaDevice):
    """The device of a GPU, its kernels and copies left out: everything else of it computes on the CPU."""

    def __init__(self):
        self.device = torch.device("cpu")
        self._attention = PaddedAttention

    def _move(self, packed):
        return packed.clone()

    def rng_state(self):
        return {"torch": torch.get_rng_state()}


def state_at(step):
    return Checkpoint(
        step,
        model={"w": torch.full((3,), float(step))},
        optimizer={"w/exp_avg": torch.full((3,), -float(step)), "w/step": torch.tensor(float(step))},
        device_rng={"torch": torch.arange(5, dtype=torch.uint8)},
        history={"sums": {"loss": 0.1 + 0.2}, "updates": 1, "last": {}},
    )


def make_model(kind, config=STEADY, seed=3):
    model = build_model(head_of(kind), config, labels_of(kind))
    initialise(model, config, seed)
    return model


def write_tiny(folder):
    weights = make_model("pretraining", TINY).state_dict()
    write_model(folder, "pretraining", TINY, weights, ModelOrigin("a" * 64, "pretrain", "pretraining", 5, 7))


def children_of(parent):
    """Process numbers, by /proc."""
    children = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended
            fields = stat.read_text().rpartition(")")[2].split()
            if int(fields[1]) == parent and fields[0] != "Z":
                children.append(int(stat.parent.name))
    return children


def _free_port():
    """A port below those of clients: one that waits for a server at its own port would connect to itself."""
    for port in random.SystemRandom().sample(range(15000, 30000), 20):
        with socket.socket() as free, contextlib.suppress(OSError):
            free.bind(("127.0.0.1", port))
            return port
    raise AssertionError("20 ports are taken")


def start_two(*jobs):
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port())}
    places = ({**shared, "RANK": str(index), "LOCAL_RANK": str(index)} for index in range(2))
    return [start_job(job, place) for job, place in zip(jobs, places)]


def run_two(job):
    return [finish(process) for process in start_two(job, job)]
