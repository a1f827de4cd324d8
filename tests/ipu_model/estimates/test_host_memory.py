"""What estimates count on CPU and CUDA, held against the tensors that there are."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, Dict, List

import numpy as np
import pytest
import torch
from tiny_jobs import make_job

from ipu_model import heads
from ipu_model.estimates.estimate import DOES_NOT_FIT, FITS
from ipu_model.estimates.host import HostJob, estimate_host, largest_micro_batch, work_of
from ipu_model.estimates.host_memory import Work, count_weights, fullest, instants, staying
from ipu_model.estimates.host_shapes import Shape, assumed_shapes, read_shapes, shape_of
from ipu_model.jobs.job import BatchGeometry, EvaluationConfig, ScheduleConfig
from ipu_model.models.config import ModelConfig
from ipu_model.models.encoder import LowPrecisionCopies
from ipu_model.models.flat import flatten
from ipu_model.models.modeling import build_model, initialise
from ipu_model.rows.format import Manifest, read_manifest
from ipu_model.rows.reading import RowFolder, UpdateRows
from tests.optimizers import optimizer_config

SMALL = ModelConfig(60, hidden_size=32, num_layers=3, num_heads=4, intermediate_size=96, max_positions=32)
MB = 1 << 20


def job_of(manifest: Manifest, micro_batch: int = 4, config: ModelConfig = SMALL, **changes: Any) -> HostJob:
    geometry = BatchGeometry(round(12 * manifest.packing_factor), micro_batch)
    job = make_job(Path("folder"), "pretrain", Path("rows"), geometry=geometry, model=config, **changes)
    return HostJob(job, config, manifest, limit=1e12)


def manifest_of(rows: int = 10_000, length: int = 128, sequences: int = 1, efficiency: float = 1.0) -> Manifest:
    tokens = int(rows * length * efficiency)
    return Manifest("pretrain", length, sequences, 20, 30522, "", 0, rows, rows * sequences, tokens, {"rows": rows})


@pytest.mark.parametrize("head", heads.names())
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_weights_and_their_copies_are_counted_to_the_last_one(head: str, precision: str) -> None:
    labels = 3 if heads.of(head).labelled else 0
    model = build_model(head, SMALL, labels)
    copies = LowPrecisionCopies(model, torch.bfloat16 if precision == "bf16" else None)
    counted = count_weights(SMALL, head, labels or 2)
    assert counted.every == sum(x.numel() for x in model.parameters())
    if precision == "bf16":
        assert counted.products == sum(copy.numel() for _, copy in copies.pairs)


def test_shapes_of_rows_are_those_that_training_computes(pretrain_rows: Path) -> None:
    rows = RowFolder(pretrain_rows, "pretrain", SMALL)
    order = UpdateRows(len(rows), 5, seed=7)
    flat = flatten(rows.take(order(0)), heads.of("pretraining").flat_labels)
    found = read_shapes(rows, 5, order, 1).mean
    assert (found.tokens, found.real_tokens) == (len(flat.tokens.input_ids), flat.real_tokens)
    assert (found.sequences, found.masked) == (len(flat.lengths), len(flat.labels["masked_labels"]))
    layout_rows = -(-np.array(flat.blocks) // 32) * 32
    assert (found.padded, found.squares) == (layout_rows.sum(), (layout_rows**2).sum())


def test_shapes_assumed_of_a_manifest_are_near_those_of_its_rows(pretrain_rows: Path) -> None:
    rows = RowFolder(pretrain_rows, "pretrain", SMALL)
    read = read_shapes(rows, 6, UpdateRows(len(rows), 6, seed=7), 5)
    assumed = assumed_shapes(read_manifest(pretrain_rows), 6)
    assert read.known
    assert not assumed.known
    assert assumed.mean.tokens == pytest.approx(read.mean.tokens, rel=0.25)
    assert assumed.mean.sequences == pytest.approx(read.mean.sequences, rel=0.1)


def test_the_fullest_of_many_is_fuller_than_the_mean_and_no_fuller_than_can_be() -> None:
    shapes = assumed_shapes(manifest_of(efficiency=0.5), 4)
    some, many = shapes.fullest(10, 512), shapes.fullest(10_000, 512)
    assert shapes.mean.tokens < some.tokens < many.tokens <= 512


class Saved:
    """Bytes of the tensors that autograd keeps, each storage once, parameters and their copies left out."""

    def __init__(self, model: torch.nn.Module, copies: LowPrecisionCopies) -> None:
        own = [*model.parameters(), *(copy for _, copy in copies.pairs)]
        self._own = {x.untyped_storage().data_ptr() for x in own}
        self.found: Dict[int, int] = {}

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        storage = x.untyped_storage()
        if storage.data_ptr() not in self._own:
            self.found[storage.data_ptr()] = storage.nbytes()
        return x

    @property
    def bytes(self) -> int:
        return sum(self.found.values())


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("kind", ["pretrain", "finetune"])
def test_what_is_kept_for_the_way_back_is_what_is_counted(
    kind: str, precision: str, dropout: float, recompute: bool, request: pytest.FixtureRequest
) -> None:
    """Larger rows than the tiny ones, so that what is small counts little."""
    folder = request.getfixturevalue("pretrain_rows" if kind == "pretrain" else "answer_rows")
    config = dataclasses.replace(SMALL, hidden_size=64, hidden_dropout=dropout, attention_dropout=dropout)
    head = heads.of("pretraining" if kind == "pretrain" else "question_answering")
    rows = RowFolder(folder, head.row_kind(0), config)
    batch = rows.take(np.arange(len(rows)))
    model: Any = build_model(head.name, config)
    initialise(model, config, 0)
    copies = LowPrecisionCopies(model, torch.bfloat16 if precision == "bf16" else None)
    model.bert.recompute = recompute
    flat, saved = flatten(batch, head.flat_labels), Saved(model.train(), copies)
    with torch.autograd.graph.saved_tensors_hooks(saved, lambda x: x):
        head.loss(model, flat, head.label_counts(batch))
    shape = read_shapes(rows, len(rows), UpdateRows(len(rows), len(rows), 0), 1).mean
    found = instants(Work(config, "cpu", precision, shape, training=True, head=head.name))
    kept = {"activations", "attention scores", "vocabulary logits"}
    names = "vocabulary logits" if kind == "pretrain" else "way back through the last layer"
    counted = sum(term.amount for term in found[names] if term.name in kept)
    if recompute:  # counted is also the layer that is computed once more, which nothing keeps
        assert saved.bytes < counted
        return
    assert counted == pytest.approx(saved.bytes, rel=0.06)


def test_an_estimate_names_its_largest_term_and_fits_where_there_is_room() -> None:
    asked = job_of(manifest_of(), config=ModelConfig(30522), micro_batch=12)
    memory = estimate_host(asked).memory[0]
    assert memory.verdict == FITS
    assert sum(term.amount for term in memory.terms) == pytest.approx(memory.total.likely)
    assert memory.largest.amount == max(term.amount for term in memory.terms)
    small = dataclasses.replace(asked, limit=memory.total.low - 1)
    assert estimate_host(small).memory[0].verdict == DOES_NOT_FIT


@pytest.mark.parametrize("runtime", ["cpu", "cuda"])
def test_the_largest_micro_batch_is_the_last_one_that_fits(runtime: str) -> None:
    geometry = BatchGeometry(512, 512)
    asked = job_of(manifest_of(), config=ModelConfig(30522, num_layers=4))
    job = dataclasses.replace(asked.job, geometry=geometry)
    asked = dataclasses.replace(asked, job=job, runtime=runtime, limit=6e9)
    rows = largest_micro_batch(asked)
    assert 1 < rows < 512
    assert estimate_host(asked.with_micro_batch(rows)).verdict == FITS
    assert estimate_host(asked.with_micro_batch(rows + rows // 8 + 1)).verdict != FITS
    assert largest_micro_batch(dataclasses.replace(asked, limit=1.0)) == 0
    assert largest_micro_batch(dataclasses.replace(asked, limit=None if runtime == "cuda" else 1e15)) == 512


def likely(asked: HostJob, **changes: Any) -> float:
    changed = dataclasses.replace(asked, job=dataclasses.replace(asked.job, **changes))
    return estimate_host(changed).memory[0].total.likely


def test_every_knob_moves_memory_the_way_that_it_says() -> None:
    asked = job_of(manifest_of(), config=ModelConfig(30522), micro_batch=12, checkpoint_every_updates=0)
    before = likely(asked)
    assert likely(asked, recompute=True) < before
    assert estimate_host(asked.with_micro_batch(4)).memory[0].total.likely < before
    assert likely(asked, optimizer=optimizer_config(name="sgd")) < before
    assert likely(asked, checkpoint_every_updates=2) > before
    assert likely(asked, evaluation=EvaluationConfig("held", 2, keep="best")) > before
    assert likely(asked, init_checkpoint="model") > before
    on_gpu = dataclasses.replace(asked, runtime="cuda")
    low = dataclasses.replace(on_gpu, precision="bf16")
    assert likely(low) < likely(on_gpu)
    assert likely(dataclasses.replace(asked, precision="auto")) >= before, "the fuller one of the two"


def test_a_process_of_several_has_its_share_of_the_memory() -> None:
    asked = job_of(manifest_of(), micro_batch=3)
    pair = dataclasses.replace(asked, processes=2)
    assert estimate_host(pair).memory[0].limit == asked.limit / 2 if asked.limit else False
    names = [term.name for term in estimate_host(pair).memory[0].terms]
    assert "sums over processes" in names


def test_a_prediction_keeps_nothing_for_a_way_back() -> None:
    asked = job_of(manifest_of(), config=ModelConfig(30522), micro_batch=12)
    schedule = ScheduleConfig(steps=1)
    job = dataclasses.replace(asked.job, kind="predict", head="question_answering", schedule=schedule)
    predicting = dataclasses.replace(asked, job=job)
    work = work_of(predicting)
    assert not work.training
    assert list(instants(work)) == ["prediction"]
    assert [term.name for term in staying(work)] == ["weights"]
    assert estimate_host(predicting).memory[0].total.likely < likely(asked) / 2


def test_holes_are_counted_beside_tensors_alone() -> None:
    shape = shape_of([128] * 32, 640)
    work = Work(ModelConfig(30522), "cpu", "fp32", shape, training=True, head="pretraining")
    names: List[str] = [term.name for term in fullest(work, [])[1]]
    assert names.count("holes between tensors") == 1
    assert isinstance(shape, Shape)


def test_mapped_rows_take_only_what_room_there_is() -> None:
    many = job_of(manifest_of(rows=100_000_000), micro_batch=12, schedule=ScheduleConfig(epochs=1.0))
    few = job_of(manifest_of(rows=1_000), micro_batch=12, schedule=ScheduleConfig(epochs=1.0))
    without = estimate_host(few).memory[0].total.likely - 1_000 * 128 * 6
    assert estimate_host(many).memory[0].total.likely - without >= 100_000_000 * 128 * 6 - 1
    small = dataclasses.replace(many, limit=4e9)
    memory = estimate_host(small).memory[0]
    assert memory.verdict == FITS
    assert memory.total.high == pytest.approx(4e9)
