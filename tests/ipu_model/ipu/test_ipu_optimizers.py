"""PopTorch's optimizers against those of the torch runtimes, on the same toy and the same rows."""

from __future__ import annotations

from typing import Any, Dict, Tuple

import poptorch
import pytest
import torch
from torch import Tensor
from toy_training import MICRO_BATCHES, RATES, ROWS, UPDATES, Device, config_of, rows, toy

from ipu_model.core.errors import ConfigError
from ipu_model.ipu.optimizers import make_ipu_optimizer
from ipu_model.jobs.job import OptimizerConfig
from ipu_model.optim.optimizers import clip_gradients, make_optimizer


def train(config: OptimizerConfig, updates: int = 10, size: float = 1.0) -> Dict[str, Tensor]:
    device = Device(toy(), config)
    for rate, batch in zip(RATES, rows(updates, size)):
        device.update(rate, batch)
    return device.weights()


def train_with_torch(config: OptimizerConfig, updates: int = 10, size: float = 1.0) -> Dict[str, Tensor]:
    model = toy()
    optimizer = make_optimizer(config, model)
    for rate, (x, y) in zip(RATES, rows(updates, size)):
        optimizer.zero_grad()
        for part_x, part_y in zip(x.split(ROWS), y.split(ROWS)):
            (model.loss(part_x, part_y) / MICRO_BATCHES).backward()
        clip_gradients([p.grad for p in model.parameters() if p.grad is not None], config.max_grad_norm)
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()
    return {name: p.detach() for name, p in model.named_parameters()}


def furthest(one: Dict[str, Tensor], other: Dict[str, Tensor]) -> float:
    assert sorted(one) == sorted(other)
    return max(float((one[name] - other[name]).abs().max()) for name in one)


@pytest.mark.parametrize("update", UPDATES)
def test_ten_updates_equal_those_of_the_torch_runtime(update: str) -> None:
    config = config_of(update)
    assert furthest(train(config), train_with_torch(config)) < 1e-5


@pytest.mark.parametrize(
    ("update", "kind", "expected"),
    [
        ("lamb-uncorrected", "LAMB_NO_BIAS", {}),
        ("adamw", "ADAMW", {"eps": [1e-6, True]}),
        ("adam", "ADAM", {"beta2": [0.99, True]}),
        ("sgd", "SGD2", {"momentum": [0.9, True]}),
    ],
)
def test_every_optimizer_is_compiled_as_what_it_is_called(
    update: str, kind: str, expected: Dict[str, Any], record: Any
) -> None:
    Device(toy(), config_of(update)).executor.compile(*rows(1)[0])
    found = record()[-1]["optimizer"]
    assert found["type"] == kind
    decayed, exempt = found["groups"]
    expected = {**expected, "weightDecay": [0.05, True]}
    assert {name: decayed[name] for name in expected} == expected
    assert exempt["weightDecay"] == [0.0, True]
    assert decayed["learningRate"] == exempt["learningRate"] == [0.02, False]


@pytest.mark.parametrize("update", ["lamb", "adamw", "adam", "sgd"])
@pytest.mark.parametrize(
    ("half", "accumulator", "first", "expected"),
    [
        (False, "auto", "auto", (torch.float32, torch.float32)),
        (True, "auto", "auto", (torch.float16, torch.float16)),
        (True, "fp16", "fp32", (torch.float16, torch.float32)),
        (False, "fp16", "auto", (torch.float16, torch.float32)),
    ],
)
def test_precision_of_accumulators_and_moments(
    update: str, half: bool, accumulator: str, first: str, expected: Tuple[torch.dtype, torch.dtype]
) -> None:
    config = config_of(update, accumulator_precision=accumulator, first_moment_precision=first)
    optimizer = make_ipu_optimizer(poptorch, config, toy().named_parameters(), half)
    name = "velocity_accum_type" if update == "sgd" else "first_order_momentum_accum_type"
    assert (optimizer.accum_type, getattr(optimizer, name)) == expected
    if update != "sgd":
        assert optimizer.second_order_momentum_accum_type is torch.float32


@pytest.mark.parametrize(("update", "decay"), [("adamw", 0.05), ("adam", 0.0)])
def test_accumulated_gradients_are_clipped_as_torch_clips_them(update: str, decay: float) -> None:
    # Targets of size 10 make gradients far above the bound, whatever the loss scaling.
    config = config_of(update, max_grad_norm=0.5, weight_decay=decay, loss_scaling=128.0)
    clipped = train(config, size=10.0)
    assert furthest(clipped, train_with_torch(config, size=10.0)) < 1e-5
    assert furthest(clipped, train(config_of(update, weight_decay=decay), size=10.0)) > 1e-3


@pytest.mark.parametrize(
    ("update", "changes", "message"),
    [
        ("lamb", {"max_grad_norm": 1.0}, "max_grad_norm=1 with lamb"),
        ("sgd", {"max_grad_norm": 1.0}, "max_grad_norm=1 with sgd"),
        ("adam", {"max_grad_norm": 1.0}, "weight_decay to 0"),
        ("adamw-uncorrected", {}, "bias_correction=false with adamw.*use lamb"),
        ("adam-uncorrected", {"max_grad_norm": 2.0}, "bias_correction=false with adam.*max_grad_norm=2"),
    ],
)
def test_what_the_ipu_would_do_otherwise_is_refused(update: str, changes: Dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_ipu_optimizer(poptorch, config_of(update, **changes), toy().named_parameters(), half=False)


def test_frozen_parameters_are_in_no_group_and_an_empty_group_is_left_out() -> None:
    model = toy()
    model.bert_model.second.weight.requires_grad_(False)
    model.bert_model.first.weight.requires_grad_(False)
    optimizer = make_ipu_optimizer(poptorch, config_of("lamb"), model.named_parameters(), half=False)
    assert [len(group["params"]) for group in optimizer.param_groups] == [3]
    assert optimizer.param_groups[0]["weight_decay"] == 0.0
