"""What params.yaml says of IPUs, batches and optimizers, on its way into the device jobs."""

import dataclasses
import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from ipu_model.core.files import write_json, write_text
from ipu_model.jobs.job import BatchGeometry, Job, JobResult
from ipu_model.rows.format import Manifest
from tasks.downstream.jobs import entry_jobs as of_entries
from tasks.downstream.jobs.entry_jobs import build_finetune_job, build_predict_job
from tasks.jobs import training
from tasks.jobs.training import fingerprint, ipu_config
from tasks.params.entries import find_entry
from tasks.params.overlays import resolve
from tasks.params.strict_yaml import read_yaml, yaml_text
from tasks.pretraining import compile as of_phases
from tasks.pretraining.pretrain import make_pretrain_job
from tasks.stage import artifacts
from tasks.stage.errors import DeviceJobFailed, InputError
from tests.optimizers import optimizer_config
from tests.places import ROOT
from tests.tasks.pretraining.small_training import params_with

ON_IPU = ("device.runtime=ipu", "device.precision=fp16")
FINETUNE = "downstream.squad.finetune"


@pytest.fixture
def checkout(tmp_path):
    for name in ("phase1", "phase2", "squad/train", "squad/dev"):
        kind = "question_answering" if name.startswith("squad") else "pretrain"
        manifest = Manifest(kind, 64, 3, 10, 2000, "0", 0, 100, 150, 5000, {})
        write_text(tmp_path / artifacts.rows_folder(name) / "manifest.json", manifest.to_json())
    (tmp_path / "inputs" / "ipu").mkdir(parents=True)
    return tmp_path


def jobs(params, root, logits=Path("l")):
    squad = find_entry(params, "squad")
    return {
        "phase1": make_pretrain_job("phase1", params, root),
        "phase2": make_pretrain_job("phase2", params, root),
        "finetune": build_finetune_job(squad, params, root),
        "predict": build_predict_job(squad, params, root / artifacts.rows_folder("squad", "dev"), logits, root, root),
    }


ADAMW = optimizer_config(name="adamw", weight_decay=0.01, max_grad_norm=1.0)
LAMB = {"beta1": 0.8, "beta2": 0.9, "eps": 1e-4, "bias_correction": False, "first_moment_precision": "fp16"}
OWN = (
    *("pretrain.phase2.micro_batch_size=8", "pretrain.phase2.loss_scaling=128", "pretrain.optimizer=lamb"),
    *(f"pretrain.{name}={str(value).lower()}" for name, value in LAMB.items()),
    f"{FINETUNE}.micro_batch_size=2",
)
LAID_OVER = (
    *(*ON_IPU, "ipu.phase1={replication_factor: 4}", "ipu.inference_execution=sharded"),
    "downstream.squad.ipu.finetune={replication_factor: 8}",
)
ELSEWHERE = {"ipu_config": None, "executables": None}


@pytest.mark.parametrize(
    ("overrides", "name", "expected"),
    [
        ((), "phase1", {"geometry": BatchGeometry(32, 64), "optimizer": replace(ADAMW, learning_rate=1.5e-3)}),
        ((), "finetune", {"geometry": BatchGeometry(16, 64), "optimizer": replace(ADAMW, learning_rate=1e-3)}),
        ((), "predict", {**ELSEWHERE, "geometry": BatchGeometry(64, 64)}),
        (("device.runtime=cuda",), "phase1", ELSEWHERE),
        (
            OWN,
            "phase2",
            {
                "geometry": BatchGeometry(32, 8),
                "optimizer": replace(ADAMW, name="lamb", learning_rate=1e-3, loss_scaling=128.0, **LAMB),
                "model": None,
            },
        ),
        ((f"{FINETUNE}.optimizer=sgd",), "finetune", {"optimizer": replace(ADAMW, name="sgd"), "model": None}),
        (LAID_OVER, "phase1", {"ipu_config": {"replication_factor": 4, "seed": 0}}),
        (LAID_OVER, "phase2", {"ipu_config": {"replication_factor": 2, "seed": 0}}),
        (LAID_OVER, "finetune", {"ipu_config": {"replication_factor": 8, "seed": 0}}),
        (LAID_OVER, "predict", {"inference_execution": "sharded"}),
    ],
)
def test_a_job_has_what_the_parameters_and_the_file_of_the_ipus_say(checkout, overrides, name, expected):
    (checkout / "inputs" / "ipu" / "ipu_config.json").write_text(json.dumps({"replication_factor": 2, "seed": 0}))
    job = jobs(params_with(*overrides), checkout)[name]
    assert {field: getattr(job, field) for field in expected} == expected


def test_phases_start_from_the_given_model_if_asked_and_go_on_from_the_one_before(checkout):
    params = params_with("base_model.source=folder")
    starts = [make_pretrain_job(phase, params, checkout).init_checkpoint for phase in ("phase1", "phase2")]
    assert starts == [None, str(checkout / artifacts.MODELS / "phase1")]
    given = make_pretrain_job("phase1", params_with(), checkout, base=True)
    assert given.init_checkpoint == str(checkout / artifacts.BASE_MODEL)


@pytest.mark.parametrize(
    ("content", "message"), [(None, "does not exist"), ("{", "is not JSON"), ("[1]", "found list")]
)
def test_an_ipu_config_may_be_a_file_and_is_refused_if_it_cannot_be_read(checkout, content, message):
    params, path = params_with(*ON_IPU, "ipu.config=mine.json"), checkout / "mine.json"
    path.write_text('{"seed": 7}')
    config = ipu_config(params.ipu, {"layers_per_ipu": [1]}, params.device, checkout)
    assert config == {"seed": 7, "layers_per_ipu": [1]}
    path.unlink() if content is None else path.write_text(content)
    with pytest.raises(InputError, match=message):
        ipu_config(params.ipu, params.ipu.phase1, params.device, checkout)


RESULT = JobResult(**dict.fromkeys((field.name for field in dataclasses.fields(JobResult)), 0))


def test_the_job_that_is_compiled_ahead_is_the_one_that_runs_but_for_its_weights(checkout, monkeypatch):
    """What the IPU program is decided by must agree; test_compile_stages.py sees that it does."""
    tuning = (*ON_IPU, f"{FINETUNE}.attention_dropout=0.15", f"{FINETUNE}.micro_batch_size=2")
    made = {}

    def start(job, launcher):
        made[Path(str(job.executables)).name] = job
        write_json(Path(str(job.executables)) / artifacts.EXECUTABLES_RECORD, {"parts": {}})
        return RESULT

    monkeypatch.setattr(training, "run_device_job", start)
    monkeypatch.chdir(checkout)
    write_text(Path(artifacts.PARAMS), yaml_text(resolve(read_yaml(ROOT / "params.yaml"), None, tuning)))
    for stage, item in ((of_phases, "phase1"), (of_phases, "phase2"), (of_entries, "compile@squad")):
        monkeypatch.setattr(sys, "argv", ["compile", item])
        stage.main()
    params = params_with(*tuning)
    free = {"model", "init_checkpoint", "output", "run_folder", "compile_only", "executables"}
    for name, real in jobs(params, Path(), artifacts.logits_file("squad", "dev")).items():
        called = name if name.startswith("phase") else f"squad-{name}"
        ahead = made[called]
        assert (ahead.compile_only, ahead.init_checkpoint) == (True, None)
        assert ahead.executables == ahead.output == real.executables == str(Path("executables", called))
        assert Path(ahead.run_folder) == artifacts.RUNS / f"compile-{called}"
        assert {x.name for x in dataclasses.fields(Job) if getattr(ahead, x.name) != getattr(real, x.name)} <= free
    assert made["squad-predict"].model.attention_dropout == 0.15
    assert made["phase1"].model.attention_dropout == 0.0
    shutil.rmtree("executables")
    artifacts.compile_report("phase1").unlink()
    monkeypatch.setattr(training, "run_device_job", lambda job, launcher: RESULT)
    with pytest.raises(DeviceJobFailed, match=r"podium\.json"):
        training.build_program("phase1", made["phase1"], params.device, Path())
    assert not artifacts.compile_report("phase1").exists(), "a compilation that keeps nothing is no success"


@pytest.mark.parametrize(
    ("config", "same"),
    [
        ({"embedding_serialization_factor": 2}, True),
        ({"serialized_embedding_splits_per_ipu": [2, 0]}, True),
        ({"layers_per_ipu": [1, 1]}, False),
        ({"projection_serialization_factor": 2}, False),
    ],
)
def test_a_run_is_named_by_its_placement_but_not_by_where_programs_are(checkout, config, same):
    job = jobs(params_with(*ON_IPU), checkout)["phase1"]
    assert fingerprint(replace(job, compile_only=True, executables=None)) == fingerprint(job)
    assert (fingerprint(replace(job, ipu_config={**job.ipu_config, **config})) == fingerprint(job)) == same
