"""PopTorch's optimizers as a job asks for them, and their state; what they compute is in test_parity.py."""

import dataclasses

import poptorch
import pytest
import torch
from tiny_ipu import ADAMW, tiny_model

from ipu_model.core.errors import CheckpointError, ConfigError
from ipu_model.ipu.optimizers import load_optimizer_tensors, make_ipu_optimizer
from ipu_model.models.modeling import is_exempt


def optimizer(name, frozen=False, **changes):
    model = tiny_model("question_answering")
    for parameter in model.parameters():
        parameter.requires_grad_(is_exempt(parameter) or not frozen)
    config = dataclasses.replace(ADAMW, name=name, **changes)
    return make_ipu_optimizer(poptorch, config, model.named_parameters(), half=False)


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("lamb", {"max_grad_norm": 1.0}, "max_grad_norm=1 with lamb"),
        ("adam", {"max_grad_norm": 1.0}, "weight_decay to 0"),
        ("adamw", {"bias_correction": False}, "bias_correction=false with adamw.*use lamb"),
        ("adam", {"bias_correction": False, "max_grad_norm": 2.0}, "bias_correction=false with adam.*max_grad_norm=2"),
    ],
)
def test_what_the_ipu_would_do_otherwise_is_refused(name, changes, message):
    with pytest.raises(ConfigError, match=message):
        optimizer(name, **changes)


def test_frozen_parameters_are_in_no_group_and_an_empty_group_is_left_out():
    (group,) = optimizer("lamb", frozen=True).param_groups
    assert group["weight_decay"] == 0.0
    assert all(is_exempt(parameter) for parameter in group["params"])


def test_a_state_of_another_runtime_is_refused():
    with pytest.raises(CheckpointError, match="exp_avg"):
        load_optimizer_tensors(poptorch, optimizer("lamb"), {"bert.pooler.dense.weight/exp_avg": torch.zeros(1)})
    plain = torch.optim.SGD(tiny_model("question_answering").parameters(), lr=0.1)
    with pytest.raises(CheckpointError, match="SGD"):
        load_optimizer_tensors(poptorch, plain, {})


@pytest.mark.parametrize("name", ["lamb", "adamw", "adam", "sgd"])
def test_no_attribute_appears_with_a_state(name):
    """PopTorch notes the attributes it saw when it compiled and warns of every later one as ignored."""

    def attributes():
        return sorted(vars(made)), sorted(made.defaults), [sorted(group) for group in made.param_groups]

    made = optimizer(name)
    noted = attributes()
    state = {"ipu_state/Accl1___x": torch.zeros(1), "ipu_param/lossScaling": torch.ones(1)}
    load_optimizer_tensors(poptorch, made, state)
    assert attributes() == noted
