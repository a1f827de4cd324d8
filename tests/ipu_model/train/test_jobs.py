"""`python -m ipu_model job.json` as a process: what it writes, what it refuses, and how it survives its end."""

import dataclasses
import resource
import signal
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from safetensors.torch import load_file
from tiny_jobs import (
    finish,
    make_columns,
    make_job,
    output_bytes,
    pausing,
    result_of,
    run_here,
    start,
    start_job,
    stop_in_training,
    until,
    wait_for_end,
    write_job,
    write_rows,
)

from ipu_model.core.errors import CheckpointError, DeviceJobError, NonFiniteLoss, NonFiniteWeights, RowsError
from ipu_model.distributed.process import PAUSED
from ipu_model.jobs.job import BatchGeometry, ScheduleConfig
from ipu_model.optim.optimizers import _has_fused_adamw
from ipu_model.runtimes.runtime import StepMetrics
from ipu_model.runtimes.torch_device import TorchRuntime
from ipu_model.train.history import History
from ipu_model.train.training import TrainingState
from tests.optimizers import optimizer_config

ENDLESS = ScheduleConfig(steps=100000)


def checkpoints_of(job):
    return sorted(path.name for path in Path(job.run_folder).glob("step-*"))


def test_pretraining_fine_tuning_and_prediction_follow_one_another(tmp_path, pretrain_rows, answer_rows):
    first = make_job(tmp_path / "a", "pretrain", pretrain_rows)
    done = run_here(first)
    assert done.events[0]["event"] == "plan"
    assert [x["step"] for x in done.of("step")] == [3, 6]
    assert sorted(p.name for p in Path(first.output).iterdir()) == ["config.json", "model.safetensors", "podium.json"]
    assert checkpoints_of(first) == []

    second = make_job(tmp_path / "b", "finetune", answer_rows, model=None, init_checkpoint=first.output)
    done = run_here(second)
    assert any("qa_outputs.weight, qa_outputs.bias: initialised" in x["text"] for x in done.of("message"))
    result = result_of(second)
    assert (result.steps, result.runtime, result.precision) == (6, "cpu", "fp32")
    assert result.plan == {k: v for k, v in done.of("plan")[0].items() if k != "event"}
    lines = (Path(second.run_folder) / "history.csv").read_text().splitlines()
    assert lines[0] == "step,loss,start_loss,end_loss,learning_rate"
    last = [float(x) for x in lines[-1].split(",")]
    assert last[0] == 6
    assert last[1] == pytest.approx((last[2] + last[3]) / 2, rel=1e-6)
    assert result.final_loss == pytest.approx(last[1], rel=1e-6)
    assert result.foretold["memory"]["measured"] == result.peak_memory_mb * 2**20

    third = make_job(tmp_path / "c", "predict", answer_rows, init_checkpoint=second.output)
    run_here(third)
    logits = pa.ipc.open_file(third.output).read_all()
    features = make_columns("question_answering", 20, seed=1)["feature_ids"]
    assert logits.column("feature_id").to_pylist() == list(range(features.max() + 1))
    assert len(logits.column("start_logits")[0]) == len(logits.column("end_logits")[0]) > 1


@pytest.mark.skipif(not _has_fused_adamw("cpu"), reason="this torch has no fused AdamW for CPUs, and takes its own")
def test_what_compiles_nothing_waits_for_no_compiler(tmp_path, pretrain_rows, answer_rows):
    """Torch's own optimizers load its compiler, which takes as long as torch itself; so do weights drawn on `meta`."""
    first = make_job(tmp_path / "a", "pretrain", pretrain_rows)
    run_here(first)
    job = make_job(tmp_path / "b", "finetune", answer_rows, model=None, init_checkpoint=first.output)
    done = finish(start_job(job, {"PYTHONPROFILEIMPORTTIME": "1"}))
    assert done.code == 0
    assert "torch.nn.modules" in done.stderr
    assert "torch._dynamo" not in done.stderr


def test_a_slow_training_tells_its_time_left_between_windows_without_its_first_update(tmp_path):
    events = []
    training = TrainingState(None, 100)
    history = History(tmp_path, [], 10, lambda *_, **event: events.append(event))
    training.metrics, training.learning_rate = StepMetrics(1.0, {}, 1, 1, 1.0), 0.1
    history.start(training)
    for done, seconds in ((1, 12.0), (2, 16.0), (3, 20.0), (4, 24.0)):
        training.totals.updates, training.totals.seconds = done, seconds
        history.after_step(training)
    assert [(event["update"], event["eta_seconds"]) for event in events] == [(1, 1188.0), (3, 388.0)]


def test_a_run_killed_and_restarted_ends_as_one_that_was_not(tmp_path, pretrain_rows):
    """Bit for bit, dropout included; windows of 3 updates stay open across checkpoints every 2."""
    straight, killed = (
        make_job(tmp_path / name, "pretrain", pretrain_rows, schedule=ScheduleConfig(steps=60)) for name in "ab"
    )
    run_here(straight)
    process = start_job(killed)
    until(process, "saved", "step-00000008")
    process.kill()
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert not Path(killed.output).exists()
    run_here(killed)
    assert 8 <= result_of(killed).resumed_from_step < 60
    assert output_bytes(killed) == output_bytes(straight)


def test_sigterm_finishes_the_update_saves_and_exits_as_paused(tmp_path, pretrain_rows):
    job = make_job(tmp_path / "a", "pretrain", pretrain_rows, schedule=ENDLESS, checkpoint_every_updates=0)
    done = stop_in_training(start_job(job))
    assert done.code == PAUSED
    [saved] = done.of("saved")
    assert Path(saved["path"]).is_dir()
    assert not Path(job.output).exists()
    step = int(saved["path"][-8:])
    assert (done.events[-1]["event"], f"update {step} of 100000" in done.events[-1]["text"]) == ("paused", True)
    with pytest.raises(CheckpointError, match=r"schedule\.steps: 100000 -> 100001"):
        run_here(dataclasses.replace(job, schedule=ScheduleConfig(steps=100001)))
    # Where it logs and writes is not part of the run: it continues, from the same update.
    elsewhere = dataclasses.replace(job, log_every_updates=1, output=str(tmp_path / "elsewhere"))
    again = pausing(elsewhere, "plan")
    assert any(event["text"] == f"continuing after update {step} of 100000" for event in again.of("message"))
    assert [event["step"] for event in again.of("step")] == [step + 1]


PARENT = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-m", "ipu_model", sys.argv[1]], stdout=subprocess.PIPE)
child.stdout.readline()
print(child.pid, flush=True)
child.stdout.read()
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="PR_SET_PDEATHSIG is of Linux")
def test_a_trainer_ends_when_its_parent_is_killed(tmp_path, pretrain_rows):
    job = make_job(tmp_path / "a", "pretrain", pretrain_rows, schedule=ENDLESS)
    parent = start([sys.executable, "-c", PARENT, write_job(job)])
    child = int(parent.stdout.readline())
    parent.kill()
    parent.wait()  # and not for the child, which has its errors
    wait_for_end([child])
    assert list(Path(job.run_folder).glob("step-*[0-9]"))  # SIGTERM from the kernel: a checkpoint was written


def test_a_loss_that_is_not_finite_stops_before_anything_is_saved(tmp_path, pretrain_rows):
    broken = optimizer_config(learning_rate=1e25, max_grad_norm=None)
    job = make_job(tmp_path / "a", "pretrain", pretrain_rows, optimizer=broken, checkpoint_every_updates=1)
    with pytest.raises(NonFiniteLoss, match="rows ") as caught:
        run_here(job)
    assert not Path(job.output).exists()
    for path in Path(job.run_folder).glob("step-*"):
        assert int(path.name[5:]) < caught.value.step
        assert all(bool(x.isfinite().all()) for x in load_file(str(path / "model.safetensors")).values())


def test_weights_that_are_not_finite_stop_the_run_before_they_are_saved(tmp_path, pretrain_rows, monkeypatch):
    """As on a device that tells no gradient norm: update 4 breaks a weight, its loss was computed before."""
    train_step, updates = TorchRuntime.train_step, []

    def breaking(self, batch, learning_rate):
        metrics = train_step(self, batch, learning_rate)
        updates.append(learning_rate)
        if len(updates) == 4:
            weights = self.state_dict()
            weights["bert.pooler.dense.bias"][3] = float("inf")
            self.load_state_dict(weights)
        return metrics

    monkeypatch.setattr(TorchRuntime, "train_step", breaking)
    job = make_job(tmp_path / "a", "pretrain", pretrain_rows)
    with pytest.raises(NonFiniteWeights, match=r"update 4 .* bert\.pooler\.dense\.bias"):
        run_here(job)
    assert checkpoints_of(job) == ["step-00000002"]
    assert not Path(job.output).exists()


def test_rows_of_another_tokenizer_than_the_weights_are_refused(tmp_path, pretrain_rows):
    first = make_job(tmp_path / "a", "pretrain", pretrain_rows, schedule=ScheduleConfig(steps=0))
    run_here(first)
    write_rows(tmp_path / "other", "question_answering", make_columns("question_answering", 20), tokenizer="u" * 64)
    job = make_job(tmp_path / "b", "finetune", tmp_path / "other", model=None, init_checkpoint=first.output)
    with pytest.raises(RowsError, match=r"tokenizer\.source"):
        run_here(job)


def test_a_disk_that_takes_no_more_is_a_clear_error_and_the_next_run_continues(tmp_path, pretrain_rows):
    job = make_job(tmp_path / "a", "pretrain", pretrain_rows)
    # Without byte code: Python takes a short write for a whole one, and would keep it in this checkout.
    full = start(
        [sys.executable, "-m", "ipu_model", write_job(job)],
        {"PYTHONDONTWRITEBYTECODE": "1"},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192)),
    )
    done = finish(full)
    assert done.code == 1
    assert "disk has free space" in done.of("error")[0]["text"]
    assert "model.safetensors" in done.of("error")[0]["text"]
    assert checkpoints_of(job) == []
    run_here(job)
    assert Path(job.output).is_dir()


def test_a_model_that_does_not_fit_on_the_disk_leaves_the_checkpoints_and_only_it_is_written_again(
    tmp_path, pretrain_rows, monkeypatch
):
    job = make_job(tmp_path / "a", "pretrain", pretrain_rows)

    def full(folder, *_):
        (folder / "model.safetensors").write_bytes(b"half")
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as broken:
        broken.setattr("ipu_model.train.job_runner.write_model", full)
        with pytest.raises(OSError, match="No space left"):
            run_here(job)
    assert sorted(path.name for path in Path(job.output).parent.iterdir()) == ["run"]
    assert checkpoints_of(job) == ["step-00000004", "step-00000006"]
    assert run_here(job).of("step") == []
    assert (Path(job.output) / "model.safetensors").is_file()


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"geometry": BatchGeometry(12, 4, replication_factor=2)}, "ConfigError", "number of processes is 1"),
        ({"precision": "fp16"}, "ConfigError", "fp32, bf16 or auto"),
        ({"head": "question_answering"}, "ConfigError", "masked_lm or pretraining"),
        ({"log_every_updates": 0}, "ConfigError", "log_every_updates"),
        ({"checkpoint_every_minutes": -1.0}, "ConfigError", "checkpoint_every_minutes"),
        ({"geometry": BatchGeometry(1000)}, "RowsError", "global_batch_size"),
        ({"init_checkpoint": "nowhere"}, "CheckpointError", "nowhere"),
        ({"rows": "nowhere"}, "RowsError", "manifest.json"),
    ],
)
def test_a_job_that_cannot_be_run_is_refused_before_any_training(tmp_path, pretrain_rows, changes, error, message):
    job = make_job(tmp_path / "a", "pretrain", pretrain_rows, **changes)
    with pytest.raises(DeviceJobError, match=message) as caught:
        run_here(job)
    assert type(caught.value).__name__ == error
    assert not Path(job.output).exists()


@pytest.mark.parametrize(
    ("text", "message"), [("{", "is not JSON"), ('{"kind": "pretrain"}', "job.head is missing"), (None, "is missing")]
)
def test_a_job_file_that_cannot_be_read_exits_with_2(tmp_path, text, message):
    if text is not None:
        (tmp_path / "job.json").write_text(text)
    done = finish(start([sys.executable, "-m", "ipu_model", str(tmp_path / "job.json")]))
    assert done.code == 2
    assert message in done.of("error")[0]["text"]
