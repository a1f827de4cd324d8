"""Every family on IPUs: placement, and numbers next to the CPU, dropout included."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, Sequence

import pytest
import torch
from recorded_presets import SUPPORTED, operations
from tiny_ipu import (
    FOUR_LAYERS,
    RATES,
    ipu_job,
    ipu_runtime,
    largest_differences,
    make_batches,
    make_model,
    optimizer_of,
)

from ipu_model.distributed.poprun import PopRunInstances
from ipu_model.ipu.planning import plan_ipu
from ipu_model.jobs.job import BatchGeometry
from ipu_model.models import flat, layers
from ipu_model.models.config import HEAD_DROPOUTS, ModelConfig
from ipu_model.models.families import configure_model, list_families
from ipu_model.runtimes.torch_device import TorchRuntime

DROPOUTS = dict(zip(("hidden_dropout", "attention_dropout", *HEAD_DROPOUTS), (1 / 8, 1 / 4, 1 / 2, 3 / 8, 1 / 16)))
"""Each of its own, so that none can stand for another."""


def tiny(family: str) -> ModelConfig:
    """FOUR_LAYERS in another family, with dropout, and with narrow embeddings where it has them."""
    shared = ("hidden_size", "num_layers", "num_heads", "intermediate_size", "max_positions", "initializer_range")
    values = {name: getattr(FOUR_LAYERS, name) for name in shared}
    config = dataclasses.replace(configure_model(60, family, **values), **DROPOUTS)
    if family == "modernbert":
        config = dataclasses.replace(config, settings={"local_attention": 8, "classifier_pooling": "mean"})
    return config if config.embedding_size is None else dataclasses.replace(config, embedding_size=8)


@pytest.fixture
def _dropping_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dropout keeps everything, scaled by 1 / (1 - rate): the CPU and the IPUs, which draw other numbers, agree."""

    def keep(shape: Sequence[int], rate: float) -> torch.Tensor:
        return torch.full(tuple(shape), -1, dtype=torch.int16)

    for module in (layers, flat):
        monkeypatch.setattr(module, "draw_mask", keep)
    monkeypatch.setattr(torch.nn.functional, "dropout", lambda x, rate, training=True: x / (1 - rate))


@pytest.mark.ipu
@pytest.mark.usefixtures("_dropping_nothing")
@pytest.mark.parametrize("kind", ["masked_lm", "question_answering", "sequence_classification", "token_classification"])
@pytest.mark.parametrize("family", list_families())
def test_updates_on_ipus_are_those_of_the_cpu(family: str, kind: str, tmp_path: Path) -> None:
    config, optimizer = tiny(family), optimizer_of("adamw")
    batches = make_batches(kind, 3, 32)
    for batch in batches:
        batch.columns["token_type_ids"][:] %= max(1, config.type_vocab_size)
    cpu = TorchRuntime(make_model(kind, config), kind, 32, "fp32", optimizer, seed=7)
    job = ipu_job(kind, optimizer, tmp_path, replicas=2, iterations=1, model=config)
    ipu = ipu_runtime(job, config=config, model=make_model(kind, config))
    try:
        ipu.compile(batches[0])
        for batch in batches:
            found, expected = ipu.train_step(batch, RATES[0]), cpu.train_step(batch, RATES[0])
            assert found.loss == pytest.approx(expected.loss, abs=1e-5)
        learned, idle = largest_differences(ipu.state_dict(), cpu.state_dict())
    finally:
        ipu.close()
    assert learned < 1e-5
    assert idle < 1e-4


@pytest.mark.ipu
@pytest.mark.parametrize("family", list_families())
def test_logits_on_ipus_are_those_of_the_cpu(family: str, tmp_path: Path) -> None:
    config, kind = tiny(family), "sequence_classification"
    [batch] = make_batches(kind, 1, 8)
    batch.columns["token_type_ids"][:] %= max(1, config.type_vocab_size)
    job = ipu_job(kind, None, tmp_path, 2, 4, kind="predict", model=config, geometry=BatchGeometry(1, 1))
    ipu = ipu_runtime(job, config=config, model=make_model(kind, config))
    try:
        ours = {x.feature_id: x.columns["logits"] for x in ipu.predict(batch)}
    finally:
        ipu.close()
    for expected in TorchRuntime(make_model(kind, config), kind, 4, "fp32", None, 0).predict(batch):
        assert ours[expected.feature_id] == pytest.approx(expected.columns["logits"], abs=1e-5)


@pytest.mark.parametrize("pooling", ["cls", "mean"])
@pytest.mark.parametrize("head", ["masked_lm", "question_answering", "sequence_classification", "token_classification"])
def test_every_operation_of_rotary_layers_is_one_that_poptorch_supports(
    head: str, pooling: str, record: Any, tmp_path: Path
) -> None:
    config = dataclasses.replace(tiny("modernbert"), settings={"local_attention": 8, "classifier_pooling": pooling})
    job = ipu_job(head, optimizer_of("adamw"), tmp_path, 1, 1, model=config, precision="fp16")
    runtime = ipu_runtime(job, config=config, model=make_model(head, config))
    runtime.compile(make_batches(head, 1, 16)[0])
    runtime.close()
    in_the_guide = {"abs", "cos", "le", "pow", "reciprocal", "sin"}
    assert operations(record()[-1]) - SUPPORTED - in_the_guide == set()


@pytest.mark.parametrize(
    ("family", "pooler"),
    [("bert", 2), ("roberta", 3), ("camembert", 3), ("distilbert", 3), ("electra", 3), ("modernbert", 3)],
)
def test_a_classifier_is_placed_as_by_optimum(family: str, pooler: int, tmp_path: Path) -> None:
    """PipelinedRobertaForSequenceClassification and PipelinedDistilBertForSequenceClassification have all of the head
    on the last IPU; BERT's pooler belongs to the encoder."""
    config = tiny(family)
    job = ipu_job("sequence_classification", optimizer_of("adamw"), tmp_path, 1, 1, model=config)
    job = dataclasses.replace(job, ipu_config={**(job.ipu_config or {}), "layers_per_ipu": [0, 2, 2, 0]})
    placement = plan_ipu(job, config, 1.0, False, PopRunInstances(), lambda line: None).placement
    assert placement.layers == (1, 1, 2, 2)
    assert (placement.embeddings, placement.pooler, placement.heads) == (0, pooler, 3)
