"""The IPU runtime against the CPU runtime on the same rows: losses, weights and logits."""

from __future__ import annotations

import dataclasses
from contextlib import closing
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence

import numpy as np
import pytest
import torch
from tiny_ipu import (
    ACCUMULATION,
    FOUR_LAYERS,
    SUPPORTED,
    follow,
    ipu_job,
    ipu_runtime,
    make_batches,
    make_model,
    operations,
    optimizer_of,
)
from tiny_jobs import TAUGHT, add_teacher, head_of, make_columns, write_rows

from ipu_model import heads
from ipu_model.distributed.poprun import PopRunInstances
from ipu_model.ipu.device_model import drop_out
from ipu_model.ipu.planning import plan_ipu
from ipu_model.jobs.job import BatchGeometry
from ipu_model.models import layers
from ipu_model.models.config import HEAD_DROPOUTS, Distillation, ModelConfig
from ipu_model.models.families import configure_model, list_families
from ipu_model.rows.row_folder import NO_ROW, Batch, RowFolder
from ipu_model.runtimes.torch_device import TorchRuntime

ADAMW = optimizer_of("adamw")
KINDS = ["sequence_classification", "sequence_multilabel", "sequence_regression", "token_classification"]
CASES = [
    (name, head, replicas, iterations, packed)
    for name in ("lamb", "adamw")
    for head in ("pretraining", "question_answering")
    for replicas, iterations in ((2, 2), (4, 1))
    for packed in (True, False)
]
DROPOUTS = dict(zip(("hidden_dropout", "attention_dropout", *HEAD_DROPOUTS), (1 / 8, 1 / 4, 1 / 2, 3 / 8, 1 / 16)))
"""Each of its own, so that none can stand for another."""


@pytest.mark.ipu
@pytest.mark.parametrize(("name", "head", "replicas", "iterations", "packed"), CASES)
def test_ten_updates_on_ipus_follow_the_cpu(
    name: str, head: str, replicas: int, iterations: int, packed: bool, tmp_path: Path
) -> None:
    """Four-IPU pipeline, accumulation 16, fp32: 1e-5 on every loss and every weight that learns."""
    batches = make_batches(head, 10, ACCUMULATION * replicas, packed)
    found = follow(tmp_path, head, batches, optimizer_of(name), replicas=replicas, iterations=iterations)
    assert len(found) == 10 // iterations


@pytest.mark.ipu
@pytest.mark.parametrize(
    "changes",
    [
        {"name": "lamb", "bias_correction": False},
        {"name": "adam"},
        {"name": "sgd", "momentum": 0.8},
        {"name": "adamw", "max_grad_norm": 0.05},
        {"name": "adam", "max_grad_norm": 0.05, "weight_decay": 0.0},
    ],
    ids=str,
)
def test_every_optimizer_updates_and_clips_as_on_the_cpu(changes: Dict[str, Any], tmp_path: Path) -> None:
    batches = make_batches("question_answering", 4, 2 * ACCUMULATION)
    follow(tmp_path, "question_answering", batches, optimizer_of(**changes), rates=[1e-2, 3e-2, 2e-2, 1e-2])


@pytest.mark.ipu
@pytest.mark.parametrize("head", ["pretraining", "question_answering"])
@pytest.mark.parametrize("rows", [5, 19])
def test_an_update_filled_up_with_empty_rows_is_the_update_of_its_rows(head: str, rows: int, tmp_path: Path) -> None:
    kind = "pretrain" if head == "pretraining" else head
    write_rows(tmp_path / "rows", kind, make_columns(kind, 40))
    filled = RowFolder(tmp_path / "rows", kind, FOUR_LAYERS).take(np.array([*range(rows), *[NO_ROW] * (32 - rows)]))
    follow(tmp_path, head, [filled], ADAMW, rates=[1e-3], rows=rows)


@pytest.mark.ipu
@pytest.mark.parametrize(
    ("kind", "weights", "setting"),
    [
        (KINDS[0], [0.4, 3.0, 1.5], None),
        (KINDS[0], [0.4, 3.0, 1.5], Distillation(3.0, 0.7)),
        *((kind, None, Distillation(3.0, 0.7)) for kind in TAUGHT),
    ],
)
def test_class_weights_and_students_on_ipus_follow_the_cpu(
    kind: str, weights: Any, setting: Optional[Distillation], tmp_path: Path
) -> None:
    batches = make_batches(kind, 3, 2 * ACCUMULATION)
    if weights is not None:
        batches = [dataclasses.replace(batch, class_weights=np.array(weights)) for batch in batches]
    if setting is not None:
        batches = [dataclasses.replace(batch, columns=add_teacher(kind, batch.columns)) for batch in batches]
    first = follow(tmp_path, kind, batches, ADAMW, rates=[1e-3] * 3, distillation=setting)[0]
    taught = ["teacher_loss"] if setting is not None else []
    assert list(first.parts) == [*heads.get_head(head_of(kind)).parts, *taught]
    plain = TorchRuntime(make_model(kind), head_of(kind), ACCUMULATION, "fp32", ADAMW, seed=7)
    batch = dataclasses.replace(batches[0], class_weights=None)
    assert abs(first.loss - plain.train_step(batch, 1e-3).loss) > 1e-3


def tiny(family: str) -> ModelConfig:
    """FOUR_LAYERS in another family, with dropout, and with narrow embeddings where it has them."""
    shared = ("hidden_size", "num_layers", "num_heads", "intermediate_size", "max_positions", "initializer_range")
    values = {name: getattr(FOUR_LAYERS, name) for name in shared}
    config = dataclasses.replace(configure_model(60, family, **values), **DROPOUTS)
    if family == "modernbert":
        config = dataclasses.replace(config, settings={"local_attention": 8, "classifier_pooling": "mean"})
    return config if config.embedding_size is None else dataclasses.replace(config, embedding_size=8)


def batches_of(config: ModelConfig, kind: str, updates: int, rows: int) -> List[Batch]:
    batches = make_batches(kind, updates, rows)
    for batch in batches:
        batch.columns["token_type_ids"][:] %= max(1, config.type_vocab_size)
    return batches


@pytest.fixture
def _dropping_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dropout keeps everything, scaled by 1 / (1 - rate): the CPU and the IPUs, which draw other numbers, agree."""

    def keep(shape: Sequence[int], rate: float) -> torch.Tensor:
        return torch.full(tuple(shape), -1, dtype=torch.int16)

    monkeypatch.setattr(layers, "draw_mask", keep)
    monkeypatch.setattr(torch.nn.functional, "dropout", lambda x, rate, training=True: x / (1 - rate))


@pytest.mark.ipu
@pytest.mark.usefixtures("_dropping_nothing")
@pytest.mark.parametrize("kind", ["masked_lm", "question_answering", "sequence_classification", "token_classification"])
@pytest.mark.parametrize("family", list_families())
def test_updates_of_every_family_are_those_of_the_cpu(family: str, kind: str, tmp_path: Path) -> None:
    config = tiny(family)
    follow(tmp_path, kind, batches_of(config, kind, 3, 32), ADAMW, config)


@pytest.mark.ipu
@pytest.mark.parametrize(
    ("family", "kind"), [*(("bert", kind) for kind in KINDS), *((x, KINDS[0]) for x in list_families() if x != "bert")]
)
def test_logits_are_those_of_the_cpu_and_of_real_sequences_only(family: str, kind: str, tmp_path: Path) -> None:
    """A last call of two rows where eight fit: what fills it up gives no logits."""
    config = tiny(family)
    [batch] = batches_of(config, kind, 1, 10)
    job = ipu_job(kind, None, tmp_path, 2, 4, kind="predict", model=config, geometry=BatchGeometry(1, 1))
    with closing(ipu_runtime(job, config=config, model=make_model(kind, config))) as ipu:
        ours = {x.feature_id: x.columns["logits"] for x in ipu.predict(batch)}
    cpu = TorchRuntime(make_model(kind, config), head_of(kind), 4, "fp32", None, 0).predict(batch)
    assert len(ours) == len(cpu) == batch.sequences
    for found in cpu:
        np.testing.assert_allclose(ours[found.feature_id], found.columns["logits"], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("head", ["masked_lm", "question_answering", "sequence_classification", "token_classification"])
def test_every_operation_of_rotary_layers_is_one_that_poptorch_supports(head: str, record: Any, tmp_path: Path) -> None:
    config = tiny("modernbert")
    job = ipu_job(head, ADAMW, tmp_path, 1, 1, model=config, precision="fp16")
    with closing(ipu_runtime(job, config=config, model=make_model(head, config))) as runtime:
        runtime.compile(make_batches(head, 1, 16)[0])
    in_the_guide = {"abs", "cos", "le", "pow", "reciprocal", "sin"}
    assert operations(record()[-1]) - SUPPORTED - in_the_guide == set()


@pytest.mark.parametrize(("family", "pooler"), [("bert", 2), ("roberta", 3), ("distilbert", 3), ("modernbert", 3)])
def test_a_classifier_is_placed_as_by_optimum(family: str, pooler: int, tmp_path: Path) -> None:
    """Optimum's RoBERTa and DistilBERT have all of the head on the last IPU; BERT's pooler belongs to the encoder."""
    job = ipu_job(KINDS[0], ADAMW, tmp_path, 1, 1, model=tiny(family), ipu_config={"layers_per_ipu": [0, 2, 2, 0]})
    placement = plan_ipu(job, tiny(family), 1.0, False, PopRunInstances(), lambda line: None).placement
    assert placement.layers == (1, 1, 2, 2)
    assert (placement.embeddings, placement.pooler, placement.heads) == (0, pooler, 3)


@pytest.mark.ipu
@pytest.mark.parametrize("head", ["pretraining", "question_answering"])
def test_fp16_losses_stay_within_a_hundredth_of_fp32_on_the_cpu(head: str, tmp_path: Path) -> None:
    """Two updates here, as fp16 is emulated slowly."""
    cpu = TorchRuntime(make_model(head), head, 32, "fp32", ADAMW, seed=7)
    job = ipu_job(head, ADAMW, tmp_path, 2, 1, precision="fp16")
    batches = make_batches(head, 2, 32)
    with closing(ipu_runtime(job, model=make_model(head))) as ipu:
        ipu.compile(batches[0])
        half, full = ([runtime.train_step(*x).loss for x in zip(batches, (2e-5, 4e-5))] for runtime in (ipu, cpu))
        weights = ipu.state_dict()
    assert half == pytest.approx(full, rel=1e-2)
    assert half != full  # it did compute in fp16
    assert all(x.dtype == torch.float32 and bool((x == x.half()).all()) for x in weights.values())


class Dropping(torch.nn.Module):
    """Dropout, after a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor(3.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return drop_out(x * self.weight, 0.25, dropping=True)


@pytest.mark.ipu
def test_dropout_in_fp16_drops_a_quarter_and_scales_the_rest(poptorch: Any) -> None:
    with torch.random.fork_rng(devices=[]):
        options = poptorch.Options()
        options.randomSeed(1)
        executor = poptorch.inferenceModel(Dropping().half(), options)
        found = executor(torch.ones(1, 4000, dtype=torch.float16))
        executor.destroy()
    assert found.dtype == torch.float16
    assert set(found.flatten().tolist()) == {0.0, 4.0}  # 3 / (1 - 0.25)
    assert 900 < int((found == 0).sum()) < 1100  # 1000, standard deviation 27


@pytest.mark.ipu
@pytest.mark.parametrize("mode", ["sum", "all", "final", "default"])
def test_every_output_mode_reports_what_it_says(mode: str, tmp_path: Path) -> None:
    """sum and all: the loss of the update; final, the default: that of the last micro-batch of each replica."""
    batch = make_batches("pretraining", 1, 32)[0]
    job = ipu_job("pretraining", optimizer_of("lamb"), tmp_path, 2, 1, ipu_config={"output_mode": mode})
    runtime = ipu_runtime(job)
    runtime.compile(batch)
    loss = runtime.train_step(batch, 0.0).loss
    runtime.close()
    cpu = TorchRuntime(make_model("pretraining"), "pretraining", 32, "fp32", optimizer_of("lamb"), seed=7)
    expected = cpu.train_step(batch, 0.0).loss
    if mode in ("final", "default"):
        assert loss != pytest.approx(expected, abs=1e-3)
    else:
        assert loss == pytest.approx(expected, abs=1e-5)


@pytest.mark.ipu
def test_rows_without_padding_or_without_anything_give_no_nan(tmp_path: Path) -> None:
    """A fully padded row in fp16: nothing to look at but padding, and no label."""
    write_rows(tmp_path / "rows", "question_answering", make_columns("question_answering", 31))
    folder = RowFolder(tmp_path / "rows", "question_answering", FOUR_LAYERS)
    padded = folder.take(np.array([*range(31), NO_ROW]))
    job = ipu_job("question_answering", ADAMW, tmp_path, 2, 1, precision="fp16")
    runtime = ipu_runtime(job)
    runtime.compile(padded)
    assert np.isfinite(runtime.train_step(padded, 1e-3).loss)
    assert all(bool(torch.isfinite(x).all()) for x in runtime.state_dict().values())
    runtime.close()
