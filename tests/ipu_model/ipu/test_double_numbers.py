"""The double computes what PopTorch computes: updates, outputs, weights that travel. The same tests on both."""

from __future__ import annotations

import math
from typing import Any, Callable, Dict, List, Optional

import poptorch
import pytest
import torch
from double_models import Toy, final, on_ipus, quiet
from torch import Tensor

ROWS, ACCUMULATION, REPLICAS, ITERATIONS = 2, 3, 2, 2
PARTS = ACCUMULATION * REPLICAS


def options(mean: bool = True, iterations: int = ITERATIONS) -> Any:
    made = quiet().replicationFactor(REPLICAS).deviceIterations(iterations)
    made.Training.gradientAccumulation(ACCUMULATION)
    kind = poptorch.ReductionType.Mean if mean else poptorch.ReductionType.Sum
    made.Training.accumulationAndReplicationReductionType(kind)
    return made


def calls(count: int) -> List[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(ROWS * PARTS * ITERATIONS, 3, generator=generator) for _ in range(count)]


def reference(make: Callable[[Any], Any], inputs: List[Tensor], mean: bool, clip: Optional[float] = None) -> Toy:
    """The same updates by torch alone."""
    model = Toy()
    optimizer = make(model.parameters())
    for x in inputs:
        for half in x.chunk(ITERATIONS):
            optimizer.zero_grad()
            for part in half.chunk(PARTS):
                (model.layer(part).square().sum() / (PARTS if mean else 1)).backward()
            if clip is not None:
                norm = math.sqrt(sum(float(p.grad.square().sum()) for p in model.parameters()))
                for p in model.parameters():
                    p.grad *= clip / max(clip, norm)
            optimizer.step()
    return model


def assert_same(ours: Any, theirs: Any, tolerance: float = 1e-6) -> None:
    for name, weight in theirs.state_dict().items():
        torch.testing.assert_close(ours.state_dict()[name], weight, rtol=0, atol=tolerance)


CASES = {
    "sgd": (poptorch.optim.SGD, torch.optim.SGD, {"lr": 0.01}),
    "momentum": (poptorch.optim.SGD, torch.optim.SGD, {"lr": 0.01, "momentum": 0.9, "weight_decay": 0.1}),
    "adam": (poptorch.optim.Adam, torch.optim.Adam, {"lr": 0.01, "weight_decay": 0.1}),
    "adamw": (poptorch.optim.AdamW, torch.optim.AdamW, {"lr": 0.01, "betas": (0.8, 0.95), "weight_decay": 0.1}),
}


@pytest.mark.ipu
@pytest.mark.parametrize("mean", [True, False], ids=["mean", "sum"])
@pytest.mark.parametrize("name", sorted(CASES))
def test_updates_are_those_of_torch_on_the_whole_batch(name: str, mean: bool) -> None:
    ours, theirs, arguments = CASES[name]
    model, inputs = Toy(), calls(3)
    optimizer = ours(model.parameters(), loss_scaling=8.0, **arguments)
    executor = poptorch.trainingModel(model, options(mean), optimizer)
    for x in inputs:
        executor(x)
    assert_same(model, reference(lambda p: theirs(p, **arguments), inputs, mean))
    executor.destroy()


@pytest.mark.ipu
def test_gradients_are_clipped_by_their_global_norm() -> None:
    model, inputs = Toy(), calls(2)
    optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1, max_grad_norm=0.5)
    executor = poptorch.trainingModel(model, options(), optimizer)
    for x in inputs:
        executor(x)
    assert_same(model, reference(lambda p: torch.optim.SGD(p, lr=0.1), inputs, True, clip=0.5), 1e-5)
    executor.destroy()


@pytest.mark.ipu
@pytest.mark.parametrize("corrected", [True, False])
def test_lamb_is_the_step_of_its_own_host_version(corrected: bool) -> None:
    arguments = {"lr": 0.02, "weight_decay": 0.1, "bias_correction": corrected}
    model, inputs = Toy(), calls(3)
    executor = poptorch.trainingModel(model, options(), poptorch.optim.LAMB(model.parameters(), **arguments))
    for x in inputs:
        executor(x)
    assert_same(model, reference(lambda p: poptorch.optim.LAMB(p, **arguments), inputs, True), 1e-5)
    executor.destroy()


@pytest.mark.ipu
def test_a_first_lamb_step_by_hand() -> None:
    """w = (3, 4), gradient (1, 1): the corrected direction is (1, 1), |w| = 5, so the step is lr 5 / sqrt(2)."""
    for limit, ratio in ((None, 5 / math.sqrt(2)), (1.0, 1 / math.sqrt(2)), (0.0, 1.0)):
        more: Dict[str, Any] = {} if limit is None else {"max_weight_norm": limit}
        stepped = ByHand()
        optimizer = poptorch.optim.LAMB(stepped.parameters(), lr=0.1, weight_decay=0.0, **more)
        executor = poptorch.trainingModel(stepped, quiet(), optimizer)
        executor(torch.ones(1, 2))
        expected = torch.tensor([3.0, 4.0]) - 0.1 * ratio
        torch.testing.assert_close(stepped.state_dict()["weight"], expected, rtol=0, atol=1e-5)
        executor.destroy()


class ByHand(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor([3.0, 4.0]))

    def forward(self, x: Tensor) -> Tensor:
        return final((self.weight * x).sum())


@pytest.mark.ipu
def test_fp16_sums_keep_a_mean_that_their_sum_would_overflow() -> None:
    """40 gradients of 2,000 add up to 80,000; fp16 ends at 65,504."""
    model = ByHand()
    optimizer = poptorch.optim.SGD(model.parameters(), lr=1e-3, accum_type=torch.float16)
    made = quiet()
    made.Training.gradientAccumulation(40)
    executor = poptorch.trainingModel(model, made, optimizer)
    executor(torch.full((40, 2), 2000.0))
    torch.testing.assert_close(model.state_dict()["weight"], torch.tensor([1.0, 2.0]), rtol=0, atol=1e-2)
    executor.destroy()


OUTPUTS = {
    "Final": [7.0, 8.0],
    "All": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0],
    "EveryN": [3.0, 4.0, 7.0, 8.0],
    "Sum": [16.0, 20.0],
}
"""Of micro-batches 1 to 8 on two replicas and four iterations."""


@pytest.mark.ipu
@pytest.mark.parametrize("mode", sorted(OUTPUTS))
def test_output_modes_choose_per_replica(mode: str) -> None:
    made = quiet().replicationFactor(2).deviceIterations(4)
    made.outputMode(poptorch.OutputMode[mode], 2 if mode == "EveryN" else None)
    executor = poptorch.inferenceModel(Toy(lambda model, x: (x.sum(), x * 1, {"same": x.long()}, None)), made)
    total, rows, more, nothing = executor(torch.arange(1.0, 9.0)[:, None])
    assert total.tolist() == OUTPUTS[mode]
    assert rows.flatten().tolist() == OUTPUTS[mode]
    assert more["same"].dtype == torch.int32
    assert nothing is None
    executor.destroy()


@pytest.mark.ipu
def test_trained_weights_come_back_when_they_are_looked_at() -> None:
    looks: Dict[str, Callable[[Any, Any], Tensor]] = {
        "copyWeightsToHost": lambda model, executor: (executor.copyWeightsToHost(), model.layer.weight)[1],
        "detach": lambda model, executor: (executor.detachFromDevice(), model.layer.weight)[1],
        "state_dict": lambda model, executor: model.state_dict()["layer.weight"],
        "parameters": lambda model, executor: next(iter(model.parameters())),
        "tensor kept from before": lambda model, executor: kept[0],
        "destroy": lambda model, executor: (executor.destroy(), model.layer.weight)[1],
    }
    for name, look in looks.items():
        model = Toy()
        before, kept = model.layer.weight.detach().clone(), [model.layer.weight]
        executor = poptorch.trainingModel(model, quiet(), poptorch.optim.SGD(model.parameters(), lr=0.1))
        executor(torch.ones(4, 3))
        assert not torch.equal(torch.Tensor.detach(look(model, executor)).clone(), before), name
        executor.destroy()
        assert type(model) is Toy


@pytest.mark.ipu
def test_a_model_belongs_to_one_training_executor_until_it_is_destroyed() -> None:
    model = Toy()
    executor = poptorch.trainingModel(model, quiet())
    with pytest.raises(RuntimeError):
        poptorch.trainingModel(model, quiet())
    executor(torch.ones(4, 3))
    executor.destroy()
    poptorch.trainingModel(model, quiet())(torch.ones(4, 3))


@pytest.mark.ipu
def test_inference_follows_the_weights_of_the_training_executor() -> None:
    class Both(Toy):
        def forward(self, x: Tensor) -> Tensor:
            y = self.layer(x)
            return final(y.square().sum()) if self.training else y

    model = Both().train()
    training = poptorch.trainingModel(model, quiet(), poptorch.optim.SGD(model.parameters(), lr=0.1))
    inference = poptorch.inferenceModel(model.eval(), quiet())
    x = torch.ones(2, 3)
    before = inference(x)
    inference.detachFromDevice()
    training(x)
    training.detachFromDevice()
    after = inference(x)
    assert not torch.equal(before, after)
    weights = model.state_dict()
    torch.testing.assert_close(after, x @ weights["layer.weight"].t() + weights["layer.bias"])
    training.destroy()
    inference.destroy()


@pytest.mark.ipu
def test_weights_that_are_loaded_reach_the_device() -> None:
    model = Toy(lambda model, x: model.layer(x))
    executor = poptorch.inferenceModel(model, quiet())
    executor(torch.ones(1, 3))
    executor.load_state_dict({"layer.weight": torch.ones(2, 3), "layer.bias": torch.zeros(2), "seen": torch.zeros(1)})
    assert executor(torch.ones(1, 3)).tolist() == [[3.0, 3.0]]
    executor.destroy()


def test_a_pipeline_computes_what_one_ipu_computes() -> None:
    x = torch.randn(5, 3)
    losses = []
    for compute in (on_ipus(0), on_ipus(0, 1, 0)):
        made = quiet().setExecutionStrategy(poptorch.PipelinedExecution(poptorch.AutoStage.AutoIncrement))
        made.Training.gradientAccumulation(5)
        scaled = x * 1.5 * 1.5 if len(losses) == 0 else x
        losses.append(poptorch.trainingModel(Toy(compute), made)(scaled))
    torch.testing.assert_close(losses[0], losses[1])
