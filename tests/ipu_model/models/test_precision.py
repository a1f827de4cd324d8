"""Low-precision copies of matrices: which there are, and how their gradients come back."""

from __future__ import annotations

import pytest
import torch

from ipu_model.models.config import ModelConfig
from ipu_model.models.layers import LowPrecisionCopies
from ipu_model.models.modeling import build_model, initialise

TINY = ModelConfig(vocab_size=40, hidden_size=8, num_layers=2, num_heads=2, intermediate_size=16, max_positions=16)


@pytest.fixture(params=["pretraining", "question_answering"])
def model(request: pytest.FixtureRequest) -> torch.nn.Module:
    built = build_model(request.param, TINY)
    initialise(built, TINY, seed=1)
    return built


def test_every_factor_of_a_product_has_one_and_nothing_else(model: torch.nn.Module) -> None:
    copied = {id(weight) for weight, _ in LowPrecisionCopies(model, torch.bfloat16).pairs}
    names = {name for name, parameter in model.named_parameters() if id(parameter) in copied}
    matrices = {name for name, parameter in model.named_parameters() if parameter.dim() == 2}
    decoder = {"bert.embeddings.word_embeddings.weight"} if hasattr(model, "cls") else set()
    assert names == {name for name in matrices if "embeddings" not in name} | decoder


def test_they_are_no_parameters_and_are_not_saved(model: torch.nn.Module) -> None:
    before = list(model.state_dict())
    parameters = len(list(model.parameters()))
    LowPrecisionCopies(model, torch.bfloat16)
    assert list(model.state_dict()) == before
    assert len(list(model.parameters())) == parameters


def test_gradients_of_several_micro_batches_are_added_in_fp32(model: torch.nn.Module) -> None:
    copies = LowPrecisionCopies(model, torch.bfloat16)
    weight, copy = copies.pairs[0]
    for value in (256.0, 1.0, 1.0):  # 256 + 1 is 256 in bf16
        copy.grad = torch.full_like(copy, value)
        copies.collect_gradients()
    assert weight.grad is not None
    assert weight.grad.dtype == torch.float32
    assert weight.grad.unique().tolist() == [258.0]
    assert copy.grad is None


def test_every_gradient_of_the_model_is_there_once(model: torch.nn.Module) -> None:
    copies = LowPrecisionCopies(model, torch.bfloat16)
    for parameter in model.parameters():
        if parameter not in dict(copies.pairs):
            parameter.grad = torch.ones_like(parameter)
    for _, copy in copies.pairs:
        copy.grad = torch.ones_like(copy)
    twice, other = copies.pairs[0]
    twice.grad = torch.ones_like(twice)
    gradients = copies.gradients(model.parameters())
    numbers = sum(parameter.numel() for parameter in model.parameters())
    assert sum(gradient.numel() for gradient in gradients) == numbers
    assert sum(float(gradient.sum()) for gradient in gradients) == numbers + twice.numel()
    copies.zero_grad()
    assert all(copy.grad is None for _, copy in copies.pairs)


def test_without_a_precision_products_use_the_weights(model: torch.nn.Module) -> None:
    copies = LowPrecisionCopies(model, None)
    assert copies.pairs == []
    assert model.bert.precision == torch.float32
