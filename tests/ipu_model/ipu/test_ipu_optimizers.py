"""PopTorch's optimizers against those of the torch runtimes on a toy, and their state, saved and put back."""

from __future__ import annotations

from typing import Any, Dict, List, Tuple

import poptorch
import pytest
import torch
from torch import Tensor, nn

from ipu_model.core.errors import CheckpointError, ConfigError
from ipu_model.ipu.optimizers import load_optimizer_tensors, make_ipu_optimizer, optimizer_tensors, set_learning_rate
from ipu_model.jobs.job import OptimizerConfig
from ipu_model.optim.optimizers import clip_gradients, make_optimizer
from tests.optimizers import optimizer_config

MICRO_BATCHES, ROWS = 2, 4
RATES = [0.02, 0.04, 0.03, 0.02, 0.05, 0.01, 0.02, 0.03, 0.01, 0.005]
UPDATES = ["lamb", "lamb-uncorrected", "adamw", "adam", "sgd"]


class Inner(nn.Module):
    """Two matrices, a bias, a LayerNorm."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(5, 4)
        self.LayerNorm = nn.LayerNorm(4)
        self.second = nn.Linear(4, 3, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.tanh(self.LayerNorm(self.first(x))))


class Toy(nn.Module):
    """As the device model does, it holds the model under a name of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.bert_model = Inner()

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        return ((self.bert_model(x) - y).float() ** 2).mean()

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return poptorch.identity_loss(self.loss(x, y), reduction="none")


def config_of(update: str, **changes: Any) -> OptimizerConfig:
    name, _, uncorrected = update.partition("-")
    values: Dict[str, Any] = {"weight_decay": 0.05, "beta2": 0.99, "bias_correction": not uncorrected}
    return optimizer_config(name=name, learning_rate=RATES[0], **{**values, **changes})


def toy() -> Toy:
    torch.manual_seed(0)
    return Toy()


def rows(updates: int, size: float = 1.0) -> List[Tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [
        (torch.randn(MICRO_BATCHES * ROWS, 5, generator=generator), torch.randn(8, 3, generator=generator) * size)
        for _ in range(updates)
    ]


class Device:
    """An executor as the runtime drives it: the rate is set and handed over before every update."""

    def __init__(self, config: OptimizerConfig) -> None:
        options = poptorch.Options()
        options.Training.gradientAccumulation(MICRO_BATCHES)
        options.showCompilationProgressBar(False)
        self.model = toy()
        self.optimizer = make_ipu_optimizer(poptorch, config, self.model.named_parameters(), half=False)
        self.executor = poptorch.trainingModel(self.model, options, optimizer=self.optimizer)

    def update(self, rate: float, batch: Tuple[Tensor, Tensor]) -> None:
        set_learning_rate(self.optimizer, rate)
        self.executor.setOptimizer(self.optimizer)
        self.executor(*batch)


def train(config: OptimizerConfig, size: float = 1.0) -> Dict[str, Tensor]:
    device = Device(config)
    for rate, batch in zip(RATES, rows(10, size)):
        device.update(rate, batch)
    device.executor.copyWeightsToHost()
    return {name: p.detach().clone() for name, p in device.model.named_parameters()}


def train_with_torch(config: OptimizerConfig, size: float = 1.0) -> Dict[str, Tensor]:
    model = toy()
    optimizer = make_optimizer(config, model)
    for rate, (x, y) in zip(RATES, rows(10, size)):
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


def test_a_state_of_another_runtime_is_refused() -> None:
    optimizer = make_ipu_optimizer(poptorch, config_of("lamb"), toy().named_parameters(), half=False)
    with pytest.raises(CheckpointError, match="exp_avg"):
        load_optimizer_tensors(poptorch, optimizer, {"bert.pooler.dense.weight/exp_avg": torch.zeros(1)})
    plain = torch.optim.SGD(toy().parameters(), lr=0.1)
    with pytest.raises(CheckpointError, match="SGD"):
        load_optimizer_tensors(poptorch, plain, {})


def attributes(optimizer: Any) -> Tuple[List[str], List[str], List[List[str]]]:
    return sorted(vars(optimizer)), sorted(optimizer.defaults), [sorted(group) for group in optimizer.param_groups]


@pytest.mark.parametrize("update", UPDATES)
def test_no_attribute_appears_after_the_first_update(update: str) -> None:
    # PopTorch notes the attributes it saw when it compiled and warns of every later one as ignored.
    device = Device(config_of(update))
    device.update(RATES[0], rows(1)[0])
    noted = attributes(device.optimizer)
    load_optimizer_tensors(poptorch, device.optimizer, optimizer_tensors(device.optimizer))
    device.update(RATES[1], rows(1)[0])
    assert attributes(device.optimizer) == noted
