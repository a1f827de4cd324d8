"""Classes of sequences and of tokens, and values, on IPUs, next to the CPU: losses, weights and logits."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import List, Optional

import numpy as np
import pytest
from tiny_ipu import ACCUMULATION, ipu_job, ipu_runtime, largest_differences, make_batches, make_model, optimizer_of
from tiny_jobs import TAUGHT, add_teacher, head_of

from ipu_model import heads
from ipu_model.jobs.job import BatchGeometry
from ipu_model.models.config import Distillation
from ipu_model.runtimes.torch_device import TorchRuntime

KINDS = ["sequence_classification", "sequence_multilabel", "sequence_regression", "token_classification"]


@pytest.mark.ipu
def test_updates_with_class_weights_on_ipus_follow_the_cpu(tmp_path: Path) -> None:
    kind, replicas = "sequence_classification", 2
    batches = [
        dataclasses.replace(batch, class_weights=np.array([0.4, 3.0, 1.5]))
        for batch in make_batches(kind, 3, ACCUMULATION * replicas)
    ]
    ipu = ipu_runtime(ipu_job(kind, optimizer_of("adamw"), tmp_path, replicas, 1, labels=["a", "b", "c"]))
    cpu = TorchRuntime(make_model(kind), kind, ACCUMULATION, "fp32", optimizer_of("adamw"), seed=7)
    try:
        ipu.compile(batches[0])
        for batch in batches:
            assert ipu.train_step(batch, 1e-3).loss == pytest.approx(cpu.train_step(batch, 1e-3).loss, rel=1e-5)
        learned, _ = largest_differences(ipu.state_dict(), cpu.state_dict())
    finally:
        ipu.close()
    assert learned < 1e-5


@pytest.mark.ipu
@pytest.mark.parametrize(("kind", "weights"), [*((kind, None) for kind in TAUGHT), (KINDS[0], [0.4, 3.0, 1.5])])
def test_students_on_ipus_follow_the_cpu(kind: str, weights: Optional[List[float]], tmp_path: Path) -> None:
    setting, replicas, optimizer = Distillation(3.0, 0.7), 2, optimizer_of("adamw")
    batches = [
        dataclasses.replace(
            batch,
            columns=add_teacher(kind, batch.columns),
            class_weights=None if weights is None else np.array(weights),
        )
        for batch in make_batches(kind, 3, ACCUMULATION * replicas)
    ]
    ipu = ipu_runtime(ipu_job(kind, optimizer, tmp_path, replicas, 1, distillation=setting), model=make_model(kind))
    model, head = make_model(kind), head_of(kind)
    cpu = TorchRuntime(model, head, ACCUMULATION, "fp32", optimizer, seed=7, distillation=setting)
    alone = TorchRuntime(make_model(kind), head, ACCUMULATION, "fp32", optimizer, seed=7)
    try:
        ipu.compile(batches[0])
        found = [ipu.train_step(batch, 1e-3) for batch in batches]
        for ours in zip(found, [cpu.train_step(batch, 1e-3) for batch in batches]):
            assert ours[0].loss == pytest.approx(ours[1].loss, rel=1e-5)
            assert list(ours[0].parts) == [*heads.get_head(head).parts, "teacher_loss"]
            assert ours[0].parts == pytest.approx(ours[1].parts, rel=1e-5)
        assert abs(found[0].loss - alone.train_step(batches[0], 1e-3).loss) > 1e-3
        learned, _ = largest_differences(ipu.state_dict(), cpu.state_dict())
    finally:
        ipu.close()
    assert learned < 1e-5


@pytest.mark.ipu
@pytest.mark.parametrize("kind", KINDS)
def test_logits_are_those_of_the_cpu_and_of_real_sequences_only(kind: str, tmp_path: Path) -> None:
    """A last call of two rows where eight fit: what fills it up gives no logits."""
    [batch] = make_batches(kind, 1, 10)
    job = ipu_job(kind, None, tmp_path, 2, 4, kind="predict", init_checkpoint="weights", geometry=BatchGeometry(1, 1))
    ipu = ipu_runtime(job, model=make_model(kind))
    try:
        ours = {x.feature_id: x.columns["logits"] for x in ipu.predict(batch)}
    finally:
        ipu.close()
    cpu = TorchRuntime(make_model(kind), head_of(kind), 4, "fp32", None, 0).predict(batch)
    assert len(ours) == len(cpu) == batch.sequences
    for found in cpu:
        np.testing.assert_allclose(ours[found.feature_id], found.columns["logits"], rtol=1e-5, atol=1e-5)
