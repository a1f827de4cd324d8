"""Dropout in fp16, which torch 2.0 cannot do on a CPU: every PopTorch that these tests run on does it all the same."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from ipu_model.ipu.device_model import drop_out


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
