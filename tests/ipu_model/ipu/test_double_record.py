"""Recording, optimizer state, random numbers, executable cache: the same on the double and on PopTorch."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Callable, Dict, List

import poptorch
import pytest
import torch
from double_models import Toy, final, increasing, quiet, train_once
from torch import Tensor, nn

Record = Callable[[], List[Dict[str, Any]]]


class Annotated(nn.Module):
    """Three blocks on two IPUs, with everything that can be said of an operation."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 6)
        self.unused = nn.Parameter(torch.zeros(2))

    def forward(self, x: Tensor, labels: Tensor) -> Any:
        with poptorch.Block("first", ipu_id=0), poptorch.Attribute(__outline={"layer": "embeddings"}):
            x = poptorch.recomputationCheckpoint(torch.relu(self.first(x)))
        with poptorch.Block("second", ipu_id=1):
            mode = poptorch.MatMulSerializationMode.OutputChannels
            product = poptorch.serializedMatMul(x, self.second.weight.t(), mode, 2)
            logits = poptorch.set_available_memory(product, 0.3) + self.second.bias
        with poptorch.Block("third", ipu_id=0):
            loss = nn.functional.cross_entropy(logits.float(), labels, reduction="sum")
            return final(loss * 1.0), logits


def annotated_options() -> Any:
    options = increasing().replicationFactor(2).deviceIterations(2).randomSeed(5)
    options.Training.gradientAccumulation(5)
    options.setAvailableMemoryProportion({"IPU0": 0.2, "IPU1": 0.3})
    options.TensorLocations.setOptimizerLocation(
        poptorch.TensorLocationSettings().useOnChipStorage(False).useReplicatedTensorSharding(True)
    )
    options.Precision.setPartialsType(torch.half)
    options.Precision.enableStochasticRounding(True)
    options._Popart.set("accumulateOuterFragmentSettings.excludedVirtualGraphs", ["0"])
    options._Popart.set("outlineThreshold", 10.0)
    options._Popart.setEngineOptions({"opt.useAutoloader": "true"})
    options._Popart.setPatterns({"TiedGather": True})
    return options


def annotated(record: Record, calls: int = 2) -> Dict[str, Any]:
    model = Annotated()
    groups = [
        {"params": [model.first.weight, model.second.weight]},
        {"params": [model.first.bias, model.second.bias], "weight_decay": 0.0, "max_weight_norm": 0.0},
    ]
    kinds = {"bias_correction": False, "loss_scaling": 8.0, "first_order_momentum_accum_type": torch.float16}
    optimizer = poptorch.optim.LAMB(groups, lr=0.01, weight_decay=0.01, **kinds)
    executor = poptorch.trainingModel(model, annotated_options(), optimizer)
    for number in range(calls):
        executor(torch.randn(60, 4), torch.randint(0, 6, (60,)))
        optimizer.param_groups[0]["lr"] = 0.02 * (number + 1)
        executor.setOptimizer(optimizer)
    executor.detachFromDevice()
    return record()[-1]


def test_the_placement_is_recorded(record: Record) -> None:
    found = annotated(record)
    begun = [block for block in found["blocks"] if block["event"] == "begin"]
    places = [(b["user_id"], b["requested_ipu_id"], b["ipu_id"], b["stage"]) for b in begun]
    assert places == [("first", 0, 0, 1), ("second", 1, 1, 2), ("third", 0, 0, 3)]
    assert [block["event"] for block in found["blocks"]] == ["begin", "end"] * 3
    expected = {"ipus_used": [0, 1], "num_ipus": 4, "pipeline_stages": 5, "recomputation_checkpoints": 1}
    expected.update(training=True, output_mode="Final", num_outputs=2, gradient_accumulation=5, replication_factor=2)
    expected.update(
        device_iterations=2,
        attributes=[["__outline", "layer", "embeddings"]],
        matmul_serialization=[[[3, 6], "output_channels", 2, False]],
        losses=[["cross_entropy", "sum"], ["identity_loss", "none"]],
        inputs=[{"shape": [3, 4], "dtype": "torch.float32"}, {"shape": [3], "dtype": "torch.int64"}],
        set_available_memory=[{"shape": [3, 6], "value": 0.3, "ipu": 1, "producer": "aten.mm.default"}],
        trainable_parameters_not_in_optimizer=["unused"],
    )
    assert {name: found[name] for name in expected} == expected
    assert found["parameters"]["second.weight"] == [[6, 4], "torch.float32", True]


def test_the_optimizer_and_its_updates_are_recorded(record: Record) -> None:
    found = annotated(record, calls=2)
    optimizer = found["optimizer"]
    kind = (optimizer["type"], optimizer["first_order_half"], optimizer["accum_type_half"])
    assert kind == ("LAMB_NO_BIAS", True, False)
    constant = {"beta1": [0.9, True], "beta2": [0.999, True], "eps": [1e-8, True], "maxWeightNorm": [0.0, True]}
    assert optimizer["groups"][1] == {"learningRate": [0.01, False], "weightDecay": [0.0, False], **constant}
    assert optimizer["defaults"]["lossScaling"] == [8.0, False]
    assert optimizer["parameter_groups"] == [["first.weight", "second.weight"], ["first.bias", "second.bias"]]
    assert found["optimizer_updates"] == [
        {"after_executions": after, "lossScaling": 8.0, "learningRate": [rate, 0.01], "weightDecay": [0.01, 0.0]}
        for after, rate in ((0, 0.01), (1, 0.02), (2, 0.04))
    ]
    counts = {"executions": 2, "weight_updates": 4, "copy_weights_to_host": 1, "attach": 1, "detach": 1}
    assert {name: found[name] for name in counts} == counts


def test_a_program_that_does_not_compile_is_recorded() -> None:
    failed = poptorch.poptorch_core.getRecord()["failed_compilations"]
    before = len(failed)
    with pytest.raises(poptorch.Error):
        train_once(lambda model, x: model.layer(x).sum())
    assert len(failed) == before + 1
    assert "Error" in failed[-1]["error"]


def training(folder: Any = None, **arguments: Any) -> Any:
    model = Toy(lambda model, x: final(nn.functional.dropout(model.layer(x), 0.5, True).square().sum()))
    options = quiet().randomSeed(3)
    if folder is not None:
        options.enableExecutableCaching(str(folder))
    given = {"lr": 0.1, "weight_decay": 0.1, "loss_scaling": 2.0, **arguments}
    optimizer = poptorch.optim.AdamW(model.parameters(), **given)
    return model, optimizer, poptorch.trainingModel(model, options, optimizer)


def test_the_second_compilation_of_a_program_finds_it_and_another_does_not(tmp_path: Path, record: Record) -> None:
    cases: List[Dict[str, Any]] = [{}, {"lr": 0.2}, {"betas": (0.5, 0.9)}, {"accum_type": torch.float16}]
    for number, arguments in enumerate(cases):
        _, optimizer, executor = training(tmp_path / "cache", **arguments)
        optimizer.variable_attrs.markAsConstant("betas")
        executor.setOptimizer(optimizer)
        executor.compile(torch.ones(4, 3))
        cache = record()[-1]["cache"]
        assert cache["hit"] is (number == 1)  # another learning rate is the same program
        assert cache["file"] == str(tmp_path / "cache" / f"{cache['hash']}.popef")
        executor.destroy()
    assert len(list((tmp_path / "cache").glob("*.popef"))) == 3


def test_a_run_goes_on_exactly_where_another_stopped() -> None:
    inputs = [torch.randn(4, 3) for _ in range(4)]
    model, _, whole = training()
    losses = [float(whole(x)) for x in inputs]
    whole.detachFromDevice()
    first_model, first_optimizer, first = training()
    assert [float(first(x)) for x in inputs[:2]] == losses[:2]
    saved, rng = first_optimizer.state_dict(), first.rng_state
    weights = {name: x.clone() for name, x in first_model.state_dict().items()}
    first.detachFromDevice()
    second_model, second_optimizer, second = training()
    second_model.load_state_dict(weights)
    second_optimizer.load_state_dict(saved)  # before the first compilation
    second.compile(inputs[0])
    second.rng_state = rng
    assert [float(second(x)) for x in inputs[2:]] == losses[2:]
    assert all(torch.equal(x, model.state_dict()[name]) for name, x in second_model.state_dict().items())


def test_the_state_of_an_optimizer_has_the_names_of_the_device() -> None:
    _, optimizer, executor = training()
    assert optimizer.state_dict()["ipu_state"] is None
    with pytest.raises(RuntimeError):
        optimizer.load_state_dict(torch.optim.AdamW(Toy().parameters(), lr=0.1).state_dict())
    executor(torch.ones(4, 3))
    state = optimizer.state_dict()
    names = [f"{kind}___layer.{part}" for kind in ("Accl1", "Accl2", "Step") for part in ("bias", "weight")]
    assert sorted(state["ipu_state"]) == names
    assert float(state["ipu_state"]["Step___layer.bias"]) == 1.0
    assert float(state["ipu_param"]["lossScaling_FLOAT"]) == 2.0
    assert {"state", "param_groups"} <= set(state)


def test_a_constant_cannot_change_once_compiled_and_a_variable_can() -> None:
    _, optimizer, executor = training()
    optimizer.variable_attrs.markAsConstant("weight_decay")
    executor.setOptimizer(optimizer)
    executor(torch.ones(4, 3))
    optimizer.param_groups[0]["lr"], optimizer.loss_scaling = 0.3, 4.0
    executor.setOptimizer(optimizer)
    optimizer.param_groups[0]["weight_decay"] = 0.2
    with pytest.raises(poptorch.Error):
        executor.setOptimizer(optimizer)
    with pytest.raises(AssertionError):
        optimizer.variable_attrs.markAsVariable("weight_dekay")


def test_the_device_is_taken_and_given_back() -> None:
    executor = poptorch.inferenceModel(Toy(lambda model, x: x * 2), quiet())
    x = torch.ones(2, 3)
    names = ("attachToDevice", "detachFromDevice", "copyWeightsToHost", "copyWeightsToDevice")
    too_early = [*(getattr(executor, name) for name in names), lambda: executor.rng_state]
    for early in too_early:
        with pytest.raises(poptorch.Error):
            early()
    assert (executor.isCompiled(), executor.isAttachedToDevice()) == (False, False)
    executor.compile(x)
    assert (executor.isCompiled(), executor.isAttachedToDevice()) == (True, True)
    with pytest.raises(poptorch.Error):
        executor.attachToDevice()
    executor.detachFromDevice()
    with pytest.raises(poptorch.Error):
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
        with pytest.raises(poptorch.Error):
            executor(other)
    with pytest.raises(poptorch.Error):
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
