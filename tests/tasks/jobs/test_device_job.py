"""The door to the device, with stand-ins for the device's interpreter; real jobs run in test_stages.py."""

import dataclasses
import json
import os
import stat
import sys

import pytest

from ipu_model.jobs.job import OptimizerConfig
from tasks.jobs.device_job import (
    BatchGeometry,
    Job,
    JobResult,
    ModelConfig,
    ScheduleConfig,
    format_event,
    run_device_job,
)
from tasks.jobs.training import optimizer_config as optimizer_of
from tasks.params.sections import OptimizerParams, PhaseParams
from tasks.stage.errors import DeviceJobFailed
from tests.optimizers import optimizer_config
from tests.places import ROOT as PROJECT

RESULT = JobResult(
    kind="pretrain",
    runtime="cpu",
    runtime_reason="asked for",
    precision="fp32",
    steps=3,
    resumed_from_step=0,
    final_loss=2.5,
    final_losses={"mlm_loss": 2.0, "nsp_loss": 0.5},
    sequences=12,
    real_tokens=600,
    train_seconds=2.0,
    compile_seconds=0.0,
    peak_memory_mb=100.0,
)


@pytest.fixture
def job(tmp_path):
    return Job(
        kind="pretrain",
        head="pretraining",
        rows="rows",
        output="model",
        run_folder=str(tmp_path / "run"),
        geometry=BatchGeometry(8),
        model=ModelConfig(vocab_size=100, hidden_size=8, num_heads=2),
        optimizer=optimizer_config(),
        schedule=ScheduleConfig(steps=3),
    )


@pytest.fixture
def interpreter(tmp_path):
    """Makes an executable that is called as an interpreter would be: -m ipu_model job.json."""

    def make(body):
        path = tmp_path / "device-python"
        path.write_text(
            f"#!{sys.executable}\nimport json, os, sys\nassert sys.argv[1:3] == ['-m', 'ipu_model']\n{body}\n"
        )
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return str(path)

    return make


def test_the_result_comes_back_and_events_are_said_in_words(job, interpreter, tmp_path):
    said = []
    step = {
        "event": "step",
        "step": 3,
        "steps": 3,
        "loss": 2.5,
        "learning_rate": 1e-3,
        "real_tokens_per_second": 1234.0,
        "eta_seconds": 0.0,
    }
    python = interpreter(
        f"print('a warning of a library')\nprint({json.dumps(json.dumps(step))})\n"
        "job = json.load(open(sys.argv[3]))\n"
        f"open(os.path.join(job['run_folder'], 'result.json'), 'w').write({RESULT.to_json()!r})"
    )
    assert run_device_job(job, python=python, say=said.append) == RESULT
    assert said == ["[100%] update 3/3  loss 2.5000  learning rate 1.00e-03  1,234 tokens/s  0 s left"]
    assert "a warning of a library" in (tmp_path / "run" / "job.log").read_text()
    assert Job.from_json((tmp_path / "run" / "job.json").read_text()) == job


def test_the_jobs_own_error_is_passed_on(job, interpreter):
    event = json.dumps({"event": "error", "type": "RowsError", "text": "rows of another tokenizer"})
    with pytest.raises(DeviceJobFailed, match="pretrain job: rows of another tokenizer"):
        run_device_job(job, python=interpreter(f"print({event!r}); sys.exit(2)"))


def test_a_crash_repeats_the_last_lines_of_its_log(job, interpreter):
    with pytest.raises(DeviceJobFailed, match=r"(?s)exit code 1 of .*ZeroDivisionError") as error:
        run_device_job(job, python=interpreter("1 / 0"))
    assert "job.log" in str(error.value)


def test_a_killed_process_is_named_by_its_signal(job, interpreter):
    with pytest.raises(DeviceJobFailed, match=r"SIGKILL \(killed; often .*memory\) .*`podium plan` states"):
        run_device_job(job, python=interpreter("import signal; os.kill(os.getpid(), signal.SIGKILL)"))


def test_a_result_of_an_earlier_run_is_not_taken_for_this_ones(job, interpreter, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "result.json").write_text(RESULT.to_json())
    with pytest.raises(DeviceJobFailed, match="ended without"):
        run_device_job(job, python=interpreter("pass"))


def test_an_interpreter_that_is_not_there_names_the_variable(job, monkeypatch):
    monkeypatch.setenv("PODIUM_DEVICE_PYTHON", "/nowhere/python")
    with pytest.raises(DeviceJobFailed, match=r"/nowhere/python cannot be started.*PODIUM_DEVICE_PYTHON"):
        run_device_job(job)


def test_a_launcher_comes_before_the_interpreter_and_no_shell_reads_it(job, interpreter, tmp_path):
    python = interpreter(
        "job = json.load(open(sys.argv[3]))\n"
        f"open(os.path.join(job['run_folder'], 'result.json'), 'w').write({RESULT.to_json()!r})"
    )
    launcher = tmp_path / "launch it"
    launcher.write_text(
        f"#!{sys.executable}\nimport json, os, sys\n"
        f"json.dump(sys.argv[1:], open({str(tmp_path / 'seen.json')!r}, 'w'))\nos.execv(sys.argv[3], sys.argv[3:])\n"
    )
    launcher.chmod(launcher.stat().st_mode | stat.S_IXUSR)
    words = [str(launcher), "--num-replicas", "4; $HOME *"]
    assert run_device_job(job, python=python, launcher=words, say=lambda text: None) == RESULT
    job_file = str(tmp_path / "run" / "job.json")
    assert json.loads((tmp_path / "seen.json").read_text()) == [
        "--num-replicas",
        "4; $HOME *",
        python,
        "-m",
        "ipu_model",
        job_file,
    ]


def test_a_launcher_that_is_not_there_is_named_with_its_knobs(job):
    with pytest.raises(DeviceJobFailed, match=r"/nowhere/poprun cannot be started.*device\.launcher"):
        run_device_job(job, launcher=["/nowhere/poprun", "-x"])


@pytest.mark.parametrize("own", [None, "", "/sdk/python:/sdk/more"])
def test_the_hosts_pythonpath_stays_behind_the_project(job, interpreter, tmp_path, monkeypatch, own):
    monkeypatch.delenv("PYTHONPATH", raising=False)
    if own is not None:
        monkeypatch.setenv("PYTHONPATH", own)
    python = interpreter(
        "job = json.load(open(sys.argv[3]))\n"
        f"open({str(tmp_path / 'seen')!r}, 'w').write(os.environ['PYTHONPATH'])\n"
        f"open(os.path.join(job['run_folder'], 'result.json'), 'w').write({RESULT.to_json()!r})"
    )
    run_device_job(job, python=python, say=lambda text: None)
    assert (tmp_path / "seen").read_text() == os.pathsep.join([str(PROJECT), *([own] if own else [])])


def test_the_plan_is_one_line_of_single_values():
    plan = {"kind": "pretrain", "updates": 4, "device": {"ipus": 8, "instances": 1, "placement": {"layers": [0, 1]}}}
    assert format_event({"event": "plan", "plan": plan}) == "plan: kind pretrain, updates 4, ipus 8, instances 1"
    assert format_event({"event": "plan", "kind": "predict", "device": {}}) == "plan: kind predict"


def test_durations_are_for_people():
    event = {
        "event": "step",
        "step": 30,
        "steps": 400,
        "loss": 7.0,
        "learning_rate": 2e-3,
        "real_tokens_per_second": 45678.9,
        "eta_seconds": 125.0,
    }
    assert format_event(event) == (
        "update 30/400  loss 7.0000  learning rate 2.00e-03  45,679 tokens/s  2 min 05 s left"
    )
    assert (
        format_event({"event": "predicted", "rows": 5, "of": 20, "eta_seconds": 75.2}) == "rows 5/20  1 min 15 s left"
    )
    first = {"event": "progress", "update": 1, "of": 400, "loss": 7.5, "eta_seconds": 8000.4}
    assert format_event(first) == "update 1/400  loss 7.5000  2 h 13 min left"
    assert format_event({"event": "saved", "path": "x"}) is None


def test_the_optimizer_of_a_job_has_a_default_only_for_what_no_parameter_states() -> None:
    params, batch = OptimizerParams(), PhaseParams()
    defaults = {field.name for field in dataclasses.fields(OptimizerConfig) if field.default is not dataclasses.MISSING}
    assert defaults == {"accumulator_precision", "momentum"}
    assert defaults.isdisjoint({*OptimizerParams.model_fields, *PhaseParams.model_fields})
    assert optimizer_of(params, batch).weight_decay == params.weight_decay
