"""The IPU runtime on its own: precision, scaling, what happens between updates, and who holds the IPUs."""

from __future__ import annotations

import dataclasses
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_ipu import RATES, ipu_job, ipu_runtime, make_batches, make_model

from ipu_model.ipu.device_model import drop_out
from ipu_model.runtimes.torch_device import TorchRuntime
from tests.optimizers import optimizer_config

ADAMW = optimizer_config(name="adamw", learning_rate=1e-3)
LAMB = optimizer_config(name="lamb", learning_rate=1e-3)


@pytest.mark.ipu
@pytest.mark.parametrize("head", ["pretraining", "question_answering"])
def test_fp16_losses_stay_within_a_hundredth_of_fp32_on_the_cpu(head: str, tmp_path: Path) -> None:
    """Two updates here, as fp16 is emulated slowly."""
    scaled = dataclasses.replace(ADAMW, loss_scaling=128.0)
    cpu = TorchRuntime(make_model(head), head, 32, "fp32", ADAMW, seed=7)
    job = ipu_job(head, scaled, tmp_path, 2, 1, precision="fp16")
    batches = make_batches(head, 2, 32)
    with closing(ipu_runtime(job, model=make_model(head))) as ipu:
        ipu.compile(batches[0])
        half, full = ([runtime.train_step(*x).loss for x in zip(batches, RATES)] for runtime in (ipu, cpu))
        weights = ipu.state_dict()
    assert half == pytest.approx(full, rel=1e-2)
    assert half != full  # it did compute in fp16
    assert all(x.dtype == torch.float32 and bool((x == x.half()).all()) for x in weights.values())


class Dropping(torch.nn.Module):
    """Dropout, after a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor(3.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return drop_out(x * self.weight, 0.25, dropping=True)


@pytest.mark.ipu
def test_dropout_in_fp16_drops_a_quarter_and_scales_the_rest(poptorch: Any) -> None:
    with torch.random.fork_rng(devices=[]):
        options = poptorch.Options()
        options.randomSeed(1)
        executor = poptorch.inferenceModel(Dropping().half(), options)
        found = executor(torch.ones(1, 4000, dtype=torch.float16))
        executor.destroy()
    assert found.dtype == torch.float16
    assert set(found.flatten().tolist()) == {0.0, 4.0}  # 3 / (1 - 0.25)
    assert 900 < int((found == 0).sum()) < 1100  # 1000, standard deviation 27


@pytest.mark.ipu
@pytest.mark.parametrize("mode", ["sum", "all", "final", "default"])
def test_every_output_mode_reports_what_it_says(mode: str, tmp_path: Path) -> None:
    """sum and all: the loss of the update; final, the default: that of the last micro-batch of each replica."""
    batch = make_batches("pretraining", 1, 32)[0]
    job = ipu_job("pretraining", LAMB, tmp_path, 2, 1, ipu_config={"output_mode": mode})
    runtime = ipu_runtime(job)
    runtime.compile(batch)
    loss = runtime.train_step(batch, 0.0).loss
    runtime.close()
    cpu = TorchRuntime(make_model("pretraining"), "pretraining", 32, "fp32", LAMB, seed=7)
    expected = cpu.train_step(batch, 0.0).loss
    if mode in ("final", "default"):
        assert loss != pytest.approx(expected, abs=1e-3)
    else:
        assert loss == pytest.approx(expected, abs=1e-5)


@pytest.mark.ipu
def test_rows_without_padding_or_without_anything_give_no_nan(tmp_path: Path) -> None:
    """A fully padded row in fp16: nothing to look at but padding, and no label."""
    batch = make_batches("question_answering", 1, 32)[0]
    columns = {name: x.copy() for name, x in batch.columns.items()}
    ids = ("input_ids", "token_type_ids", "position_ids", "sequence_ids")
    labels = ("start_positions", "end_positions")
    nothing = {**dict.fromkeys(ids, 0), **dict.fromkeys(labels, -100), "cls_positions": -1, "feature_ids": -1}
    for name, empty in nothing.items():
        columns[name][3] = empty
    padded = dataclasses.replace(batch, columns=columns)
    job = ipu_job("question_answering", ADAMW, tmp_path, 2, 1, precision="fp16")
    runtime = ipu_runtime(job)
    runtime.compile(padded)
    assert np.isfinite(runtime.train_step(padded, 1e-3).loss)
    assert all(bool(torch.isfinite(x).all()) for x in runtime.state_dict().values())
    runtime.close()
