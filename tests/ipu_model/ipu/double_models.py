"""Toys for the tests that hold the double to PopTorch."""

from __future__ import annotations

from typing import Any, Callable, Optional, Sequence, Tuple

import poptorch
import torch
from torch import Tensor, nn


class Toy(nn.Module):
    """One layer of 3 -> 2 with a squared loss, or what `compute` makes of (model, x)."""

    def __init__(self, compute: Optional[Callable[[Any, Tensor], Any]] = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(3, 2)
        self.register_buffer("seen", torch.zeros(1))
        self.constant = torch.ones(3)
        self.compute = compute

    def forward(self, x: Tensor) -> Any:
        if self.compute is not None:
            return self.compute(self, x)
        return final(self.layer(x).square().sum())


def final(loss: Tensor) -> Tensor:
    return poptorch.identity_loss(loss, reduction="none")


def quiet() -> Any:
    return poptorch.Options().showCompilationProgressBar(False)


def on_ipus(*ipus: int) -> Callable[[Any, Tensor], Tensor]:
    """Blocks on these IPUs, the loss in the last."""

    def compute(model: Any, x: Tensor) -> Tensor:
        for number, ipu in enumerate(ipus[:-1]):
            with poptorch.Block(f"block{number}", ipu_id=ipu):
                x = x * 1.5
        with poptorch.Block("last", ipu_id=ipus[-1]):
            return final(model.layer(x).square().sum())

    return compute


def increasing(options: Any = None) -> Any:
    """Every change of IPU is a stage."""
    strategy = poptorch.PipelinedExecution(poptorch.AutoStage.AutoIncrement)
    return (options or quiet()).setExecutionStrategy(strategy)


def train_once(compute: Any = None, options: Any = None, rows: int = 4, optimizer: Any = None) -> Any:
    return poptorch.trainingModel(Toy(compute), options or quiet(), optimizer)(torch.randn(rows, 3))


def infer_once(compute: Any, options: Any = None, rows: int = 4) -> Any:
    return poptorch.inferenceModel(Toy(compute), options or quiet())(torch.randn(rows, 3))


def data(rows: int) -> Tuple[Tensor, ...]:
    return (torch.randn(rows, 3, generator=torch.Generator().manual_seed(rows)),)


def micro_batches(x: Tensor, parts: int) -> Sequence[Tensor]:
    return x.chunk(parts)
