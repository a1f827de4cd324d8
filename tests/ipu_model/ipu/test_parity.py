"""The IPU runtime against the CPU runtime on the same rows: losses, weights and logits."""

import dataclasses
from contextlib import closing

import numpy as np
import pytest
import torch
from tiny_ipu import (
    ACCUMULATION,
    ADAMW,
    FOUR_LAYERS,
    LAMB,
    follow,
    ipu_job,
    ipu_runtime,
    make_batches,
    plan_of,
    tiny_model,
    unsupported_operations,
)
from tiny_jobs import TAUGHT, add_teacher, head_of, make_columns, write_rows

from ipu_model.ipu.device_model import drop_out
from ipu_model.jobs.job import BatchGeometry
from ipu_model.models import layers
from ipu_model.models.config import HEAD_DROPOUTS, Distillation
from ipu_model.models.families import configure_model, list_families
from ipu_model.rows.row_folder import NO_ROW, RowFolder
from ipu_model.runtimes.torch_device import TorchRuntime

ANSWERS, CLASSES = "question_answering", "sequence_classification"
HEADS = ["masked_lm", ANSWERS, CLASSES, "token_classification"]
STUDENT = Distillation(temperature=3.0, alpha=0.7)
DROPOUTS = dict(zip(("hidden_dropout", "attention_dropout", *HEAD_DROPOUTS), (1 / 8, 1 / 4, 1 / 2, 3 / 8, 1 / 16)))
"""Each of its own, so that none can stand for another."""


@pytest.mark.ipu
@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize(("replicas", "iterations"), [(2, 2), (4, 1)])
@pytest.mark.parametrize("kind", ["pretrain", ANSWERS])
@pytest.mark.parametrize("optimizer", [LAMB, ADAMW], ids=lambda x: x.name)
def test_ten_updates_on_ipus_follow_the_cpu(optimizer, kind, replicas, iterations, packed, tmp_path):
    """Four-IPU pipeline, accumulation 16, fp32: 1e-5 on every loss and every weight that learns."""
    batches = make_batches(kind, 10, ACCUMULATION * replicas, packed)
    calls = follow(tmp_path, kind, batches, optimizer, replicas=replicas, iterations=iterations)
    assert len(calls) == 10 // iterations


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
def test_every_optimizer_updates_and_clips_as_on_the_cpu(changes, tmp_path):
    optimizer = dataclasses.replace(ADAMW, **changes)
    batches = make_batches(ANSWERS, 4, 2 * ACCUMULATION)
    follow(tmp_path, ANSWERS, batches, optimizer, rates=[1e-2, 3e-2, 2e-2, 1e-2])


@pytest.mark.ipu
@pytest.mark.parametrize("kind", ["pretrain", ANSWERS])
@pytest.mark.parametrize("rows", [5, 19])
def test_an_update_filled_up_with_empty_rows_is_the_update_of_its_rows(kind, rows, tmp_path):
    write_rows(tmp_path / "rows", kind, make_columns(kind, 40))
    filled = RowFolder(tmp_path / "rows", kind, FOUR_LAYERS).take(np.array([*range(rows), *[NO_ROW] * (32 - rows)]))
    follow(tmp_path, kind, [filled], ADAMW, rates=[1e-3], rows=rows)


@pytest.mark.ipu
@pytest.mark.parametrize(
    ("kind", "weights", "setting"),
    [
        (CLASSES, [0.4, 3.0, 1.5], None),
        (CLASSES, [0.4, 3.0, 1.5], STUDENT),
        *((kind, None, STUDENT) for kind in TAUGHT),
    ],
)
def test_class_weights_and_students_on_ipus_follow_the_cpu(kind, weights, setting, tmp_path):
    batches = make_batches(kind, 3, 2 * ACCUMULATION)
    if weights:
        batches = [dataclasses.replace(batch, class_weights=np.array(weights)) for batch in batches]
    if setting:
        batches = [dataclasses.replace(batch, columns=add_teacher(kind, batch.columns)) for batch in batches]
    first = follow(tmp_path, kind, batches, ADAMW, rates=[1e-3] * 3, distillation=setting)[0]
    assert ("teacher_loss" in first.parts) == (setting is not None)
    plain = TorchRuntime(tiny_model(kind), head_of(kind), ACCUMULATION, "fp32", ADAMW, seed=7)
    batch = dataclasses.replace(batches[0], class_weights=None)
    assert abs(first.loss - plain.train_step(batch, 1e-3).loss) > 1e-3


def tiny(family):
    """FOUR_LAYERS in another family, with dropout, and with narrow embeddings where it has them."""
    shared = ("hidden_size", "num_layers", "num_heads", "intermediate_size", "max_positions", "initializer_range")
    values = {name: getattr(FOUR_LAYERS, name) for name in shared}
    config = dataclasses.replace(configure_model(60, family, **values), **DROPOUTS)
    if family == "modernbert":
        config = dataclasses.replace(config, settings={"local_attention": 8, "classifier_pooling": "mean"})
    return config if config.embedding_size is None else dataclasses.replace(config, embedding_size=8)


def batches_of(config, kind, updates, rows):
    batches = make_batches(kind, updates, rows)
    for batch in batches:
        batch.columns["token_type_ids"][:] %= max(1, config.type_vocab_size)
    return batches


@pytest.fixture
def _dropping_nothing(monkeypatch):
    """Dropout keeps everything, scaled by 1 / (1 - rate): the CPU and the IPUs, which draw other numbers, agree."""

    def keep(shape, rate):
        return torch.full(tuple(shape), -1, dtype=torch.int16)

    monkeypatch.setattr(layers, "draw_mask", keep)
    monkeypatch.setattr(torch.nn.functional, "dropout", lambda x, rate, training=True: x / (1 - rate))


@pytest.mark.ipu
@pytest.mark.usefixtures("_dropping_nothing")
@pytest.mark.parametrize("kind", HEADS)
@pytest.mark.parametrize("family", list_families())
def test_updates_of_every_family_are_those_of_the_cpu(family, kind, tmp_path):
    config = tiny(family)
    follow(tmp_path, kind, batches_of(config, kind, 3, 32), ADAMW, config)


@pytest.mark.ipu
@pytest.mark.parametrize(
    ("family", "kind"),
    [
        *((family, CLASSES) for family in list_families()),
        *(("bert", kind) for kind in ("sequence_multilabel", "sequence_regression", "token_classification")),
    ],
)
def test_logits_are_those_of_the_cpu_and_of_real_sequences_only(family, kind, tmp_path):
    """A last call of two rows where eight fit: what fills it up gives no logits."""
    config = tiny(family)
    [batch] = batches_of(config, kind, 1, 10)
    calls = {"geometry": BatchGeometry(1, 1), "ipu_config": {"inference_device_iterations": 4}}
    job = dataclasses.replace(ipu_job(tmp_path, kind, replicas=2, model=config, **calls), kind="predict")
    with closing(ipu_runtime(job, config=config, model=tiny_model(kind, config))) as ipu:
        ours = {x.feature_id: x.columns["logits"] for x in ipu.predict(batch)}
    cpu = TorchRuntime(tiny_model(kind, config), head_of(kind), 4, "fp32", None, 0).predict(batch)
    assert len(ours) == len(cpu) == batch.sequences
    for expected in cpu:
        np.testing.assert_allclose(ours[expected.feature_id], expected.columns["logits"], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", HEADS)
def test_every_operation_of_rotary_layers_is_one_that_poptorch_supports(kind, record, tmp_path):
    config = tiny("modernbert")
    job = ipu_job(tmp_path, kind, model=config, precision="fp16")
    with closing(ipu_runtime(job, config=config, model=tiny_model(kind, config))) as runtime:
        runtime.compile(make_batches(kind, 1, 16)[0])
    assert unsupported_operations(record()[-1]) == set()


@pytest.mark.parametrize(("family", "pooler"), [("bert", 2), ("roberta", 3), ("distilbert", 3), ("modernbert", 3)])
def test_a_classifier_is_placed_as_by_optimum(family, pooler, tmp_path):
    """Optimum's RoBERTa and DistilBERT have all of the head on the last IPU; BERT's pooler belongs to the encoder."""
    job = ipu_job(tmp_path, CLASSES, model=tiny(family), ipu_config={"layers_per_ipu": [0, 2, 2, 0]})
    placement = plan_of(job, tiny(family)).placement
    assert placement.layers == (1, 1, 2, 2)
    assert (placement.embeddings, placement.pooler, placement.heads) == (0, pooler, 3)


@pytest.mark.ipu
@pytest.mark.parametrize("kind", ["pretrain", ANSWERS])
def test_fp16_losses_stay_within_a_hundredth_of_fp32_on_the_cpu(kind, tmp_path):
    """Two updates here, as fp16 is emulated slowly. The first has a row with nothing to look at and no label."""
    write_rows(tmp_path / "rows", kind, make_columns(kind, 63))
    folder = RowFolder(tmp_path / "rows", kind, FOUR_LAYERS)
    filled, whole = (folder.take(np.array(rows)) for rows in ([*range(31), NO_ROW], range(31, 63)))
    cpu = TorchRuntime(tiny_model(kind), head_of(kind), 32, "fp32", ADAMW, seed=7)
    full = [cpu.train_step(*update).loss for update in ((filled.part(0, 31), 2e-5), (whole, 4e-5))]
    job = ipu_job(tmp_path, kind, replicas=2, optimizer=ADAMW, precision="fp16")
    with closing(ipu_runtime(job)) as ipu:
        ipu.compile(filled)
        half = [ipu.train_step(*update).loss for update in ((filled, 2e-5), (whole, 4e-5))]
        weights = ipu.state_dict()
    assert half == pytest.approx(full, rel=1e-2)
    assert half != full  # it did compute in fp16
    assert all(x.dtype == torch.float32 and bool((x == x.half()).all()) for x in weights.values())


class Dropping(torch.nn.Module):
    """Dropout, after a weight."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor(3.0))

    def forward(self, x):
        return drop_out(x * self.weight, 0.25, dropping=True)


@pytest.mark.ipu
def test_dropout_in_fp16_drops_a_quarter_and_scales_the_rest(poptorch):
    with torch.random.fork_rng(devices=[]):
        options = poptorch.Options()
        options.randomSeed(1)
        executor = poptorch.inferenceModel(Dropping().half(), options)
        dropped = executor(torch.ones(1, 4000, dtype=torch.float16))
        executor.destroy()
    assert dropped.dtype == torch.float16
    assert set(dropped.flatten().tolist()) == {0.0, 4.0}  # 3 / (1 - 0.25)
    assert 900 < int((dropped == 0).sum()) < 1100  # 1000, standard deviation 27


@pytest.mark.ipu
@pytest.mark.parametrize("mode", ["sum", "all", "final", "default"])
def test_every_output_mode_reports_what_it_says(mode, tmp_path):
    """sum and all: the loss of the update; final, the default: that of the last micro-batch of each replica."""
    [batch] = make_batches("pretrain", 1, 32)
    with closing(ipu_runtime(ipu_job(tmp_path, "pretrain", replicas=2, ipu_config={"output_mode": mode}))) as runtime:
        runtime.compile(batch)
        loss = runtime.train_step(batch, 0.0).loss
    cpu = TorchRuntime(tiny_model("pretrain"), "pretraining", 32, "fp32", LAMB, seed=7)
    whole_update = loss == pytest.approx(cpu.train_step(batch, 0.0).loss, abs=1e-5)
    assert whole_update == (mode in ("sum", "all"))
