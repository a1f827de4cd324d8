"""Generated examples of GLUE, and the stages of an entry with their device jobs in this process."""

import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from ipu_model.core.files import read_json
from ipu_model.distributed.process import StopRequest
from ipu_model.jobs.job import JobResult
from ipu_model.train.job_runner import run_job
from tasks.downstream import evaluate, examples, parity, rows
from tasks.downstream.gate import gate
from tasks.downstream.inference import job as inference_job
from tasks.downstream.jobs import entry_jobs
from tasks.downstream.texts.params import GlueDataParams
from tasks.downstream.texts.task_table import TASKS
from tasks.jobs import device_job, training
from tasks.params.entries import TRAIN
from tests.tasks.downstream.entries import task_with

WORDS = [f"word{number}" for number in range(40)]
SIZE = {"hidden_size": 32, "num_layers": 1, "num_heads": 2, "intermediate_size": 64, "initializer_range": 0.1}
SIZE |= {"hidden_dropout": 0.0, "attention_dropout": 0.0}


def make_glue_data(name: str, path: Path, folder: Path) -> dict[str, int]:
    """Write the examples of a task of GLUE as its stage reads them from `path`; how many each split has."""
    folder.mkdir(parents=True)
    task = task_with(f"glue-{name}", "reader", data=GlueDataParams(path=str(path)))
    task.write_examples(folder)
    return {split: pq.read_metadata(folder / f"{split}.parquet").num_rows for split in task.entry.splits}


def write_examples(folder: Path, name: str, train: int = 160, dev: int = 60, seed: int = 0) -> None:
    """TSV files of a task, as numbers and without a header; the first word of the last sentence says the label."""
    task, generator = TASKS[name], np.random.default_rng(seed)
    (folder / name).mkdir(parents=True)
    for split in (TRAIN, *dict(task.dev)):
        lines = []
        for _ in range(train if split == TRAIN else dev):
            texts = [" ".join(generator.choice(WORDS[10:], size=generator.integers(3, 9))) for _ in task.columns]
            number = int(generator.integers(6 if task.is_regression else len(task.labels)))
            texts[-1] = f"{WORDS[number]} {texts[-1]}"
            lines.append("\t".join([*texts, str(float(number) if task.is_regression else number)]))
        (folder / name / f"{split}.tsv").write_text("\n".join(lines), encoding="utf-8")


def run_stage(module, *words: str) -> None:
    """The command line of a stage, here."""
    before, sys.argv = sys.argv, [module.__name__, *words]
    try:
        module.main()
    finally:
        sys.argv = before


def device_job_here(job, **how) -> JobResult:
    """In place of tasks.jobs.device_job.run_device_job: no other process; launcher and events are not needed."""
    torch.set_num_threads(1)
    shutil.rmtree(job.run_folder, ignore_errors=True)
    Path(job.run_folder).mkdir(parents=True)
    return run_job(job, lambda event, **fields: None, StopRequest())


def run_jobs_here(patch: pytest.MonkeyPatch) -> None:
    for module in (training, entry_jobs, parity, inference_job, device_job):
        patch.setattr(module, "run_device_job", device_job_here)


def run_entry(folder: Path, name: str, patch: pytest.MonkeyPatch) -> dict[str, Any]:
    """All stages of an entry up to the gate, in the checkout `folder`, where the process stays; its metrics."""
    patch.chdir(folder)
    run_stage(examples, name)
    run_stage(rows, name)
    for module, stage in ((entry_jobs, "finetune"), (entry_jobs, "predict"), (evaluate, "evaluate"), (gate, "gate")):
        run_stage(module, f"{stage}@{name}")
    return read_json(folder / f"metrics/{name}.json")


def own_logits(folder: Path, name: str) -> list[np.ndarray]:
    with pa.memory_map(str(folder / f"predictions/{name}/dev.arrow")) as source:
        return [np.array(row) for row in pa.ipc.open_file(source).read_all()["logits"].to_pylist()]
