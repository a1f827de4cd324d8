"""Optimizers that work block by block against those that work on whole tensors."""

from __future__ import annotations

from typing import Any, Dict, List, Type

import pytest
import torch
from torch import Tensor, nn

from ipu_model.models.config import ModelConfig
from ipu_model.models.layers import LowPrecisionCopies
from ipu_model.models.modeling import build_model, initialise
from ipu_model.optim import optimizers as blocked
from ipu_model.optim.optimizers import BlockedAdamW, BlockedLamb, _has_fused_adamw, make_optimizer
from tests.optimizers import optimizer_config

pytestmark = pytest.mark.skipif(
    not _has_fused_adamw("cpu"), reason="this torch has no fused Adam for the CPU (2.4 has)"
)
SETTINGS: Dict[str, Any] = {"lr": 0.05, "betas": (0.9, 0.99), "eps": 1e-6, "weight_decay": 0.1}
TINY = ModelConfig(vocab_size=40, hidden_size=8, num_layers=1, num_heads=2, intermediate_size=16, max_positions=16)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a small tensor has several, the last one short."""
    monkeypatch.setattr(blocked, "BLOCK", 7)


def weights() -> List[nn.Parameter]:
    torch.manual_seed(0)
    return [nn.Parameter(torch.randn(5, 4)), nn.Parameter(torch.randn(3)), nn.Parameter(torch.zeros(2, 2))]


def run(optimizer: torch.optim.Optimizer, parameters: List[nn.Parameter], steps: int = 5) -> List[Tensor]:
    generator = torch.Generator().manual_seed(1)
    for _ in range(steps):
        for parameter in parameters:
            parameter.grad = torch.randn(parameter.shape, generator=generator)
        optimizer.step()
    return [p.detach().clone() for p in parameters]


@pytest.mark.parametrize("correction", [True, False])
def test_a_whole_tensor_at_once_equals_blocks(correction: bool) -> None:
    """What is compiled, run as it is written."""
    mine, theirs = weights(), weights()
    ours = BlockedLamb(_groups(mine), bias_correction=correction, **SETTINGS)
    ours.advance = blocked.advance_lamb
    ours.rehearse()
    ours._scale = 0.5
    reference = BlockedLamb(_groups(theirs), bias_correction=correction, **SETTINGS)
    reference._scale = 0.5
    torch.testing.assert_close(run(ours, mine), run(reference, theirs), rtol=1e-5, atol=1e-6)


def _groups(parameters: List[nn.Parameter]) -> List[Dict[str, Any]]:
    return [{"params": parameters[::2]}, {"params": parameters[1:2], "trust_ratio": False}]


@pytest.mark.parametrize("bound", [3.0, 1000.0])
@pytest.mark.parametrize("ours", [BlockedAdamW, BlockedLamb])
def test_clipping_in_the_step_equals_clipping_before_it(ours: Type[blocked.BlockedAdamW], bound: float) -> None:
    mine, theirs = weights()[:1], weights()[:1]
    gradient = torch.arange(20.0).reshape(5, 4)
    mine[0].grad, theirs[0].grad = gradient.clone(), gradient.clone()
    first, second = (ours(p, bias_correction=True, **SETTINGS) for p in (mine, theirs))
    assert float(first.clip([mine[0].grad], bound)) == pytest.approx(float(gradient.norm()))
    theirs[0].grad.mul_(min(1.0, bound / (gradient.norm() + 1e-6)))
    second.clip([theirs[0].grad], None)
    first.step()
    second.step()
    torch.testing.assert_close(first.state[mine[0]]["exp_avg"], second.state[theirs[0]]["exp_avg"])
    torch.testing.assert_close(mine, theirs)
    assert torch.equal(mine[0].grad, gradient)  # read, not changed


@pytest.mark.parametrize("name", ["adamw", "lamb"])
def test_gradients_of_copies_are_used_and_copies_are_refreshed(name: str) -> None:
    config = optimizer_config(name=name, learning_rate=0.01)
    models = [build_model("pretraining", TINY) for _ in range(2)]
    for model in models:
        initialise(model, TINY, seed=1)
    low, exact = (LowPrecisionCopies(model, dtype) for model, dtype in zip(models, (torch.bfloat16, None)))
    ours, theirs = (make_optimizer(config, model, copies) for model, copies in zip(models, (low, exact)))
    assert isinstance(ours, blocked.BlockedAdamW)
    generator = torch.Generator().manual_seed(2)
    copies = dict(low.pairs)
    for mine, other in zip(models[0].parameters(), models[1].parameters()):
        gradient = torch.randn(mine.shape, generator=generator).bfloat16()
        other.grad = gradient.float()
        if mine not in copies:
            mine.grad = gradient.float()
        else:
            copies[mine].grad = gradient
    words = models[0].bert.embeddings.word_embeddings.weight
    words.grad = torch.ones_like(words)  # looked up as well: both gradients count
    models[1].bert.embeddings.word_embeddings.weight.grad += 1
    for optimizer in (ours, theirs):
        optimizer.step()
    torch.testing.assert_close(list(models[0].parameters()), list(models[1].parameters()))
    for weight, copy in low.pairs:
        assert torch.equal(copy.detach(), weight.detach().bfloat16())
