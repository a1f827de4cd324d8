"""LAMB, AdamW, Adam and SGD against plain per-tensor references, and clipping by the global norm."""

import math

import pytest
import torch
from torch import nn

from ipu_model.core.errors import ConfigError
from ipu_model.models.config import ModelConfig
from ipu_model.models.layers import LowPrecisionCopies
from ipu_model.models.modeling import build_model, initialise
from ipu_model.optim import optimizers
from ipu_model.optim.optimizers import BlockedAdamW, BlockedLamb, Lamb, clip_gradients, make_optimizer
from tests.optimizers import optimizer_config

SETTINGS = {"beta1": 0.9, "beta2": 0.99, "eps": 1e-6}


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch):
    """So that a small tensor has several, the last one short."""
    monkeypatch.setattr(optimizers, "BLOCK", 7)


class Small(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(5, 4, bias=False)
        self.second = nn.Linear(4, 3)
        self.LayerNorm = nn.LayerNorm(3)


def reference_update(weight, gradient, memory, step, rate, decay, corrected, ratio):
    """LAMB of arXiv 1904.00962 algorithm 2, in double precision and one tensor at a time; Adam without `ratio`."""
    memory["m"] = 0.9 * memory.get("m", torch.zeros_like(weight)) + 0.1 * gradient
    memory["v"] = 0.99 * memory.get("v", torch.zeros_like(weight)) + 0.01 * gradient**2
    first = memory["m"] / (1 - 0.9**step) if corrected else memory["m"]
    second = memory["v"] / (1 - 0.99**step) if corrected else memory["v"]
    direction = first / (second.sqrt() + 1e-6) + decay * weight
    norms = float(weight.norm()), float(direction.norm())
    factor = norms[0] / norms[1] if ratio and all(norms) else 1.0
    return weight - rate * factor * direction


@pytest.mark.parametrize(
    ("name", "corrected"),
    [("lamb", True), ("lamb", False), ("adamw", True), ("adamw", False), ("adam", True), ("sgd", True)],
)
def test_ten_updates_follow_the_plain_reference(name, corrected):
    """Decay is a penalty of the gradient for Adam and SGD; biases and LayerNorm have none."""
    torch.manual_seed(0)
    model = Small()
    settings = {"weight_decay": 0.05, "momentum": 0.8, "bias_correction": corrected, **SETTINGS}
    optimizer = make_optimizer(optimizer_config(name=name, learning_rate=0.1, **settings), model)
    expected = {n: p.detach().double().clone() for n, p in model.named_parameters()}
    memory = {n: {} for n in expected}
    torch.manual_seed(3)
    for step in range(1, 11):
        for n, parameter in model.named_parameters():
            parameter.grad = gradient = torch.randn(parameter.shape)
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
def test_the_trust_ratio_of_a_hand_worked_tensor(weights, moved):
    # One step without correction: m = 0.1 g, v = 0.01 g^2, so the direction is sign(g) and its norm sqrt(2).
    weight = nn.Parameter(torch.tensor(weights))
    weight.grad = torch.tensor([10.0, -10.0])
    Lamb([weight], lr=0.1, betas=(0.9, 0.99), eps=0.0, weight_decay=0.0, bias_correction=False).step()
    torch.testing.assert_close(weight.detach(), torch.tensor([weights[0] - moved, weights[1] + moved]))


@pytest.mark.parametrize(("bound", "scale"), [(3.0, 0.5), (6.1, 1.0), (None, 1.0)])
def test_clipping_scales_all_gradients_to_the_global_norm(bound, scale):
    first, second = torch.tensor([2.0, 4.0]), torch.tensor([4.0])  # norm sqrt(4 + 16 + 16) = 6
    assert clip_gradients([first, second], bound) == pytest.approx(6.0)
    torch.testing.assert_close(first, scale * torch.tensor([2.0, 4.0]), rtol=1e-5, atol=0)
    torch.testing.assert_close(second, scale * torch.tensor([4.0]), rtol=1e-5, atol=0)
    with pytest.raises(ConfigError, match="adamw or lamb"):
        make_optimizer(optimizer_config("adam", bias_correction=False), Small())


needs_fused = pytest.mark.skipif(
    not optimizers._has_fused_adamw("cpu"), reason="this torch has no fused Adam for the CPU (2.4 has)"
)
BLOCKED = {"lr": 0.05, "betas": (0.9, 0.99), "eps": 1e-6, "weight_decay": 0.1}
TINY = ModelConfig(vocab_size=40, hidden_size=8, num_layers=1, num_heads=2, intermediate_size=16, max_positions=16)


def weights():
    torch.manual_seed(0)
    return [nn.Parameter(torch.randn(5, 4)), nn.Parameter(torch.randn(3)), nn.Parameter(torch.zeros(2, 2))]


def run(optimizer, parameters):
    generator = torch.Generator().manual_seed(1)
    for _ in range(5):
        for parameter in parameters:
            parameter.grad = torch.randn(parameter.shape, generator=generator)
        optimizer.step()
    return [p.detach().clone() for p in parameters]


@needs_fused
@pytest.mark.parametrize("correction", [True, False])
def test_a_whole_tensor_at_once_equals_blocks(correction):
    """What is compiled, run as it is written."""
    mine, theirs = weights(), weights()
    ours, reference = (
        BlockedLamb(
            [{"params": parameters[::2]}, {"params": parameters[1:2], "trust_ratio": False}],
            bias_correction=correction,
            **BLOCKED,
        )
        for parameters in (mine, theirs)
    )
    ours.advance = optimizers.advance_lamb
    ours.rehearse()
    for optimizer in (ours, reference):
        optimizer.clip([torch.ones(4)], 1.0)  # halves all gradients
    torch.testing.assert_close(run(ours, mine), run(reference, theirs), rtol=1e-5, atol=1e-6)


@needs_fused
@pytest.mark.parametrize("bound", [3.0, 1000.0])
@pytest.mark.parametrize("ours", [BlockedAdamW, BlockedLamb])
def test_clipping_in_the_step_equals_clipping_before_it(ours, bound):
    mine, theirs = weights()[:1], weights()[:1]
    gradient = torch.arange(20.0).reshape(5, 4)
    mine[0].grad, theirs[0].grad = gradient.clone(), gradient.clone()
    first, second = (ours(p, bias_correction=True, **BLOCKED) for p in (mine, theirs))
    assert float(first.clip([mine[0].grad], bound)) == pytest.approx(float(gradient.norm()))
    theirs[0].grad.mul_(min(1.0, bound / (gradient.norm() + 1e-6)))
    second.clip([theirs[0].grad], None)
    first.step()
    second.step()
    torch.testing.assert_close(first.state[mine[0]]["exp_avg"], second.state[theirs[0]]["exp_avg"])
    torch.testing.assert_close(mine, theirs)
    assert torch.equal(mine[0].grad, gradient)  # read, not changed


@needs_fused
@pytest.mark.parametrize("name", ["adamw", "lamb"])
def test_gradients_of_copies_are_used_and_copies_are_refreshed(name):
    config = optimizer_config(name=name, learning_rate=0.01)
    models = [build_model("pretraining", TINY) for _ in range(2)]
    for model in models:
        initialise(model, TINY, seed=1)
    low, exact = (LowPrecisionCopies(model, dtype) for model, dtype in zip(models, (torch.bfloat16, None)))
    ours, theirs = (make_optimizer(config, model, copies) for model, copies in zip(models, (low, exact)))
    assert isinstance(ours, optimizers.BlockedAdamW)
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
