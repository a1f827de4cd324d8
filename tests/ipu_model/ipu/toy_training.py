"""A toy that PopTorch trains as the IPU runtime trains a BERT: the rate is handed over before every update."""

from __future__ import annotations

from typing import Any, Dict, List, Tuple

import poptorch
import torch
from torch import Tensor, nn

from ipu_model.ipu.optimizers import make_ipu_optimizer, set_learning_rate
from ipu_model.jobs.job import OptimizerConfig
from tests.optimizers import optimizer_config

MICRO_BATCHES, ROWS = 2, 4
RATES = [0.02, 0.04, 0.03, 0.02, 0.05, 0.01, 0.02, 0.03, 0.01, 0.005]
UPDATES = ["lamb", "lamb-uncorrected", "adamw", "adam", "sgd"]


class Inner(nn.Module):
    """Two matrices, a bias of each, a LayerNorm."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.first = nn.Linear(5, 4)
        self.LayerNorm = nn.LayerNorm(4)
        self.dropout = nn.Dropout(dropout)
        self.second = nn.Linear(4, 3, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.dropout(torch.tanh(self.LayerNorm(self.first(x)))))


class Toy(nn.Module):
    """As the device model does, it holds the model under a name of its own."""

    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.bert_model = Inner(dropout)

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        return ((self.bert_model(x) - y).float() ** 2).mean()

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return poptorch.identity_loss(self.loss(x, y), reduction="none")


def config_of(update: str, **changes: Any) -> OptimizerConfig:
    name, _, uncorrected = update.partition("-")
    values: Dict[str, Any] = {"weight_decay": 0.05, "beta2": 0.99, "bias_correction": not uncorrected}
    return optimizer_config(name=name, learning_rate=RATES[0], **{**values, **changes})


def toy(dropout: float = 0.0, half: bool = False) -> Toy:
    torch.manual_seed(0)
    model = Toy(dropout)
    return model.half() if half else model


def rows(updates: int, size: float = 1.0, half: bool = False) -> List[Tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    drawn = [
        (torch.randn(MICRO_BATCHES * ROWS, 5, generator=generator), torch.randn(8, 3, generator=generator) * size)
        for _ in range(updates)
    ]
    return [(x.half(), y.half()) for x, y in drawn] if half else drawn


class Device:
    """An executor as the runtime drives it: the rate is set and handed over before every update."""

    def __init__(self, model: Toy, config: OptimizerConfig, half: bool = False) -> None:
        options = poptorch.Options()
        options.Training.gradientAccumulation(MICRO_BATCHES)
        options.showCompilationProgressBar(False)
        options.randomSeed(3)
        self.model = model
        self.optimizer = make_ipu_optimizer(poptorch, config, model.named_parameters(), half)
        self.executor = poptorch.trainingModel(model, options, optimizer=self.optimizer)

    def update(self, rate: float, batch: Tuple[Tensor, Tensor]) -> None:
        set_learning_rate(self.optimizer, rate)
        self.executor.setOptimizer(self.optimizer)
        self.executor(*batch)

    def weights(self) -> Dict[str, Tensor]:
        return {name: p.detach().float().clone() for name, p in self.model.named_parameters()}
