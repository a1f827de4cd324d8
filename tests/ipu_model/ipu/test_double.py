"""The double refuses what PopTorch refuses, with its exceptions. These tests hold on both, unchanged.

Where PopTorch's front end runs over an emulated device, what only the device's compiler refuses is not seen;
those few tests say so and run on the double alone.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Callable, Optional

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


READS_A_VALUE = {
    "item": lambda model, x: x * x.sum().item(),
    "if": lambda model, x: x if x.sum() > 0 else -x,
    "nonzero": lambda model, x: x.nonzero(),
    "boolean index": lambda model, x: x[x > 0],
}
HARMLESS = {
    "number": lambda model, x: (x**2 + 1).clamp(0, 1) / 3,
    "constant": lambda model, x: x + torch.tensor([1.0, 2.0, 3.0], device=x.device),
    "moved": lambda model, x: x + model.constant.to(x.device),
    "range": lambda model, x: x + torch.arange(3, device=x.device),
    "condition": lambda model, x: torch.where(x > 0, x, torch.zeros_like(x)),
    "new": lambda model, x: x[:, None, :1] + x.new_zeros(3),
}


@pytest.mark.parametrize("name", sorted(READS_A_VALUE))
def test_what_depends_on_values_does_not_compile(name: str) -> None:
    with pytest.raises(Error) as caught:
        infer_once(READS_A_VALUE[name])
    assert caught.value.type == "poptorch_cpp_error"
    assert caught.value.message
    assert isinstance(caught.value.location, str)


@pytest.mark.parametrize("name", sorted(HARMLESS))
def test_what_has_fixed_shapes_compiles(name: str) -> None:
    assert infer_once(HARMLESS[name]).shape[0] == 4


def test_a_host_tensor_is_refused_on_the_device() -> None:
    with pytest.raises(Error):
        infer_once(lambda model, x: x + model.constant)


def two_final(model: Any, x: Tensor) -> Any:
    return final(model.layer(x).sum()), final(model.layer(x).mean())


@pytest.mark.parametrize("compute", [lambda model, x: model.layer(x).sum(), two_final], ids=["none", "two"])
def test_training_needs_exactly_one_final_loss(compute: Any) -> None:
    with pytest.raises(Error):
        train_once(compute)


def test_a_loss_made_of_losses_is_final() -> None:
    assert train_once(lambda model, x: final(final(model.layer(x).sum()) + final(model.layer(x).mean()))).shape == ()


@pytest.mark.parametrize(("ipus", "enough"), [((0,), 1), ((0, 1), 3), ((0, 1, 0), 5), ((0, 0, 1, 2, 3, 0), 9)])
def test_accumulation_has_to_fill_twice_the_stages_less_one(ipus: Any, enough: int) -> None:
    options = increasing()
    options.Training.gradientAccumulation(enough)
    train_once(on_ipus(*ipus), options, rows=enough)
    if enough > 1:
        short = increasing()
        short.Training.gradientAccumulation(enough - 1)
        with pytest.raises(Error, match=str(enough)):
            train_once(on_ipus(*ipus), short, rows=enough - 1)


def two_blocks(model: Any, x: Tensor) -> Tensor:
    with poptorch.Block("first", ipu_id=0):
        x = x * 2
    with poptorch.Block("second", ipu_id=1):
        return x + 1


def test_pipelined_inference_needs_as_many_iterations_as_stages_and_sharded_does_not() -> None:
    with pytest.raises(Error):
        infer_once(two_blocks, increasing())
    assert infer_once(two_blocks, increasing(quiet().deviceIterations(2))).shape == (4, 3)
    sharded = poptorch.ShardedExecution(poptorch.AutoStage.AutoIncrement)
    assert infer_once(two_blocks, quiet().setExecutionStrategy(sharded)).shape == (4, 3)


def test_inference_accumulates_nothing() -> None:
    options = quiet()
    options.Training.gradientAccumulation(2)
    with pytest.raises(Error):
        poptorch.inferenceModel(Toy(), options)


def three_ipus(model: Any, x: Tensor) -> Tensor:
    for ipu in range(3):
        with poptorch.Block(ipu_id=ipu):
            x = x * 2
    return x


def test_ipus_come_in_powers_of_two_and_at_most_64() -> None:
    with pytest.raises(Error):
        infer_once(three_ipus, quiet().deviceIterations(3), rows=3)
    infer_once(three_ipus, quiet().deviceIterations(3).autoRoundNumIPUs(True), rows=3)
    with pytest.raises(Error):
        infer_once(lambda model, x: x * 2, quiet().replicationFactor(128), rows=128)


def test_an_operation_after_a_block_belongs_to_a_block() -> None:
    def outside(model: Any, x: Tensor) -> Tensor:
        with poptorch.Block("a", ipu_id=0):
            x = x * 2
        return x + 1

    with pytest.raises(Error):
        infer_once(outside)


def nested(model: Any, x: Tensor) -> Tensor:
    with poptorch.Block("outer", ipu_id=0), poptorch.Block("inner", ipu_id=0):
        return x * 2


def _back_and_forth() -> Any:
    return train_once(on_ipus(0, 1, 0), _accumulating(5), rows=5)


def _product(x: Tensor, layer: Any) -> Tensor:
    return poptorch.serializedMatMul(x, layer.weight.t(), poptorch.MatMulSerializationMode.OutputChannels, 3)


ONLY_THE_COMPILER = {
    "blocks in blocks": (lambda: infer_once(nested), "nest"),
    "SameAsIpu with an IPU that comes back": (_back_and_forth, "SameAsIpu"),
    "a factor that does not divide": (lambda: infer_once(lambda model, x: _product(x, model.layer)), "factor 3"),
}


def _accumulating(steps: int) -> Any:
    options = quiet()
    options.Training.gradientAccumulation(steps)
    return options


@pytest.mark.parametrize("name", sorted(ONLY_THE_COMPILER))
def test_what_only_the_compiler_refuses(name: str, is_double: bool) -> None:
    if not is_double:
        pytest.skip("the compiler of the SDK refuses it; a front end over an emulated device does not")
    attempt, message = ONLY_THE_COMPILER[name]
    with pytest.raises(Error, match=message):
        attempt()


@pytest.mark.parametrize("stated", ["1", None])
def test_ipus_that_another_executor_holds_are_not_there(
    stated: Optional[str], is_double: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not is_double:
        pytest.skip("how many IPUs there are is the machine's")
    monkeypatch.delenv("PODIUM_DOUBLE_IPUS", raising=False)
    if stated is not None:
        monkeypatch.setenv("PODIUM_DOUBLE_IPUS", stated)
    first = poptorch.inferenceModel(Toy(lambda model, x: x * 2), quiet())
    second = poptorch.inferenceModel(Toy(lambda model, x: x * 3), quiet())
    first(torch.ones(1, 3))
    with pytest.raises(Error, match="Failed to acquire"):
        second(torch.ones(1, 3))
    first.detachFromDevice()
    assert second(torch.ones(1, 3)).tolist() == [[3.0, 3.0, 3.0]]
    second.destroy()
    assert first(torch.ones(1, 3)).tolist() == [[2.0, 2.0, 2.0]]
    first.destroy()


NO_REDUCTION = poptorch.ReductionType.NoReduction
SETTERS = {
    "device iterations": (lambda o: o.deviceIterations("2"), AssertionError),
    "fractional iterations": (lambda o: o.deviceIterations(2.0), AssertionError),
    "memory key": (lambda o: o.setAvailableMemoryProportion({"0": 0.1}), AssertionError),
    "partials": (lambda o: o.Precision.setPartialsType(torch.int32), ValueError),
    "no reduction": (lambda o: o.Training.accumulationAndReplicationReductionType(NO_REDUCTION), ValueError),
    "strategy": (lambda o: o.setExecutionStrategy("pipelined"), AssertionError),
    "output mode": (lambda o: o.outputMode("all"), AssertionError),
    "every n of none": (lambda o: o.outputMode(poptorch.OutputMode.EveryN), AssertionError),
    "seed": (lambda o: o.randomSeed("1"), AssertionError),
    "location": (lambda o: o.TensorLocations.setOptimizerLocation({}), AssertionError),
    "on chip": (lambda o: poptorch.TensorLocationSettings().useOnChipStorage(1), AssertionError),
    "unknown option": (lambda o: o.nothing, AttributeError),
    "unknown option set": (lambda o: setattr(o, "nothing", 1), AssertionError),
    "unknown attribute set": (lambda o: setattr(o, "_nothing", 1), AttributeError),
    "unknown setter": (lambda o: o.gradientAccumulation(2), AttributeError),
}


@pytest.mark.parametrize("name", sorted(SETTERS))
def test_setters_refuse_what_they_do_not_know(name: str) -> None:
    attempt, error = SETTERS[name]
    with pytest.raises(error):
        attempt(quiet())


def test_options_are_frozen_by_an_executor_and_their_clone_is_not() -> None:
    options = quiet().deviceIterations(2)
    executor = poptorch.inferenceModel(Toy(), options)
    for change in (
        lambda: options.deviceIterations(3),
        lambda: options.Training.gradientAccumulation(1),
        lambda: options._Popart.set("outlineThreshold", 1.0),
        lambda: executor.options.deviceIterations(3),
    ):
        with pytest.raises(AttributeError):
            change()
    assert options.clone().deviceIterations(3).device_iterations == 3
    assert options.device_iterations == 2


WRONG = {"nothing": 1, "outlineThreshold": 10, "subgraphCopyingStrategy": 1.0, "enableExplicitIR": 1}
WRONG.update({"accumulateOuterFragmentSettings.schedule": 4, "saveInitializersToFile": True, "engineOptions": "x"})


@pytest.mark.parametrize(("key", "value"), WRONG.items())
def test_a_session_option_of_another_name_or_type_does_not_compile(key: str, value: Any) -> None:
    options = quiet()
    options._Popart.set(key, value)
    with pytest.raises(Error):
        infer_once(lambda model, x: x * 2, options)


def numbered_layer(model: Any, x: Tensor) -> Tensor:
    with poptorch.Attribute(__outline={"layer": 1}):
        return x * 2


ONES, AdamW = torch.ones(2, 2), poptorch.optim.AdamW
FUNCTIONS = {
    "checkpoint of a number": (lambda: poptorch.recomputationCheckpoint(1), ValueError),
    "memory of a number": (lambda: poptorch.set_available_memory(1, 0.1), Error),
    "mode of a product": (lambda: poptorch.serializedMatMul(ONES, ONES, "OutputChannels", 2), AssertionError),
    "reduction of a loss": (lambda: poptorch.identity_loss(torch.ones(2), "max"), AssertionError),
    "a block in two stages": (lambda: poptorch.PipelinedExecution(poptorch.Stage("a"), "a"), AssertionError),
    "attribute": (lambda: infer_once(numbered_layer), RuntimeError),
    "amsgrad": (lambda: train_once(optimizer=AdamW(Toy().parameters(), lr=0.1, amsgrad=True)), ValueError),
    "Adagrad": (lambda: train_once(optimizer=torch.optim.Adagrad(Toy().parameters(), lr=0.1)), AssertionError),
    "clipping with LAMB": (lambda: poptorch.optim.LAMB(Toy().parameters(), max_grad_norm=1.0), TypeError),
    "bf16 sums": (lambda: poptorch.optim.AdamW(Toy().parameters(), accum_type=torch.bfloat16), AssertionError),
    "others' parameters": (lambda: train_once(optimizer=poptorch.optim.SGD(Toy().parameters(), lr=0.1)), KeyError),
    "options": (lambda: poptorch.inferenceModel(Toy(), {"device_iterations": 1}), Error),
    "no such function": (lambda: poptorch.identityLoss, AttributeError),
}


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_functions_refuse_what_they_do_not_know(name: str) -> None:
    attempt: Callable[[], Any]
    attempt, error = FUNCTIONS[name]
    with pytest.raises(error):
        attempt()


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


def test_the_device_is_taken_and_given_back() -> None:
    executor = poptorch.inferenceModel(Toy(lambda model, x: x * 2), quiet())
    x = torch.ones(2, 3)
    names = ("attachToDevice", "detachFromDevice", "copyWeightsToHost", "copyWeightsToDevice")
    too_early = [*(getattr(executor, name) for name in names), lambda: executor.rng_state]
    for early in too_early:
        with pytest.raises(Error):
            early()
    assert (executor.isCompiled(), executor.isAttachedToDevice()) == (False, False)
    executor.compile(x)
    assert (executor.isCompiled(), executor.isAttachedToDevice()) == (True, True)
    with pytest.raises(Error):
        executor.attachToDevice()
    executor.detachFromDevice()
    with pytest.raises(Error):
        executor.detachFromDevice()
    assert executor(x).tolist() == (x * 2).tolist()  # attaches again
    executor.destroy()
    assert not executor.isCompiled()


def test_a_compiled_model_takes_what_it_was_compiled_for() -> None:
    executor = poptorch.inferenceModel(Toy(lambda model, x: x * 2), quiet().deviceIterations(2))
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
    with pytest.raises(AssertionError):
        executor(y=torch.ones(4, 3))
    executor.destroy()


def test_an_offline_target_compiles_and_does_not_run() -> None:
    executor = poptorch.inferenceModel(Toy(lambda model, x: x * 2), quiet().useOfflineIpuTarget(2))
    executor.compile(torch.ones(2, 3))
    assert (executor.isCompiled(), executor.isAttachedToDevice()) == (True, False)
    for attempt in (executor.attachToDevice, lambda: executor(torch.ones(2, 3))):
        with pytest.raises(AssertionError):
            attempt()


def test_the_double_has_no_name_and_no_argument_that_poptorch_lacks() -> None:
    """Public names, signatures, and the values of enumerations, asked of the double in a process of its own."""
    script = Path(__file__).with_name("public_names.py")
    where = {**os.environ, "PYTHONPATH": str(DOUBLE)}
    told = subprocess.run([sys.executable, str(script)], env=where, capture_output=True, text=True, check=True)
    from public_names import public_names

    real, double = public_names(), json.loads(told.stdout)
    assert len(double) > 80
    assert {name: real.get(name) for name in double} == double


def test_the_double_never_stands_in_where_the_real_one_was_asked_for(is_double: bool) -> None:
    if not is_double:
        pytest.skip("PopTorch is installed here, so it is what was asked for")
    root = Path(__file__).resolve().parents[3]
    where = {**os.environ, "PODIUM_TEST_POPTORCH": "real"}
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", __file__]
    told = subprocess.run(command, cwd=str(root), env=where, capture_output=True, text=True, check=False)
    assert told.returncode != 0
    assert "PODIUM_TEST_POPTORCH=real" in told.stdout + told.stderr
