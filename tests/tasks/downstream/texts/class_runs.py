"""Stages of classification in this process, and the logits of what they make."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from tasks.downstream import evaluate, examples, parity, rows
from tasks.downstream.gate import gate
from tasks.downstream.inference import job as inference_job
from tasks.downstream.jobs import entry_jobs as jobs
from tasks.jobs import training
from tests.tasks.downstream.texts.classification_checkout import NAME
from tests.tasks.downstream.texts.glue_checkout import device_job_here, read_json, run_stage


@pytest.fixture(autouse=True)
def _jobs_in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (training, jobs, parity, inference_job):
        monkeypatch.setattr(module, "run_device_job", device_job_here)


def run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """All stages up to the gate; the metrics."""
    monkeypatch.chdir(folder)
    run_stage(examples, NAME)
    run_stage(rows, NAME)
    for module, stage in ((jobs, "finetune"), (jobs, "predict"), (evaluate, "evaluate"), (gate, "gate")):
        run_stage(module, f"{stage}@{NAME}")
    found: dict[str, Any] = read_json(folder / f"metrics/{NAME}.json")
    return found


def own_logits(folder: Path) -> np.ndarray:
    with pa.memory_map(str(folder / f"predictions/{NAME}/dev.arrow")) as source:
        return np.array(pa.ipc.open_file(source).read_all()["logits"].to_pylist())


def published_logits(folder: Path, texts: list[list[str]]) -> tuple[np.ndarray, Any]:
    """Logits of the released model in transformers, and its configuration."""
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    with torch.no_grad():
        found = [model(**tokenizer(*one, return_tensors="pt")).logits[0].numpy() for one in texts]
    return np.array(found), model.config
