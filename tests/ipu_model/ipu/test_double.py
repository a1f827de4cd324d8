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
        return self.compute(self, x) if self.compute else final(self.layer(x).square().sum())


def final(loss):
    return poptorch.identity_loss(loss, reduction="none")


def quiet():
    """Every change of IPU is a stage."""
    options = poptorch.Options().showCompilationProgressBar(False)
    return options.setExecutionStrategy(poptorch.PipelinedExecution(poptorch.AutoStage.AutoIncrement))


def with_session_option(key, value):
    options = quiet()
    options._Popart.set(key, value)
    return infer_once(double, options)


def train_once(compute=None, options=None, rows=4, optimizer=None):
    return poptorch.trainingModel(Toy(compute), options or quiet(), optimizer)(torch.randn(rows, 3))


def infer_once(compute, options=None, rows=4):
    return poptorch.inferenceModel(Toy(compute), options or quiet())(torch.randn(rows, 3))


def double(model, x):
    return x * 2


def blocks(*ipus, training=False):
    """A product in a block on each of these IPUs, the loss in the last."""

    def compute(model, x):
        for number, ipu in enumerate(ipus, 1):
            with poptorch.Block(ipu_id=ipu):
                x = final(model.layer(x).square().sum()) if training and number == len(ipus) else x * 2
        return x

    return compute


def outside(model, x):
    return blocks(0)(model, x) + 1


REFUSED = {
    "item": (lambda: infer_once(lambda model, x: x * x.sum().item()), Error),
    "if": (lambda: infer_once(lambda model, x: x if x.sum() > 0 else -x), Error),
    "boolean index": (lambda: infer_once(lambda model, x: x[x > 0]), Error),
    "host tensor": (lambda: infer_once(lambda model, x: x + model.constant), Error),
    "no final loss": (lambda: train_once(lambda model, x: model.layer(x).sum()), Error),
    "an operation outside blocks": (lambda: infer_once(outside), Error),
    "text of iterations": (lambda: quiet().deviceIterations("2"), AssertionError),
    "output mode": (lambda: quiet().outputMode("all"), AssertionError),
    "unknown setter": (lambda: quiet().gradientAccumulation(2), AttributeError),
    "unknown session option": (lambda: with_session_option("nothing", 1), Error),
    "int of a float option": (lambda: with_session_option("outlineThreshold", 10), Error),
    "out of range": (lambda: with_session_option("accumulateOuterFragmentSettings.schedule", 4), Error),
    "text of a list": (lambda: with_session_option("engineOptions", "x"), Error),
    "checkpoint of a number": (lambda: poptorch.recomputationCheckpoint(1), ValueError),
    "bf16 sums": (lambda: AdamW(Toy().parameters(), accum_type=torch.bfloat16), AssertionError),
    "others' parameters": (lambda: train_once(optimizer=poptorch.optim.SGD(Toy().parameters(), lr=0.1)), KeyError),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_poptorch_refuses_is_refused_with_its_exception(name):
    attempt, error = REFUSED[name]
    with pytest.raises(error) as caught:
        attempt()
    if name == "item":
        assert caught.value.type == "poptorch_cpp_error"
        assert caught.value.message
        assert isinstance(caught.value.location, str)


@pytest.mark.parametrize(("ipus", "enough"), [((0,), 1), ((0, 1), 3), ((0, 1, 0), 5), ((0, 0, 1, 2, 3, 0), 9)])
def test_accumulation_has_to_fill_twice_the_stages_less_one(ipus, enough):
    def train(steps):
        options = quiet().autoRoundNumIPUs(True)
        options.Training.gradientAccumulation(steps)
        train_once(blocks(*ipus, training=True), options, rows=steps)

    train(enough)
    if enough > 1:
        with pytest.raises(Error, match=str(enough)):
            train(enough - 1)


def test_ipus_that_another_executor_holds_are_not_there(is_double, monkeypatch):
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


def test_a_constant_cannot_change_once_compiled_and_a_variable_can():
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
        optimizer.variable_attrs.markAsConstant("weight_dekay")


def test_a_compiled_model_takes_what_it_was_compiled_for():
    executor = poptorch.inferenceModel(Toy(double), quiet().deviceIterations(2))
    with pytest.raises(AssertionError):
        executor(torch.ones(3, 3))  # two iterations
    executor(torch.ones(4, 3))
    for inputs in ([torch.ones(6, 3)], [torch.ones(4, 3).half()], [3], []):
        with pytest.raises(Error):
            executor(*inputs)
    executor.destroy()
