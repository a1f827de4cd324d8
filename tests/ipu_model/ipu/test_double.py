"""The double refuses what PopTorch refuses, with its exceptions. These tests hold on both, unchanged."""

import poptorch
import pytest
import torch

Error, AdamW = poptorch.Error, poptorch.optim.AdamW


class Toy(torch.nn.Module):
    """One layer of 3 -> 2 with a squared loss, or what `compute` makes of (model, x)."""

    def __init__(self, compute=None):
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(3, 2)
        self.constant = torch.ones(3)
        self.compute = compute

    def forward(self, x):
        if self.compute:
            return self.compute(self, x)
        return poptorch.identity_loss(self.layer(x).square().sum(), reduction="none")


def quiet():
    """Every change of IPU is a stage."""
    return poptorch.Options().setExecutionStrategy(poptorch.PipelinedExecution(poptorch.AutoStage.AutoIncrement))


def with_session_option(key, value):
    options = quiet()
    options._Popart.set(key, value)
    return infer_once(double, options)


def train_once(compute=None, optimizer=None):
    return poptorch.trainingModel(Toy(compute), quiet(), optimizer)(torch.randn(4, 3))


def infer_once(compute, options=None, rows=4):
    return poptorch.inferenceModel(Toy(compute), options or quiet())(torch.randn(rows, 3))


def double(model, x):
    return x * 2


def leave_block(model, x):
    with poptorch.Block(ipu_id=0):
        x = x * 2
    return x + 1


def call_again(*inputs):
    executor = poptorch.inferenceModel(Toy(double), quiet())
    executor(torch.ones(4, 3))
    executor(*inputs)


def change_constant():
    model = Toy()
    optimizer = AdamW(model.parameters(), lr=0.1)
    optimizer.variable_attrs.markAsConstant("lr")
    executor = poptorch.trainingModel(model, quiet(), optimizer)
    executor(torch.ones(4, 3))
    optimizer.param_groups[0]["lr"] = 0.3
    executor.setOptimizer(optimizer)


REFUSED = {
    "item": (lambda: infer_once(lambda model, x: x * x.sum().item()), Error),
    "boolean index": (lambda: infer_once(lambda model, x: x[x > 0]), Error),
    "host tensor": (lambda: infer_once(lambda model, x: x + model.constant), Error),
    "no final loss": (lambda: train_once(lambda model, x: model.layer(x).sum()), Error),
    "an operation outside blocks": (lambda: infer_once(leave_block), Error),
    "text of iterations": (lambda: quiet().deviceIterations("2"), AssertionError),
    "unknown setter": (lambda: quiet().gradientAccumulation(2), AttributeError),
    "unknown session option": (lambda: with_session_option("nothing", 1), Error),
    "out of range": (lambda: with_session_option("accumulateOuterFragmentSettings.schedule", 4), Error),
    "text of a list": (lambda: with_session_option("engineOptions", "x"), Error),
    "checkpoint of a number": (lambda: poptorch.recomputationCheckpoint(1), ValueError),
    "bf16 sums": (lambda: AdamW(Toy().parameters(), accum_type=torch.bfloat16), AssertionError),
    "others' parameters": (lambda: train_once(optimizer=poptorch.optim.SGD(Toy().parameters(), lr=0.1)), KeyError),
    "constant": (change_constant, Error),
    "unknown constant": (lambda: AdamW(Toy().parameters()).variable_attrs.markAsConstant("rate"), AssertionError),
    "rows that iterations do not divide": (lambda: infer_once(double, quiet().deviceIterations(2), 3), AssertionError),
    "other rows": (lambda: call_again(torch.ones(6, 3)), Error),
    "other type": (lambda: call_again(torch.ones(4, 3).half()), Error),
    "number": (lambda: call_again(3), Error),
    "no input": (call_again, Error),
}


@pytest.mark.parametrize(("attempt", "error"), REFUSED.values(), ids=REFUSED)
def test_what_poptorch_refuses_is_refused_with_its_exception(attempt, error):
    with pytest.raises(error) as caught:
        attempt()
    if error is Error:
        assert caught.value.type
        assert caught.value.message
        assert isinstance(caught.value.location, str)
