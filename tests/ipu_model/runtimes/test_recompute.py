"""Layers that are computed once more on the way back: the same weights, from less memory."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import List

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tiny_jobs import TINY, make_columns, make_job, pausing, run_here, weights_of, write_rows
from tiny_torch import make_model

from ipu_model import heads
from ipu_model.jobs.job import JobResult
from ipu_model.models.flat import flatten
from ipu_model.rows.row_folder import Batch

JOBS = {"pretrain": "pretrain", "question_answering": "finetune"}


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("kind", ["pretrain", "question_answering"])
def test_the_weights_are_those_of_a_training_that_keeps_everything(tmp_path: Path, kind: str, precision: str) -> None:
    write_rows(tmp_path / "rows", kind, make_columns(kind, 24))
    trained = []
    for recompute in (False, True):
        folder = tmp_path / str(recompute)
        job = make_job(folder, JOBS[kind], tmp_path / "rows", precision=precision, recompute=recompute)
        run_here(job)
        trained.append(load_file(str(folder / "model/model.safetensors")))
    kept, recomputed = trained
    assert all(torch.equal(kept[name], recomputed[name]) for name in kept)


def test_a_run_goes_on_with_or_without_it(tmp_path: Path) -> None:
    write_rows(tmp_path / "rows", "pretrain", make_columns("pretrain", 24))
    whole, stopped = (make_job(tmp_path / name, "pretrain", tmp_path / "rows") for name in ("whole", "stopped"))
    run_here(whole)
    pausing(stopped, "saved")
    run_here(dataclasses.replace(stopped, recompute=True))
    result = JobResult.from_json((tmp_path / "stopped/run/result.json").read_text(encoding="utf-8"))
    assert result.resumed_from_step > 0
    torch.testing.assert_close(weights_of(whole), weights_of(stopped), rtol=0, atol=0)


def test_less_is_kept_for_the_way_back() -> None:
    config = dataclasses.replace(TINY, num_layers=6)
    model = make_model("question_answering", config)
    head = heads.get_head("question_answering")
    batch = Batch(np.arange(8), make_columns("question_answering", 8))
    flat, counts = flatten(batch, head.flat_labels), head.label_counts(batch)
    kept: List[int] = []
    for recompute in (False, True):
        model.bert.recompute = recompute
        sizes: List[int] = []

        def pack(tensor: torch.Tensor, sizes: List[int] = sizes) -> torch.Tensor:
            sizes.append(tensor.numel() * tensor.element_size())
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            head.loss(model, flat, counts)[0].backward()
        kept.append(sum(sizes))
    assert kept[1] < kept[0] / 4, kept
