"""Cost of checkpoints for a training on a CPU: `python -m bench.checkpoints`, some minutes on one core.

It runs the same updates of a fine-tuning on random rows in three modes: without checkpoints, with synchronous and with
asynchronous checkpoints. Every round prints the wall time and the CPU time of the training process for each mode. The
summary prints the delay per checkpoint, as the median over the rounds, and its share of a training with a checkpoint
every ten minutes. On a busy host, rely on the CPU time only.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bench.setup import OPTIMIZER
from ipu_model.distributed.process import StopRequest
from ipu_model.jobs.job import BatchGeometry, Job, ScheduleConfig
from ipu_model.models.config import ModelConfig
from ipu_model.models.modeling import build_model, initialise
from ipu_model.rows.row_folder import Batch
from ipu_model.runtimes.host import keep_freed_memory
from ipu_model.runtimes.torch_device import TorchRuntime
from ipu_model.train.checkpoint import Checkpoints
from ipu_model.train.checkpoint_writer import CheckpointWriter
from ipu_model.train.history import History

HEAD = "question_answering"
NONE, SYNCHRONOUS, ASYNCHRONOUS = "none", "synchronous", "asynchronous"
VOCABULARY = 30522
RATE = 1e-5
MINUTES = 10
"""Default of checkpoint_every_minutes."""


def make_batch(rows: int, length: int, seed: int) -> Batch:
    """Make a batch of random tokens [rows, length], one sequence per row, without padding."""
    rng = np.random.default_rng(seed)
    at, one = np.arange(length, dtype=np.uint16), np.ones((rows, 1), np.int16)
    columns: dict[str, np.ndarray] = {
        "input_ids": rng.integers(5, VOCABULARY, (rows, length)).astype(np.uint16),
        "token_type_ids": np.zeros((rows, length), np.uint8),
        "position_ids": np.tile(at, (rows, 1)),
        "sequence_ids": np.ones((rows, length), np.uint8),
        "cls_positions": 0 * one,
        "start_positions": 3 * one,
        "end_positions": 5 * one,
        "feature_ids": np.arange(rows, dtype=np.int32)[:, None],
    }
    return Batch(np.arange(rows), columns)


def train_once(mode: str, options: argparse.Namespace, folder: Path) -> tuple[float, float]:
    """Train in one mode; return wall seconds and CPU seconds of this process."""
    model = ModelConfig(VOCABULARY, options.hidden, options.layers, options.hidden // 64, 4 * options.hidden)
    network = build_model(HEAD, model)
    initialise(network, model, 1)
    optimizer = dataclasses.replace(OPTIMIZER, learning_rate=RATE)
    runtime = TorchRuntime(network, HEAD, options.rows, "fp32", optimizer, 1)
    paths: dict[str, Any] = {"rows": "", "output": "", "run_folder": str(folder)}
    every = options.every if mode == ASYNCHRONOUS else 0
    job = Job(
        "finetune",
        HEAD,
        **paths,
        geometry=BatchGeometry(options.rows),
        model=model,
        optimizer=optimizer,
        schedule=ScheduleConfig(steps=options.updates),
        checkpoint_every_updates=every,
    )
    checkpoints = Checkpoints(folder, {}, _ignore)
    batches = [make_batch(options.rows, options.length, seed) for seed in range(4)]
    runtime.train_step(batches[0], RATE)  # the first step allocates gradients and moments
    history = History(folder, (), job.log_every_updates, _ignore)
    with closing(CheckpointWriter(job, runtime, checkpoints, history, None, StopRequest(), _ignore)) as keep:
        wall, cpu = time.perf_counter(), time.process_time()
        for done in range(1, options.updates + 1):
            runtime.train_step(batches[done % 4], RATE)
            keep.collect()
            if mode != NONE and done % options.every == 0:
                keep.save(done)
        return time.perf_counter() - wall, time.process_time() - cpu


def _ignore(event: str, **fields: Any) -> None:
    """Discard events."""


def _rounds(options: argparse.Namespace) -> Iterator[dict[str, tuple[float, float]]]:
    for _ in range(options.rounds):
        times = {}
        for mode in (NONE, SYNCHRONOUS, ASYNCHRONOUS):
            with tempfile.TemporaryDirectory(dir=options.folder) as folder:
                times[mode] = train_once(mode, options, Path(folder))
        yield times


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure the cost of checkpoints for a training on a CPU.")
    sizes = {"layers": 6, "hidden": 384, "rows": 4, "length": 64, "updates": 40, "every": 20, "rounds": 3, "threads": 1}
    for name, default in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=default, help=f"default {default}")
    parser.add_argument("--folder", help="folder on the disk to measure; default: that of temporary files")
    return parser.parse_args()


def main() -> None:
    """Measure, and print a line per round and the medians."""
    options = _parse()
    torch.set_num_threads(options.threads)
    keep_freed_memory()
    saves = options.updates // options.every
    write = sys.stdout.write
    write(f"{options.updates} updates of {options.rows} x {options.length} tokens, ")
    write(f"{options.layers} layers of {options.hidden}, ")
    write(f"{saves} checkpoints, threads {options.threads}, load {os.getloadavg()[0]:.1f}\n")
    delays: dict[str, list[tuple[float, float]]] = {SYNCHRONOUS: [], ASYNCHRONOUS: []}
    update: list[float] = []
    for times in _rounds(options):
        write("; ".join(f"{mode}: {wall:.2f} s, CPU {cpu:.2f} s" for mode, (wall, cpu) in times.items()) + "\n")
        update.append(times[NONE][1] / options.updates)
        for mode, rounds in delays.items():
            rounds.append(tuple((one - none) / saves for one, none in zip(times[mode], times[NONE], strict=True)))
    write(f"update: CPU {statistics.median(update):.3f} s\n")
    for mode, rounds in delays.items():
        wall, cpu = (statistics.median(column) for column in zip(*rounds, strict=True))
        shares = f"{wall / (60 * MINUTES):.2%} wall, {cpu / (60 * MINUTES):.2%} CPU"
        write(f"{mode} checkpoint: wall {wall:.2f} s, CPU {cpu:.2f} s; one every {MINUTES} minutes: {shares}\n")


if __name__ == "__main__":
    main()
