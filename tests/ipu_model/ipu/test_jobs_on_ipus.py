"""IPU jobs from start to result.json: what they write, next to the same on CPU, and how they survive their end."""

from __future__ import annotations

import dataclasses
import signal
from pathlib import Path
from typing import Any, Dict, List, Tuple

import numpy as np
import pyarrow as pa
import pytest
import torch
from ipu_jobs import DYING, ipu_job, manifest_of, on_cpu, rows_of, run_code
from safetensors.torch import load_file
from tiny_ipu import FOUR_LAYERS
from tiny_jobs import (
    Finished,
    output_bytes,
    pausing,
    result_of,
    run_here,
    start_job,
    stop_in_training,
    table_of,
    weights_of,
    write_job,
)

import ipu_model.train.training
from ipu_model.core.errors import CheckpointError
from ipu_model.distributed.process import PAUSED
from ipu_model.jobs.job import Job, ScheduleConfig
from ipu_model.train.training import learning_rate
from tests.optimizers import optimizer_config

LAMB = optimizer_config(name="lamb", learning_rate=1e-4, loss_scaling=64.0)
ADAMW = optimizer_config(name="adamw", learning_rate=1e-4, weight_decay=0.0, loss_scaling=128.0)
DROPPING = dataclasses.replace(FOUR_LAYERS, hidden_dropout=0.1, attention_dropout=0.1)
SETTINGS = [(replicas, iterations) for replicas in (2, 4) for iterations in (1, 2)]


def logits_of(job: Job) -> List[np.ndarray]:
    """Start logits, then end logits of each feature, in the order of their ids."""
    table = pa.ipc.open_file(job.output).read_all()
    ids = table.column("feature_id").to_pylist()
    assert ids == list(range(len(ids)))
    both = [table.column(name).to_pylist() for name in ("start_logits", "end_logits")]
    return [np.array([start, end], dtype=np.float32) for start, end in zip(*both)]


def largest_difference(ours: Dict[str, torch.Tensor], theirs: Dict[str, torch.Tensor]) -> float:
    assert sorted(ours) == sorted(theirs)
    assert all(x.dtype == torch.float32 for x in ours.values())
    return max(float((ours[name] - theirs[name]).abs().max()) for name in ours)


def texts(finished: Finished, word: str) -> List[str]:
    return [x["text"] for x in finished.of("message") if word in x["text"]]


def check_trained(ours: Job, theirs: Job, replicas: int, iterations: int) -> None:
    """The run folder and the model of an IPU job, next to those of the same on CPU."""
    mine, cpu = result_of(ours), result_of(theirs)
    assert (mine.runtime, mine.precision, mine.steps) == ("ipu", "fp32", 4)
    assert mine.plan["rows_per_update"] == cpu.plan["rows_per_update"] == 16 * replicas
    assert (mine.plan["gradient_accumulation_steps"], mine.plan["replication_factor"]) == (16, replicas)
    assert mine.plan["device"]["ipus"] == 4 * replicas
    assert (mine.sequences, mine.real_tokens) == (cpu.sequences, cpu.real_tokens)
    steps = table_of(ours)
    expected = table_of(theirs).reshape(4 // iterations, iterations, -1)
    assert steps[:, 0].tolist() == [iterations * (call + 1) for call in range(4 // iterations)]
    np.testing.assert_allclose(steps[:, 1:-1], expected[:, :, 1:-1].mean(1), rtol=0, atol=1e-5)
    np.testing.assert_array_equal(steps[:, -1], expected[:, 0, -1])  # one rate for the updates of a call
    assert mine.final_loss == pytest.approx(steps[-1, 1], rel=1e-6)
    files = ["config.json", "ipu_config.json", "model.safetensors", "podium.json"]
    assert sorted(p.name for p in Path(ours.output).iterdir()) == files
    for name in ("config.json", "podium.json"):
        assert (Path(ours.output) / name).read_bytes() == (Path(theirs.output) / name).read_bytes()
    assert largest_difference(weights_of(ours), weights_of(theirs)) < 1e-5
    if ours.init_checkpoint is not None:
        before = load_file(str(Path(ours.init_checkpoint) / "model.safetensors"))
        shared = {name: x for name, x in weights_of(ours).items() if name in before}
        assert largest_difference(shared, {name: before[name] for name in shared}) > 1e-4  # it did train
    assert not list(Path(ours.run_folder).glob("step-*"))


@pytest.mark.ipu
@pytest.mark.parametrize(("replicas", "iterations"), SETTINGS)
def test_pretraining_fine_tuning_and_prediction_follow_one_another_as_on_the_cpu(
    replicas: int, iterations: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Phase 1, phase 2, fine-tuning and prediction from one another's folders, accumulation 16, packed rows."""
    pretrain_rows = rows_of(tmp_path / "rows" / "pretrain", "pretrain", 70)
    answer_rows = rows_of(tmp_path / "rows" / "squad", "question_answering", 67)

    def rate_of_the_call(step: int, *run: Any) -> float:
        return learning_rate(step - step % iterations, *run)

    def both(name: str, kind: str, rows: Path, models: Tuple[str, ...], **changes: Any) -> Tuple[Job, Job, Finished]:
        ours, theirs = ({"init_checkpoint": model} for model in models) if models else ({}, {})
        changes = {"accumulation": 16, "replicas": replicas, "iterations": iterations, **changes}
        job = ipu_job(tmp_path / "ipu" / name, kind, rows, **changes, **ours)
        reference = on_cpu(job, tmp_path / "cpu" / name, **theirs)
        done = run_here(job)
        with monkeypatch.context() as patched:
            patched.setattr(ipu_model.train.training, "learning_rate", rate_of_the_call)
            run_here(reference)
        return job, reference, done

    models: Tuple[str, ...] = ()
    for name, kind, rows, optimizer in (
        ("phase1", "pretrain", pretrain_rows, LAMB),
        ("phase2", "pretrain", pretrain_rows, LAMB),
        ("squad", "finetune", answer_rows, ADAMW),
    ):
        job, reference, _ = both(name, kind, rows, models, optimizer=optimizer)
        check_trained(job, reference, replicas, iterations)
        models = (job.output, reference.output)
    for at_a_time, sharded in ((1, True), (2, True), (4, False)):  # four forward stages
        config = {"inference_device_iterations": at_a_time}
        job, reference, done = both(f"answers-{at_a_time}", "predict", answer_rows, models, ipu_config=config)
        assert bool(texts(done, "inference is sharded")) is sharded
        assert result_of(job).plan["rows_per_call"] == at_a_time * replicas
        assert result_of(job).sequences == manifest_of(job.rows).sequences
        found, expected = logits_of(job), logits_of(reference)
        assert len(found) == manifest_of(job.rows).sequences
        for one, other in zip(found, expected):
            np.testing.assert_allclose(one, other, rtol=0, atol=1e-4)


@pytest.mark.ipu
@pytest.mark.parametrize(
    ("replicas", "iterations", "checkpoint_every", "killed_at", "resumed_from", "precision"),
    [(2, 1, 2, 5, 4, "fp32"), (1, 2, 3, 6, 4, "fp32"), (2, 1, 1, 2, 1, "fp16")],
)
def test_a_run_killed_and_restarted_ends_as_one_that_was_not(
    replicas: int,
    iterations: int,
    checkpoint_every: int,
    killed_at: int,
    resumed_from: int,
    precision: str,
    tmp_path: Path,
) -> None:
    """Bit for bit, with dropout and the moments of fp16. With two updates in a call the
    checkpoint of update 3 lies at 4, its end."""
    rows = rows_of(tmp_path / "rows", "pretrain", 50)
    optimizer, schedule = dataclasses.replace(LAMB, learning_rate=1e-2), ScheduleConfig(steps=killed_at + 2)
    settings: Dict[str, Any] = {"model": DROPPING, "schedule": schedule, "optimizer": optimizer}
    settings.update(replicas=replicas, iterations=iterations, precision=precision)
    settings["checkpoint_every_updates"] = checkpoint_every
    straight = ipu_job(tmp_path / "a", "pretrain", rows, **settings)
    run_here(straight)
    killed = ipu_job(tmp_path / "b", "pretrain", rows, **settings)
    died = run_code(DYING, [write_job(killed), str(killed_at), "step"])
    assert died.code == -signal.SIGKILL, died.stderr
    assert [Path(x["path"]).name for x in died.of("saved")][-1:] == [f"step-{resumed_from:08d}"]
    assert not Path(killed.output).exists()
    done = run_here(killed)
    assert texts(done, f"continuing after update {resumed_from} of {killed_at + 2}")
    assert result_of(killed).resumed_from_step == resumed_from
    assert result_of(killed).sequences < result_of(straight).sequences
    assert output_bytes(killed) == output_bytes(straight)


@pytest.mark.ipu
def test_sigterm_saves_and_exits_with_143_and_only_the_same_run_continues(tmp_path: Path) -> None:
    rows = rows_of(tmp_path / "rows", "pretrain", 50)
    job = ipu_job(tmp_path / "a", "pretrain", rows, schedule=ScheduleConfig(steps=100000))
    process = start_job(job)
    done = stop_in_training(process)
    assert done.code == PAUSED, done.stderr
    [saved] = done.of("saved")
    step = int(saved["path"][-8:])
    other = {**(job.ipu_config or {}), "device_iterations": 2}
    with pytest.raises(CheckpointError, match=r"plan\.device\.config\.device_iterations: 1 -> 2"):
        run_here(dataclasses.replace(job, ipu_config=other))
    # Where programs are kept decides no weight, nor does a key that repeats what is derived.
    told = {"executable_cache_dir": str(tmp_path / "cache"), "inference_device_iterations": 4}
    same = {**(job.ipu_config or {}), **told, "gradient_accumulation_steps": 9}
    again = pausing(dataclasses.replace(job, ipu_config=same), "plan")
    assert texts(again, f"continuing after update {step} of 100000")
    assert [event["step"] for event in again.of("step")] == [step + 1]
