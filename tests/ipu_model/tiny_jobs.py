"""Tiny row folders and jobs. Runs on Python 3.8 with torch, numpy, pyarrow, safetensors and pytest only."""

import dataclasses
import json
import os
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from ipu_model.jobs.job import BatchGeometry, Job, JobResult, ScheduleConfig
from ipu_model.models.config import ModelConfig
from ipu_model.rows.format import MANIFEST, Manifest, TeacherRecord, get_columns, row_schema
from tests.optimizers import optimizer_config

ROOT = Path(__file__).resolve().parents[2]
TINY = ModelConfig(vocab_size=60, hidden_size=16, num_layers=2, num_heads=2, intermediate_size=32, max_positions=32)
STILL = dataclasses.replace(TINY, hidden_dropout=0.0, attention_dropout=0.0)
"""Nothing is dropped."""
STEADY = dataclasses.replace(STILL, initializer_range=0.3)
"""Nor are its numbers small."""
_ANY_PORT = ("--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0", "--local-addr", "127.0.0.1")
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", *_ANY_PORT, "--no-python")
"""As tasks/host/launcher.py starts it, which this Python may not import."""
L, S, P = 24, 3, 4
LABELS = ("no", "yes", "maybe")
"""Classes of sequences, and of tokens, that make_columns makes."""
CLS, SEP, MASK = 2, 3, 4
MASKED_KINDS = ("pretrain", "masked_lm")
"""Kinds of rows with masked tokens."""
TAUGHT = ("sequence_classification", "sequence_multilabel", "sequence_regression")
TAUGHT += ("question_answering", "token_classification")
"""Kinds of rows that may have a teacher's logits."""


def head_of(kind):
    if kind in ("sequence_multilabel", "sequence_regression"):
        return "sequence_classification"
    return "pretraining" if kind == "pretrain" else kind


def labels_of(kind):
    if kind in (*MASKED_KINDS, "question_answering", "sentence_embedding"):
        return 0
    return 1 if kind == "sequence_regression" else len(LABELS)


def make_columns(kind, rows, seed=0, stretch=1):
    """Random but well-formed packed rows: 1 to S sequences of 5 tokens and more, padding at the end; with `stretch`,
    rows and sequences are as many times as long."""
    rng, row_length = np.random.Generator(np.random.PCG64(seed)), L * stretch
    widths = {
        "row_length": row_length,
        "max_sequences": S,
        "max_predictions": P,
        "sequence_labels": S * labels_of(kind),
    }
    columns = {x.name: np.full((rows, widths[x.width]), x.unused, x.type) for x in get_columns(kind, 60)}
    feature = 0
    for row in range(rows):
        at, cells = 0, {name: values[row] for name, values in columns.items()}
        together = kind == "sentence_embedding"  # every row has all texts of an example
        for slot in range(S if together else int(rng.integers(1, S + 1))):
            length = int(rng.integers(5, 9 + 8 * (slot == 0 and not together))) * stretch
            if at + length > row_length:
                break
            here = slice(at, at + length)
            cells["input_ids"][here] = rng.integers(5, 60, length)
            cells["input_ids"][at], cells["input_ids"][at + length - 1] = CLS, SEP
            cells["token_type_ids"][at + length // 2 : at + length] = 1
            cells["position_ids"][here] = np.arange(length)
            cells["sequence_ids"][here] = slot + 1
            cells["cls_positions"][slot] = at
            _label(kind, cells, slot, at, length, rng)
            if "feature_ids" in cells:
                cells["feature_ids"][slot] = feature
                feature += 1
            at += length
    return columns


def _label(kind, cells, slot, at, length, rng):
    if kind in MASKED_KINDS:
        cells["masked_positions"][slot] = at + 1 + int(rng.integers(length - 2))
        cells["masked_labels"][slot] = rng.integers(5, 60)
        if kind == "pretrain":
            cells["next_sentence_labels"][slot] = rng.integers(2)
    elif kind == "question_answering":
        start = int(rng.integers(1, length - 1))
        cells["start_positions"][slot] = at + start
        cells["end_positions"][slot] = at + int(rng.integers(start, length - 1))
    elif kind == "sequence_classification":
        cells["class_labels"][slot] = rng.integers(len(LABELS))
    elif kind == "sequence_multilabel":
        flags = slice(slot * len(LABELS), (slot + 1) * len(LABELS))
        cells["label_flags"][flags] = rng.integers(2, size=len(LABELS))
    elif kind == "token_classification":  # of words of one and of two pieces
        words = np.flatnonzero(rng.random(length - 2) < 0.7) + at + 1
        cells["token_labels"][words] = rng.integers(len(LABELS), size=len(words))
    elif kind == "sentence_embedding":
        cells["roles"][slot] = slot
    else:
        cells["targets"][slot] = 5 * rng.random()


def add_teacher(kind, columns):
    rng, (rows, length) = np.random.Generator(np.random.PCG64(9)), columns["input_ids"].shape
    slots, labels = columns["cls_positions"].shape[1], labels_of(kind)
    widths = {"sequence_labels": slots * labels, "token_labels": length * labels, "row_length": length}
    taught = [x for x in get_columns(kind, 60, taught=True) if x.name.startswith("teacher_")]
    return {**columns, **{x.name: rng.normal(0, 2, (rows, widths[x.width])).astype(np.float32) for x in taught}}


def write_rows(folder, kind, columns, files=1, tokenizer="t" * 64):
    folder.mkdir(parents=True)
    rows, length = columns["input_ids"].shape
    masked = columns["masked_positions"].shape[1] if kind in MASKED_KINDS else 0
    shape = (length, columns["cls_positions"].shape[1], masked, 60)
    taught = any(name.startswith("teacher_") for name in columns)
    schema = row_schema(kind, *shape, labels_of(kind), taught)
    counts = {}
    for number, part in enumerate(np.array_split(np.arange(rows), files)):
        name = f"rows-{number:05d}.arrow"
        with pa.ipc.new_file(str(folder / name), schema) as writer:
            for half in np.array_split(part, 2):  # several record batches in a file, as real folders have
                arrays = [
                    pa.FixedSizeListArray.from_arrays(pa.array(columns[f.name][half].reshape(-1)), f.type.list_size)
                    for f in schema
                ]
                writer.write_batch(pa.record_batch(arrays, schema=schema))
        counts[name] = len(part)
    sequences, tokens = int((columns["cls_positions"] >= 0).sum()), int((columns["sequence_ids"] > 0).sum())
    of_kind = {"mask_id": MASK, "special_ids": list(range(5))} if masked else {}
    if kind == "sentence_embedding":
        of_kind["unit"] = S
    if taught:
        of_kind["teacher"] = TeacherRecord("w" * 64, "r" * 64)
    sums = (rows, sequences, tokens, counts)
    manifest = Manifest(kind, *shape, tokenizer, 0, *sums, num_labels=labels_of(kind), **of_kind)
    (folder / MANIFEST).write_text(manifest.to_json(), encoding="utf-8")
    return manifest


def make_job(folder, kind, row_folder, **changes):
    values = {
        "kind": kind,
        "head": "pretraining" if kind == "pretrain" else "question_answering",
        "rows": str(row_folder),
        "output": str(folder / ("logits.arrow" if kind == "predict" else "model")),
        "run_folder": str(folder / "run"),
        "geometry": BatchGeometry(global_batch_size=12, micro_batch_size=4),
        "runtime": "cpu",
        "precision": "fp32",
        "seed": 7,
        "model": None if kind == "predict" else TINY,
        "optimizer": optimizer_config(learning_rate=1e-2, max_grad_norm=1.0),
        "schedule": ScheduleConfig(steps=6, warmup_fraction=0.5),
        "checkpoint_every_updates": 2,
        "log_every_updates": 3,
    }
    return Job(**{**values, **changes})


class Finished:
    """A job that has ended: its exit code, its events and what it wrote to stderr."""

    def __init__(self, code, events, stderr=""):
        self.code, self.events, self.stderr = code, events, stderr

    def of(self, event):
        return [x for x in self.events if x["event"] == event]


def run_here(job, stop_at=None):
    """Run a job in this process, with one thread; errors come out as exceptions. At its first event that has all of
    `stop_at` it is asked to stop."""
    import torch

    from ipu_model.distributed.process import StopRequest, Terminated, lock_run_folder
    from ipu_model.train.job_runner import run_job

    stop, events = StopRequest(), []

    def emit(event, **fields):
        events.append({"event": event, **fields})
        if stop_at is not None and {**events[-1], **stop_at} == events[-1]:
            stop.requested = True

    torch.set_num_threads(1)
    with lock_run_folder(Path(job.run_folder)), pytest.raises(Terminated) if stop_at else nullcontext():
        run_job(job, emit, stop)
    return Finished(0, events)


def pausing(job, event, **fields):
    """Run a job in this process as far as its first event of this kind, with these fields; then it is asked to stop."""
    return run_here(job, {"event": event, **fields})


def result_of(job):
    return JobResult.from_json((Path(job.run_folder) / "result.json").read_text(encoding="utf-8"))


def weights_of(job):
    """Name -> tensor of the finished model."""
    from safetensors.torch import load_file

    return load_file(str(Path(job.output) / "model.safetensors"))


def table_of(job, name="history.csv"):
    """[lines, columns] of a table of the run folder."""
    return np.loadtxt(str(Path(job.run_folder) / name), delimiter=",", skiprows=1, ndmin=2)


def output_bytes(job):
    files = {path.name: path.read_bytes() for path in Path(job.output).iterdir()}
    return {**files, "history.csv": (Path(job.run_folder) / "history.csv").read_bytes()}


def write_job(job):
    path = Path(job.run_folder) / "job.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(job.to_json(), encoding="utf-8")
    return str(path)


def start_job(job, environment=None):
    return start([sys.executable, "-m", "ipu_model", write_job(job)], environment)


def start(command, environment=None, **more):
    """Start a program in this checkout, with one thread and these variables."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "universal_newlines": True}
    variables = {**os.environ, "PODIUM_THREADS": "1", "OMP_NUM_THREADS": "1", **(environment or {})}
    return subprocess.Popen(command, cwd=str(ROOT), env=variables, **pipes, **more)


def finish(process):
    """Wait for a job; every line on its stdout must be an event."""
    out, err = process.communicate(timeout=300)
    return Finished(process.returncode, [json.loads(line) for line in out.splitlines()], err)


def stop_in_training(process):
    """Send SIGTERM to a job after its first logged update, and wait for it."""
    until(process, "step")
    process.terminate()
    return finish(process)


def until(process, event, ending=""):
    """Wait for the first event of this kind, whose path ends so."""
    events = (json.loads(line) for line in process.stdout)
    assert any(x["event"] == event and x.get("path", "").endswith(ending) for x in events), f"ended without {event}"


def wait_for_end(processes):
    """Of processes that are no children of this one."""
    deadline = time.monotonic() + 30
    while any(map(_is_running, processes)):
        assert time.monotonic() < deadline, "they are still there"
        time.sleep(0.05)


def _is_running(process):
    """Not gone, and not merely waiting to be collected by its new parent."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
