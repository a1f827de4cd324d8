"""Layers that are computed once more on the way back: the same weights, from less memory."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import List

import numpy as np
import pytest
import torch
from tiny_jobs import TINY, make_columns, make_job, pausing, result_of, run_here, weights_of, write_rows
from tiny_torch import make_model

from ipu_model import heads
from ipu_model.models.flat import flatten
from ipu_model.rows.row_folder import Batch

JOBS = {"pretrain": "pretrain", "question_answering": "finetune"}


@pytest.mark.parametrize(
    ("kind", "precision"), [("pretrain", "fp32"), ("pretrain", "bf16"), ("question_answering", "bf16")]
)
def test_a_run_goes_on_with_it_and_ends_with_the_same_weights(tmp_path: Path, kind: str, precision: str) -> None:
    write_rows(tmp_path / "rows", kind, make_columns(kind, 24))
    whole, stopped = (
        make_job(tmp_path / name, JOBS[kind], tmp_path / "rows", precision=precision) for name in ("whole", "stopped")
    )
    run_here(whole)
    pausing(stopped, "saved")
    run_here(dataclasses.replace(stopped, recompute=True))
    assert result_of(stopped).resumed_from_step > 0
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
