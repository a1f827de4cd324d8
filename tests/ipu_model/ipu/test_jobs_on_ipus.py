"""IPU jobs from start to result.json: what they write, next to the same on CPU, and how they survive their end."""

import dataclasses
import itertools
import signal
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
import torch
from tiny_ipu import DROPPING, ipu_job, on_cpu, rows_of, run_code
from tiny_jobs import (
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
from ipu_model.core.files import read_json
from ipu_model.distributed.process import PAUSED
from ipu_model.ipu.config import read_ipu_config
from ipu_model.jobs.job import ScheduleConfig
from ipu_model.rows.format import read_manifest
from ipu_model.train.training import learning_rate
from tests.optimizers import optimizer_config

LAMB = optimizer_config(name="lamb", learning_rate=1e-4, loss_scaling=64.0)
ADAMW = optimizer_config(name="adamw", learning_rate=1e-4, weight_decay=0.0, loss_scaling=128.0)
DYING = """
import os, signal, sys
from ipu_model import __main__ as program
from ipu_model.core import progress
from ipu_model.train.checkpoint_writer import CheckpointWriter
step, save = int(sys.argv.pop()), CheckpointWriter.save

def save_in_turn(self, done):
    save(self, done)
    self.finish()

CheckpointWriter.save = save_in_turn

class Dying(progress.Progress):
    def __call__(self, name, **fields):
        super().__call__(name, **fields)
        if name == "step" and fields["step"] == step:
            os.kill(os.getpid(), signal.SIGKILL)

program.Progress = Dying
sys.exit(program.main())
"""
"""The program, killed by SIGKILL right after a step: nothing of it runs on, no handler is called."""


def logits_of(job):
    """Start logits, then end logits of each feature, in the order of their ids."""
    table = pa.ipc.open_file(job.output).read_all()
    ids = table.column("feature_id").to_pylist()
    assert ids == list(range(len(ids)))
    both = [table.column(name).to_pylist() for name in ("start_logits", "end_logits")]
    return [np.array([start, end], dtype=np.float32) for start, end in zip(*both)]


def check_trained(ours, theirs, replicas, iterations):
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
    torch.testing.assert_close(weights_of(ours), weights_of(theirs), rtol=0, atol=1e-5)
    assert not list(Path(ours.run_folder).glob("step-*"))


@pytest.mark.ipu
@pytest.mark.parametrize(("replicas", "iterations"), [(2, 1), (4, 2)])
def test_pretraining_fine_tuning_and_prediction_follow_one_another_as_on_the_cpu(
    replicas, iterations, tmp_path, monkeypatch
):
    """Phase 1, phase 2, fine-tuning and prediction from one another's folders, accumulation 16, packed rows."""
    pretrain_rows = rows_of(tmp_path / "rows" / "pretrain", "pretrain", 70)
    answer_rows = rows_of(tmp_path / "rows" / "squad", "question_answering", 67)

    def rate_of_the_call(step, *run):
        return learning_rate(step - step % iterations, *run)

    def both(name, kind, rows, models, **changes):
        ours, theirs = ({"init_checkpoint": model} for model in models) if models else ({}, {})
        job = ipu_job(tmp_path / "ipu" / name, kind, rows, replicas=replicas, iterations=iterations, **changes, **ours)
        reference = on_cpu(job, tmp_path / "cpu" / name, **theirs)
        done = run_here(job)
        with monkeypatch.context() as patched:
            patched.setattr(ipu_model.train.training, "learning_rate", rate_of_the_call)
            run_here(reference)
        return job, reference, done

    models = ()
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
        assert any("inference is sharded" in x["text"] for x in done.of("message")) is sharded
        assert result_of(job).plan["rows_per_call"] == at_a_time * replicas
        logits = logits_of(job)
        assert result_of(job).sequences == len(logits) == read_manifest(answer_rows).sequences
        for ours, theirs in zip(logits, logits_of(reference)):
            np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-4)


@pytest.mark.ipu
@pytest.mark.parametrize(
    ("replicas", "iterations", "checkpoint_every", "killed_at", "resumed_from", "precision"),
    [(2, 1, 2, 5, 4, "fp32"), (1, 2, 3, 6, 4, "fp32"), (2, 1, 1, 2, 1, "fp16")],
)
def test_a_run_killed_and_restarted_ends_as_one_that_was_not(
    replicas, iterations, checkpoint_every, killed_at, resumed_from, precision, tmp_path
):
    """Bit for bit, with dropout and the moments of fp16; of two updates in a call the checkpoint lies at the end."""
    rows = rows_of(tmp_path / "rows", "pretrain", 50)
    settings = {"accumulation": 9, "replicas": replicas, "iterations": iterations, "precision": precision}
    settings.update(model=DROPPING, optimizer=dataclasses.replace(LAMB, learning_rate=1e-2))
    settings.update(schedule=ScheduleConfig(steps=killed_at + 2), checkpoint_every_updates=checkpoint_every)
    straight, killed = (ipu_job(tmp_path / name, "pretrain", rows, **settings) for name in "ab")
    run_here(straight)
    died = run_code(DYING, [write_job(killed), str(killed_at)])
    assert died.code == -signal.SIGKILL, died.stderr
    assert [Path(x["path"]).name for x in died.of("saved")][-1:] == [f"step-{resumed_from:08d}"]
    assert not Path(killed.output).exists()
    run_here(killed)
    assert result_of(killed).resumed_from_step == resumed_from
    assert output_bytes(killed) == output_bytes(straight)


@pytest.mark.ipu
def test_sigterm_saves_and_exits_as_paused_and_only_the_same_run_continues(tmp_path):
    rows = rows_of(tmp_path / "rows", "pretrain", 50)
    job = ipu_job(tmp_path / "a", "pretrain", rows, 9, schedule=ScheduleConfig(steps=100000))
    done = stop_in_training(start_job(job))
    assert done.code == PAUSED, done.stderr
    step = int(done.of("saved")[0]["path"][-8:])
    with pytest.raises(CheckpointError, match=r"plan\.device\.config\.device_iterations: 1 -> 2"):
        run_here(dataclasses.replace(job, ipu_config={**job.ipu_config, "device_iterations": 2}))
    # Where programs are kept decides no weight, nor does a key that repeats what is derived.
    repeated = {"executable_cache_dir": str(tmp_path / "cache"), "inference_device_iterations": 4}
    same = {**job.ipu_config, **repeated, "gradient_accumulation_steps": 9}
    again = pausing(dataclasses.replace(job, ipu_config=same), "plan")
    assert [event["step"] for event in again.of("step")] == [step + 1]


@pytest.mark.ipu
def test_a_model_trained_on_ipus_carries_its_ipu_config_and_a_config_of_architecture_only(tmp_path):
    """No batch, rate, device or path in config.json; the ipu_config serves the same job again."""
    rows = rows_of(tmp_path / "rows", "question_answering", 12, packed=False)
    config = {"matmul_proportion": 0.25, "random_seed": 0, "executable_cache_dir": str(tmp_path / "cache")}
    job = ipu_job(tmp_path, "finetune", rows, 7, schedule=ScheduleConfig(steps=1), ipu_config=config)
    run_here(job)
    path = Path(job.output) / "ipu_config.json"
    lines = []
    saved = read_ipu_config(read_json(path), say=lines.append)
    assert lines == []  # in the words of today, nothing left to translate
    assert (saved.layers_per_ipu, saved.matmul_proportion, saved.seed) == ([1, 1, 1, 1], 0.25, 0)
    assert saved.gradient_accumulation_steps == 7  # derived, and stated for Optimum, which would take 1
    assert str(tmp_path) not in path.read_text(encoding="utf-8")  # the cache is the host's affair
    architecture = """
        architectures model_type hidden_act pad_token_id position_embedding_type hidden_size num_hidden_layers
        num_attention_heads intermediate_size layer_norm_eps vocab_size max_position_embeddings type_vocab_size
        initializer_range tie_word_embeddings hidden_dropout_prob attention_probs_dropout_prob
    """
    assert set(read_json(Path(job.output) / "config.json")) == set(architecture.split())
    run_here(dataclasses.replace(job, ipu_config=read_json(path)))


def test_speed_is_real_tokens_by_the_time_that_passed(tmp_path, monkeypatch, poptorch):
    """A clock, looked at once a second: at the start, then around each of 4 updates."""
    ticks = itertools.count(100.0)
    monkeypatch.setattr(ipu_model.train.training, "time", SimpleNamespace(perf_counter=lambda: next(ticks)))
    job = ipu_job(tmp_path, "pretrain", rows_of(tmp_path / "rows", "pretrain", 36), 9)
    speeds = [x["real_tokens_per_second"] for x in run_here(job).of("step")]
    manifest, result = read_manifest(Path(job.rows)), result_of(job)
    assert len(speeds) == 4
    assert 2 * sum(speeds) == manifest.real_tokens  # 4 updates of 9 rows are all; two seconds each, no pads
    assert (result.sequences, result.real_tokens) == (manifest.sequences, manifest.real_tokens)
    assert result.train_seconds == 8.0  # from 100 to 108
    assert result.real_tokens_per_second == pytest.approx(manifest.real_tokens / 8)
