"""Tiny row folders and jobs. Runs on Python 3.8 with torch, numpy, pyarrow, safetensors and pytest only."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence

import numpy as np
import pyarrow as pa

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
ONE_THREAD = {"PODIUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", *_ANY_PORT, "--no-python")
"""As tasks/host/launcher.py starts it, which this Python may not import."""
L, S, P = 24, 3, 4
LABELS = ("no", "yes", "maybe")
"""Classes of sequences, and of tokens, that make_columns makes."""
CLS, SEP, MASK = 2, 3, 4
MASKED_KINDS = ("pretrain", "masked_lm")
"""Kinds of rows with masked tokens."""


def make_columns(kind: str, rows: int, seed: int = 0, stretch: int = 1) -> Dict[str, np.ndarray]:
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
        at = 0
        together = kind == "sentence_embedding"  # every row has all texts of an example
        for slot in range(S if together else int(rng.integers(1, S + 1))):
            length = int(rng.integers(5, 9 + 8 * (slot == 0 and not together))) * stretch
            if at + length > row_length:
                break
            here = slice(at, at + length)
            columns["input_ids"][row, here] = rng.integers(5, 60, length)
            columns["input_ids"][row, at], columns["input_ids"][row, at + length - 1] = CLS, SEP
            columns["token_type_ids"][row, at + length // 2 : at + length] = 1
            columns["position_ids"][row, here] = np.arange(length)
            columns["sequence_ids"][row, here] = slot + 1
            columns["cls_positions"][row, slot] = at
            if kind in MASKED_KINDS:
                columns["masked_positions"][row, slot] = at + 1 + int(rng.integers(length - 2))
                columns["masked_labels"][row, slot] = rng.integers(5, 60)
                if kind == "pretrain":
                    columns["next_sentence_labels"][row, slot] = rng.integers(2)
            else:
                if kind == "question_answering":
                    start = int(rng.integers(1, length - 1))
                    columns["start_positions"][row, slot] = at + start
                    columns["end_positions"][row, slot] = at + int(rng.integers(start, length - 1))
                elif kind == "sequence_classification":
                    columns["class_labels"][row, slot] = rng.integers(len(LABELS))
                elif kind == "sequence_multilabel":
                    flags = slice(slot * len(LABELS), (slot + 1) * len(LABELS))
                    columns["label_flags"][row, flags] = rng.integers(2, size=len(LABELS))
                elif kind == "token_classification":  # of words of one and of two pieces
                    words = np.flatnonzero(rng.random(length - 2) < 0.7) + at + 1
                    columns["token_labels"][row, words] = rng.integers(len(LABELS), size=len(words))
                elif kind == "sentence_embedding":
                    columns["roles"][row, slot] = slot
                else:
                    columns["targets"][row, slot] = 5 * rng.random()
                columns["feature_ids"][row, slot] = feature
                feature += 1
            at += length
    return columns


def head_of(kind: str) -> str:
    if kind in ("sequence_multilabel", "sequence_regression"):
        return "sequence_classification"
    return {"pretrain": "pretraining"}.get(kind, kind)


def labels_of(kind: str) -> int:
    if kind in ("pretrain", "masked_lm", "question_answering", "sentence_embedding"):
        return 0
    return 1 if kind == "sequence_regression" else len(LABELS)


TAUGHT = tuple(f"sequence_{kind}" for kind in ("classification", "multilabel", "regression"))
TAUGHT += ("question_answering", "token_classification")
"""Kinds of rows that may have a teacher's logits."""


def add_teacher(kind: str, columns: Dict[str, np.ndarray]) -> Dict[str, np.ndarray]:
    rng, (rows, length) = np.random.Generator(np.random.PCG64(9)), columns["input_ids"].shape
    slots, labels = columns["cls_positions"].shape[1], labels_of(kind)
    widths = {"sequence_labels": slots * labels, "token_labels": length * labels, "row_length": length}
    taught = [x for x in get_columns(kind, 60, taught=True) if x.name.startswith("teacher_")]
    return {**columns, **{x.name: rng.normal(0, 2, (rows, widths[x.width])).astype(np.float32) for x in taught}}


def write_rows(
    folder: Path, kind: str, columns: Dict[str, np.ndarray], files: int = 1, tokenizer: str = "t" * 64
) -> Manifest:
    folder.mkdir(parents=True)
    rows, length = columns["input_ids"].shape
    masked = columns["masked_positions"].shape[1] if kind in MASKED_KINDS else 0
    taught = any(name.startswith("teacher_") for name in columns)
    schema = row_schema(kind, length, columns["cls_positions"].shape[1], masked, 60, labels_of(kind), taught)
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
    shape = (length, columns["cls_positions"].shape[1], masked, 60)
    manifest = Manifest(kind, *shape, tokenizer, 0, rows, sequences, tokens, counts, num_labels=labels_of(kind))
    if kind in MASKED_KINDS:
        manifest = dataclasses.replace(manifest, mask_id=MASK, special_ids=list(range(5)))
    if kind == "sentence_embedding":
        manifest = dataclasses.replace(manifest, unit=S)
    if taught:
        manifest = dataclasses.replace(manifest, teacher=TeacherRecord("w" * 64, "r" * 64))
    (folder / MANIFEST).write_text(manifest.to_json(), encoding="utf-8")
    return manifest


def make_job(folder: Path, kind: str, row_folder: Path, **changes: Any) -> Job:
    values: Dict[str, Any] = {
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


@dataclasses.dataclass
class Finished:
    code: int
    events: List[Dict[str, Any]]
    stderr: str

    def of(self, event: str) -> List[Dict[str, Any]]:
        return [x for x in self.events if x["event"] == event]


def run_here(job: Job) -> Finished:
    """Run a job in this process, with one thread; errors come out as exceptions."""
    import torch

    from ipu_model.distributed.process import StopRequest, lock_run_folder
    from ipu_model.train.job_runner import run_job

    torch.set_num_threads(1)
    events: List[Dict[str, Any]] = []
    with lock_run_folder(Path(job.run_folder)):
        run_job(job, lambda event, **fields: events.append({"event": event, **fields}), StopRequest())
    return Finished(0, events, "")


def result_of(job: Job) -> JobResult:
    return JobResult.from_json((Path(job.run_folder) / "result.json").read_text(encoding="utf-8"))


def weights_of(job: Job) -> Dict[str, Any]:
    """Name -> tensor of the finished model."""
    from safetensors.torch import load_file

    found: Dict[str, Any] = load_file(str(Path(job.output) / "model.safetensors"))
    return found


def table_of(job: Job, name: str = "history.csv") -> np.ndarray:
    """[lines, columns] of a table of the run folder."""
    return np.loadtxt(str(Path(job.run_folder) / name), delimiter=",", skiprows=1, ndmin=2)


def output_bytes(job: Job) -> Dict[str, bytes]:
    files = {path.name: path.read_bytes() for path in Path(job.output).iterdir()}
    return {**files, "history.csv": (Path(job.run_folder) / "history.csv").read_bytes()}


def pausing(job: Job, event: str, **fields: Any) -> Finished:
    """Run a job in this process as far as its first event of this kind, with these fields; then it is asked to stop."""
    import pytest
    import torch

    from ipu_model.distributed.process import StopRequest, Terminated
    from ipu_model.train.job_runner import run_job

    stop = StopRequest()
    events: List[Dict[str, Any]] = []

    def emit(name: str, **told: Any) -> None:
        events.append({"event": name, **told})
        stop.requested = stop.requested or {**events[-1], "event": event, **fields} == events[-1]

    torch.set_num_threads(1)
    with pytest.raises(Terminated):
        run_job(job, emit, stop)
    return Finished(0, events, "")


def write_job(job: Job) -> str:
    Path(job.run_folder).mkdir(parents=True, exist_ok=True)
    path = Path(job.run_folder) / "job.json"
    path.write_text(job.to_json(), encoding="utf-8")
    return str(path)


def start_job(job: Job, environment: Optional[Dict[str, str]] = None) -> subprocess.Popen:
    """Start `python -m ipu_model` on a job, with one thread."""
    command = [sys.executable, "-m", "ipu_model", write_job(job)]
    return start(command, {**os.environ, **ONE_THREAD, **(environment or {})})


def start(command: Sequence[str], environment: Optional[Dict[str, str]] = None, **more: Any) -> subprocess.Popen:
    pipes: Dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "universal_newlines": True}
    return subprocess.Popen(command, cwd=str(ROOT), env=environment, **pipes, **more)


def finish(process: subprocess.Popen) -> Finished:
    """Wait for a job; every line on its stdout must be an event."""
    out, err = process.communicate(timeout=300)
    return Finished(process.returncode, [json.loads(line) for line in out.splitlines()], err)


def stop_in_training(process: subprocess.Popen) -> Finished:
    """Send SIGTERM to a job after its first logged update, and wait for it."""
    until(process, "step")
    process.terminate()
    return finish(process)


def torchrun(job: Job, processes: int, restarts: int = 0) -> subprocess.Popen:
    program = (sys.executable, "-m", "ipu_model", write_job(job))
    command = [*TORCHRUN, "--nproc-per-node", str(processes), "--max-restarts", str(restarts), *program]
    return start(command, {**os.environ, **ONE_THREAD})


def until(process: subprocess.Popen, event: str, ending: str = "") -> None:
    """Wait for the first event of this kind, whose path ends so."""
    assert process.stdout is not None
    events = (json.loads(line) for line in process.stdout)
    assert any(x["event"] == event and x.get("path", "").endswith(ending) for x in events), f"ended without {event}"


def is_running(process: int) -> bool:
    """Not gone, and not merely waiting to be collected by its new parent."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def wait_for_end(processes: Sequence[int], seconds: float = 30) -> None:
    """Of processes that are no children of this one."""
    deadline = time.monotonic() + seconds
    while any(is_running(process) for process in processes):
        assert time.monotonic() < deadline, "they are still there"
        time.sleep(0.05)
