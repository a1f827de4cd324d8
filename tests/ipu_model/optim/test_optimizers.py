"""LAMB, AdamW, Adam and SGD against plain per-tensor references, and clipping by the global norm."""

from __future__ import annotations

import math
from typing import Dict, List, Optional

import pytest
import torch
from torch import Tensor, nn

from ipu_model.core.errors import ConfigError
from ipu_model.optim import optimizers
from ipu_model.optim.optimizers import Lamb, clip_gradients, make_optimizer
from tests.optimizers import optimizer_config

SETTINGS = {"beta1": 0.9, "beta2": 0.99, "eps": 1e-6}


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a small tensor has several, the last one short."""
    monkeypatch.setattr(optimizers, "BLOCK", 7)


class Small(nn.Module):
    """Two matrices, a bias and a LayerNorm."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(5, 4, bias=False)
        self.second = nn.Linear(4, 3)
        self.LayerNorm = nn.LayerNorm(3)


def reference_update(
    weight: Tensor,
    gradient: Tensor,
    memory: Dict[str, Tensor],
    step: int,
    rate: float,
    decay: float,
    corrected: bool,
    ratio: bool,
    bound: Optional[float] = None,
) -> Tensor:
    """LAMB of arXiv 1904.00962 algorithm 2, in double precision and one tensor at a time; Adam without `ratio`."""
    memory["m"] = 0.9 * memory.get("m", torch.zeros_like(weight)) + 0.1 * gradient
    memory["v"] = 0.99 * memory.get("v", torch.zeros_like(weight)) + 0.01 * gradient**2
    first = memory["m"] / (1 - 0.9**step) if corrected else memory["m"]
    second = memory["v"] / (1 - 0.99**step) if corrected else memory["v"]
    direction = first / (second.sqrt() + 1e-6) + decay * weight
    factor = 1.0
    if ratio:
        weight_norm = min(float(weight.norm()), bound if bound is not None else math.inf)
        if weight_norm > 0 and float(direction.norm()) > 0:
            factor = weight_norm / float(direction.norm())
    return weight - rate * factor * direction


def gradients_of(model: nn.Module, steps: int) -> List[List[Tensor]]:
    torch.manual_seed(3)
    return [[torch.randn(p.shape) for p in model.parameters()] for _ in range(steps)]


@pytest.mark.parametrize(
    ("name", "corrected"),
    [("lamb", True), ("lamb", False), ("adamw", True), ("adamw", False), ("adam", True), ("sgd", True)],
)
def test_ten_updates_follow_the_plain_reference(name: str, corrected: bool) -> None:
    """Decay is a penalty of the gradient for Adam and SGD; biases and LayerNorm have none."""
    torch.manual_seed(0)
    model = Small()
    settings = {"weight_decay": 0.05, "momentum": 0.8, "bias_correction": corrected, **SETTINGS}
    optimizer = make_optimizer(optimizer_config(name=name, learning_rate=0.1, **settings), model)
    expected = {n: p.detach().double().clone() for n, p in model.named_parameters()}
    memory: Dict[str, Dict[str, Tensor]] = {n: {} for n in expected}
    for step, gradients in enumerate(gradients_of(model, 10), start=1):
        for (n, parameter), gradient in zip(model.named_parameters(), gradients):
            parameter.grad = gradient.clone()
            exempt = n in ("second.bias", "LayerNorm.weight", "LayerNorm.bias")
            decay, ratio, slope = 0.0 if exempt else 0.05, name == "lamb" and not exempt, gradient.double()
            if name in ("adam", "sgd"):
                slope, decay = slope + decay * expected[n], 0.0
            if name == "sgd":
                memory[n]["v"] = 0.8 * memory[n].get("v", torch.zeros_like(slope)) + slope
                expected[n] = expected[n] - 0.1 * memory[n]["v"]
            else:
                expected[n] = reference_update(expected[n], slope, memory[n], step, 0.1, decay, corrected, ratio)
        optimizer.step()
    for n, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.detach().double(), expected[n], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("weights", "moved"), [([3.0, 4.0], 0.1 * 5 / math.sqrt(2)), ([0.0, 0.0], 0.1)], ids=["norm 5", "zeros: ratio 1"]
)
def test_the_trust_ratio_of_a_hand_worked_tensor(weights: List[float], moved: float) -> None:
    # One step without correction: m = 0.1 g, v = 0.01 g^2, so the direction is sign(g) and its norm sqrt(2).
    weight = nn.Parameter(torch.tensor(weights))
    weight.grad = torch.tensor([10.0, -10.0])
    Lamb([weight], lr=0.1, betas=(0.9, 0.99), eps=0.0, weight_decay=0.0, bias_correction=False).step()
    torch.testing.assert_close(weight.detach(), torch.tensor([weights[0] - moved, weights[1] + moved]))


@pytest.mark.parametrize(("bound", "scale"), [(3.0, 0.5), (6.1, 1.0), (None, 1.0)])
def test_clipping_scales_all_gradients_to_the_global_norm(bound: Optional[float], scale: float) -> None:
    first, second = torch.tensor([2.0, 4.0]), torch.tensor([4.0])  # norm sqrt(4 + 16 + 16) = 6
    assert clip_gradients([first, second], bound) == pytest.approx(6.0)
    torch.testing.assert_close(first, scale * torch.tensor([2.0, 4.0]), rtol=1e-5, atol=0)
    torch.testing.assert_close(second, scale * torch.tensor([4.0]), rtol=1e-5, atol=0)
    with pytest.raises(ConfigError, match="adamw or lamb"):
        make_optimizer(optimizer_config("adam", bias_correction=False), Small())
