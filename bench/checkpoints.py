"""What checkpoints cost a training on a CPU: `python -m bench.checkpoints`, some minutes on one core.

The same updates of a fine-tuning with random rows, three ways by turns: without checkpoints, with checkpoints written
in turn with the training, and beside it. Every round prints the wall seconds of each and the seconds of CPU time of the
training's own process; the end, what one checkpoint held the training up for, as the median over the rounds, and what
share that is of a training that makes one every ten minutes. On a host that does other work trust the CPU time alone.
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
from ipu_model.rows.reading import Batch
from ipu_model.runtimes.host import keep_freed_memory
from ipu_model.runtimes.torch_device import TorchRuntime
from ipu_model.train.checkpoint import Checkpoints
from ipu_model.train.history import History
from ipu_model.train.saving import CheckpointWriter

HEAD = "question_answering"
NONE, IN_TURN, BESIDE = "none", "in turn", "beside"
VOCABULARY = 30522
RATE = 1e-5
MINUTES = 10
"""The default of checkpoint_every_minutes."""


def batch_of(rows: int, length: int, seed: int) -> Batch:
    """[rows, length] tokens, one sequence a row and no padding."""
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


def measured(way: str, words: argparse.Namespace, folder: Path) -> tuple[float, float]:
    """Train one way; wall seconds, and CPU seconds of this process."""
    model = ModelConfig(VOCABULARY, words.hidden, words.layers, words.hidden // 64, 4 * words.hidden)
    network = build_model(HEAD, model)
    initialise(network, model, 1)
    optimizer = dataclasses.replace(OPTIMIZER, learning_rate=RATE)
    runtime = TorchRuntime(network, HEAD, words.rows, "fp32", optimizer, 1)
    paths: dict[str, Any] = {"rows": "", "output": "", "run_folder": str(folder)}
    every = words.every if way == BESIDE else 0
    job = Job(
        "finetune",
        HEAD,
        **paths,
        geometry=BatchGeometry(words.rows),
        model=model,
        optimizer=optimizer,
        schedule=ScheduleConfig(steps=words.updates),
        checkpoint_every_updates=every,
    )
    checkpoints = Checkpoints(folder, {}, _ignore)
    batches = [batch_of(words.rows, words.length, seed) for seed in range(4)]
    runtime.train_step(batches[0], RATE)  # its first makes room for gradients and moments
    history = History(folder, (), job.log_every_updates, _ignore)
    with closing(CheckpointWriter(job, runtime, checkpoints, history, None, StopRequest(), _ignore)) as keep:
        wall, cpu = time.perf_counter(), time.process_time()
        for done in range(1, words.updates + 1):
            runtime.train_step(batches[done % 4], RATE)
            keep.collect()
            if way != NONE and done % words.every == 0:
                keep.save(done)
        return time.perf_counter() - wall, time.process_time() - cpu


def _ignore(event: str, **fields: Any) -> None:
    """Nobody watches."""


def _rounds(words: argparse.Namespace) -> Iterator[dict[str, tuple[float, float]]]:
    for _ in range(words.rounds):
        found = {}
        for way in (NONE, IN_TURN, BESIDE):
            with tempfile.TemporaryDirectory(dir=words.folder) as folder:
                found[way] = measured(way, words, Path(folder))
        yield found


def _words() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="What checkpoints cost a training on a CPU.")
    sizes = {"layers": 6, "hidden": 384, "rows": 4, "length": 64, "updates": 40, "every": 20, "rounds": 3, "threads": 1}
    for name, default in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=default, help=f"default {default}")
    parser.add_argument("--folder", help="on the disk to write to; default: that of temporary files")
    return parser.parse_args()


def main() -> None:
    """Measure, and print a line a round and the medians."""
    words = _words()
    torch.set_num_threads(words.threads)
    keep_freed_memory()
    saves = words.updates // words.every
    say = sys.stdout.write
    say(f"{words.updates} updates of {words.rows} x {words.length} tokens, {words.layers} layers of {words.hidden}, ")
    say(f"{saves} checkpoints, threads {words.threads}, load {os.getloadavg()[0]:.1f}\n")
    held: dict[str, list[tuple[float, float]]] = {IN_TURN: [], BESIDE: []}
    update: list[float] = []
    for found in _rounds(words):
        say("; ".join(f"{way}: {wall:.2f} s, CPU {cpu:.2f} s" for way, (wall, cpu) in found.items()) + "\n")
        update.append(found[NONE][1] / words.updates)
        for way, rounds in held.items():
            rounds.append(tuple((one - none) / saves for one, none in zip(found[way], found[NONE], strict=True)))
    say(f"an update: CPU {statistics.median(update):.3f} s\n")
    for way, rounds in held.items():
        wall, cpu = (statistics.median(column) for column in zip(*rounds, strict=True))
        shares = f"{wall / (60 * MINUTES):.2%} wall, {cpu / (60 * MINUTES):.2%} CPU"
        say(f"{way}, a checkpoint: wall {wall:.2f} s, CPU {cpu:.2f} s; one every {MINUTES} minutes: {shares}\n")


if __name__ == "__main__":
    main()
