"""The double refuses what PopTorch refuses, with its exceptions. These tests hold on both, unchanged."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Callable, Dict, Optional

import poptorch
import pytest
import torch
from torch import Tensor, nn

DOUBLE = Path(__file__).resolve().parents[2] / "doubles" / "poptorch_double"
Error = poptorch.Error


class Toy(nn.Module):
    """One layer of 3 -> 2 with a squared loss, or what `compute` makes of (model, x)."""

    def __init__(self, compute: Optional[Callable[[Any, Tensor], Any]] = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(3, 2)
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


def accumulating(steps: int, options: Any = None) -> Any:
    options = options or quiet()
    options.Training.gradientAccumulation(steps)
    return options


def increasing() -> Any:
    """Every change of IPU is a stage."""
    return quiet().setExecutionStrategy(poptorch.PipelinedExecution(poptorch.AutoStage.AutoIncrement))


def with_session_option(key: str, value: Any) -> Any:
    options = quiet()
    options._Popart.set(key, value)
    return infer_once(double, options)


def train_once(compute: Any = None, options: Any = None, rows: int = 4, optimizer: Any = None) -> Any:
    return poptorch.trainingModel(Toy(compute), options or quiet(), optimizer)(torch.randn(rows, 3))


def infer_once(compute: Any, options: Any = None, rows: int = 4) -> Any:
    return poptorch.inferenceModel(Toy(compute), options or quiet())(torch.randn(rows, 3))


def double(model: Any, x: Tensor) -> Tensor:
    return x * 2


def on_ipus(*ipus: int) -> Callable[[Any, Tensor], Tensor]:
    """Blocks on these IPUs, the loss in the last."""

    def compute(model: Any, x: Tensor) -> Tensor:
        for number, ipu in enumerate(ipus[:-1]):
            with poptorch.Block(f"block{number}", ipu_id=ipu):
                x = x * 1.5
        with poptorch.Block("last", ipu_id=ipus[-1]):
            return final(model.layer(x).square().sum())

    return compute


def blocks(*ipus: int) -> Callable[[Any, Tensor], Tensor]:
    def compute(model: Any, x: Tensor) -> Tensor:
        for ipu in ipus:
            with poptorch.Block(ipu_id=ipu):
                x = x * 2
        return x

    return compute


def outside(model: Any, x: Tensor) -> Tensor:
    return blocks(0)(model, x) + 1


def numbered_layer(model: Any, x: Tensor) -> Tensor:
    with poptorch.Attribute(__outline={"layer": 1}):
        return x * 2


def two_final(model: Any, x: Tensor) -> Any:
    return final(model.layer(x).sum()), final(model.layer(x).mean())


ONES, AdamW = torch.ones(2, 2), poptorch.optim.AdamW
SHARDED = poptorch.ShardedExecution(poptorch.AutoStage.AutoIncrement)
REFUSED: Dict[str, Any] = {
    "item": (lambda: infer_once(lambda model, x: x * x.sum().item()), Error),
    "if": (lambda: infer_once(lambda model, x: x if x.sum() > 0 else -x), Error),
    "nonzero": (lambda: infer_once(lambda model, x: x.nonzero()), Error),
    "boolean index": (lambda: infer_once(lambda model, x: x[x > 0]), Error),
    "host tensor": (lambda: infer_once(lambda model, x: x + model.constant), Error),
    "no final loss": (lambda: train_once(lambda model, x: model.layer(x).sum()), Error),
    "two final losses": (lambda: train_once(two_final), Error),
    "pipeline of inference not filled": (lambda: infer_once(blocks(0, 1), increasing()), Error),
    "three IPUs": (lambda: infer_once(blocks(0, 1, 2), quiet().deviceIterations(3), 3), Error),
    "an operation outside blocks": (lambda: infer_once(outside), Error),
    "text of iterations": (lambda: quiet().deviceIterations("2"), AssertionError),
    "memory key": (lambda: quiet().setAvailableMemoryProportion({"0": 0.1}), AssertionError),
    "partials": (lambda: quiet().Precision.setPartialsType(torch.int32), ValueError),
    "strategy": (lambda: quiet().setExecutionStrategy("pipelined"), AssertionError),
    "output mode": (lambda: quiet().outputMode("all"), AssertionError),
    "seed": (lambda: quiet().randomSeed("1"), AssertionError),
    "location": (lambda: quiet().TensorLocations.setOptimizerLocation({}), AssertionError),
    "unknown option set": (lambda: setattr(quiet(), "nothing", 1), AssertionError),
    "unknown setter": (lambda: quiet().gradientAccumulation(2), AttributeError),
    "unknown session option": (lambda: with_session_option("nothing", 1), Error),
    "int of a float option": (lambda: with_session_option("outlineThreshold", 10), Error),
    "out of range": (lambda: with_session_option("accumulateOuterFragmentSettings.schedule", 4), Error),
    "text of a list": (lambda: with_session_option("engineOptions", "x"), Error),
    "checkpoint of a number": (lambda: poptorch.recomputationCheckpoint(1), ValueError),
    "mode of a product": (lambda: poptorch.serializedMatMul(ONES, ONES, "OutputChannels", 2), AssertionError),
    "reduction of a loss": (lambda: poptorch.identity_loss(torch.ones(2), "max"), AssertionError),
    "attribute": (lambda: infer_once(numbered_layer), RuntimeError),
    "Adagrad": (lambda: train_once(optimizer=torch.optim.Adagrad(Toy().parameters(), lr=0.1)), AssertionError),
    "clipping with LAMB": (lambda: poptorch.optim.LAMB(Toy().parameters(), max_grad_norm=1.0), TypeError),
    "bf16 sums": (lambda: AdamW(Toy().parameters(), accum_type=torch.bfloat16), AssertionError),
    "others' parameters": (lambda: train_once(optimizer=poptorch.optim.SGD(Toy().parameters(), lr=0.1)), KeyError),
}
ACCEPTED: Dict[str, Any] = {
    "constant": lambda: infer_once(lambda model, x: x + torch.tensor([1.0, 2.0, 3.0], device=x.device)),
    "range": lambda: infer_once(lambda model, x: x + torch.arange(3, device=x.device)),
    "condition": lambda: infer_once(lambda model, x: torch.where(x > 0, x, torch.zeros_like(x))),
    "a pipeline that is filled": lambda: infer_once(blocks(0, 1), increasing().deviceIterations(2)),
    "sharded": lambda: infer_once(blocks(0, 1), quiet().setExecutionStrategy(SHARDED)),
    "rounded up": lambda: infer_once(blocks(0, 1, 2), quiet().deviceIterations(3).autoRoundNumIPUs(True), 3),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_poptorch_refuses_is_refused_with_its_exception(name: str) -> None:
    attempt, error = REFUSED[name]
    with pytest.raises(error) as caught:
        attempt()
    if name in ("item", "if"):
        assert caught.value.type == "poptorch_cpp_error"
        assert caught.value.message
        assert isinstance(caught.value.location, str)


@pytest.mark.parametrize("name", ACCEPTED)
def test_what_poptorch_takes_is_taken(name: str) -> None:
    ACCEPTED[name]()


@pytest.mark.parametrize(("ipus", "enough"), [((0,), 1), ((0, 1), 3), ((0, 1, 0), 5), ((0, 0, 1, 2, 3, 0), 9)])
def test_accumulation_has_to_fill_twice_the_stages_less_one(ipus: Any, enough: int) -> None:
    train_once(on_ipus(*ipus), accumulating(enough, increasing()), rows=enough)
    if enough > 1:
        with pytest.raises(Error, match=str(enough)):
            train_once(on_ipus(*ipus), accumulating(enough - 1, increasing()), rows=enough - 1)


def test_ipus_that_another_executor_holds_are_not_there(is_double: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not is_double:
        pytest.skip("how many IPUs there are is the machine's")
    monkeypatch.delenv("PODIUM_DOUBLE_IPUS", raising=False)
    first, second = (poptorch.inferenceModel(Toy(double), quiet()) for _ in range(2))
    first(torch.ones(1, 3))
    with pytest.raises(Error, match="Failed to acquire"):
        second(torch.ones(1, 3))
    first.detachFromDevice()
    assert second(torch.ones(1, 3)).tolist() == [[2.0, 2.0, 2.0]]
    second.destroy()
    assert first(torch.ones(1, 3)).tolist() == [[2.0, 2.0, 2.0]]
    first.destroy()


def test_a_constant_cannot_change_once_compiled_and_a_variable_can() -> None:
    model = Toy()
    optimizer = AdamW(model.parameters(), lr=0.1, weight_decay=0.1, loss_scaling=2.0)
    optimizer.variable_attrs.markAsConstant("weight_decay")
    executor = poptorch.trainingModel(model, quiet(), optimizer)
    executor(torch.ones(4, 3))
    optimizer.param_groups[0]["lr"], optimizer.loss_scaling = 0.3, 4.0
    executor.setOptimizer(optimizer)
    optimizer.param_groups[0]["weight_decay"] = 0.2
    with pytest.raises(Error):
        executor.setOptimizer(optimizer)
    with pytest.raises(AssertionError):
        optimizer.variable_attrs.markAsVariable("weight_dekay")


def test_a_compiled_model_takes_what_it_was_compiled_for() -> None:
    executor = poptorch.inferenceModel(Toy(double), quiet().deviceIterations(2))
    with pytest.raises(AssertionError):
        executor(torch.ones(3, 3))  # two iterations
    executor(torch.ones(4, 3))
    for other in (torch.ones(6, 3), torch.ones(4, 3).half(), 3):
        with pytest.raises(Error):
            executor(other)
    with pytest.raises(Error):
        executor()
    with pytest.raises(AssertionError):
        executor(torch.ones(4, 3), torch.ones(4, 3))
    executor.destroy()


def test_the_double_has_no_name_and_no_argument_that_poptorch_lacks() -> None:
    """Public names, signatures, and the values of enumerations, asked of the double in a process of its own."""
    script = Path(__file__).with_name("public_names.py")
    where = {**os.environ, "PYTHONPATH": str(DOUBLE)}
    told = subprocess.run([sys.executable, str(script)], env=where, capture_output=True, text=True, check=True)
    from public_names import public_names

    real, ours = public_names(), json.loads(told.stdout)
    assert len(ours) > 60
    assert {name: real.get(name) for name in ours} == ours
