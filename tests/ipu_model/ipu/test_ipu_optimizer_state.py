"""The state of PopTorch's optimizers: saved, and put back before the first compile and after it."""

from __future__ import annotations

import copy
from typing import Any, Dict, List, Tuple

import poptorch
import pytest
import torch
from torch import Tensor
from toy_training import RATES, UPDATES, Device, config_of, rows, toy

from ipu_model.core.errors import CheckpointError
from ipu_model.ipu.optimizers import load_optimizer_tensors, make_ipu_optimizer, optimizer_tensors, set_learning_rate


def checkpoint(device: Device) -> Tuple[Dict[str, Tensor], Dict[str, Tensor], List[int]]:
    weights = {name: p.detach().clone() for name, p in device.model.named_parameters()}
    return weights, optimizer_tensors(device.optimizer), list(device.executor.rng_state)


@pytest.mark.parametrize("after_compiling", [False, True])
@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("update", ["lamb", "adamw"])
def test_a_run_cut_after_five_updates_ends_as_one_that_was_not(update: str, half: bool, after_compiling: bool) -> None:
    config = config_of(update, loss_scaling=64.0)
    batches = rows(10, half=half)
    whole, first = Device(toy(0.3, half), config, half), Device(toy(0.3, half), config, half)
    for rate, batch in zip(RATES, batches):
        whole.update(rate, batch)
    whole.executor.detachFromDevice()
    for rate, batch in zip(RATES[:5], batches):
        first.update(rate, batch)
    weights, state, randomness = checkpoint(first)
    first.executor.detachFromDevice()
    assert {key.split("/")[0] for key in state} == {"ipu_state", "ipu_param"}

    second = Device(toy(0.3, half), config, half)
    if after_compiling:  # also over another state
        second.update(0.5, batches[9])
        second.executor.load_state_dict(copy.deepcopy(weights))
    else:
        second.model.load_state_dict(copy.deepcopy(weights))
    load_optimizer_tensors(poptorch, second.optimizer, state)
    set_learning_rate(second.optimizer, RATES[5])
    second.executor.setOptimizer(second.optimizer)
    if not after_compiling:
        second.executor.compile(*batches[5])
    second.executor.rng_state = randomness
    for rate, batch in zip(RATES[5:], batches[5:]):
        second.update(rate, batch)

    ends, expected = second.weights(), whole.weights()
    for name in expected:
        assert torch.equal(ends[name], expected[name]), name
    again, once = optimizer_tensors(second.optimizer), optimizer_tensors(whole.optimizer)
    assert sorted(again) == sorted(once)
    for name in once:
        assert again[name].dtype == once[name].dtype, name
        assert torch.equal(again[name], once[name]), name


def test_a_state_of_another_runtime_is_refused() -> None:
    optimizer = make_ipu_optimizer(poptorch, config_of("lamb"), toy().named_parameters(), half=False)
    with pytest.raises(CheckpointError, match="exp_avg, which is not of an IPU"):
        load_optimizer_tensors(poptorch, optimizer, {"bert.pooler.dense.weight/exp_avg": torch.zeros(1)})
    plain = torch.optim.SGD(toy().parameters(), lr=0.1)
    with pytest.raises(CheckpointError, match="SGD is not an optimizer of PopTorch"):
        load_optimizer_tensors(poptorch, plain, {})


def attributes(optimizer: Any) -> Tuple[List[str], List[str], List[List[str]]]:
    return sorted(vars(optimizer)), sorted(optimizer.defaults), [sorted(group) for group in optimizer.param_groups]


@pytest.mark.parametrize("update", UPDATES)
def test_no_attribute_appears_after_the_first_update(update: str) -> None:
    # PopTorch notes the attributes it saw when it compiled and warns of every later one as ignored.
    device = Device(toy(), config_of(update))
    device.update(RATES[0], rows(1)[0])
    noted = attributes(device.optimizer)
    load_optimizer_tensors(poptorch, device.optimizer, optimizer_tensors(device.optimizer))
    device.update(RATES[1], rows(1)[0])
    assert attributes(device.optimizer) == noted
