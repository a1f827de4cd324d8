"""What params.yaml says of IPUs, batches and optimizers, on its way into the device jobs."""

from __future__ import annotations

import dataclasses
import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ipu_model.core.files import write_json, write_text
from ipu_model.jobs.job import BatchGeometry, Job, JobResult
from ipu_model.rows.format import Manifest
from tasks.downstream.jobs import entry_jobs as of_entries
from tasks.downstream.jobs.entry_jobs import build_finetune_job, build_predict_job
from tasks.jobs import training
from tasks.jobs.training import fingerprint, ipu_config
from tasks.params.entries import Entry, find_entry
from tasks.params.overlays import resolve
from tasks.params.schema import Params
from tasks.params.strict_yaml import read_yaml, yaml_text
from tasks.pretraining import compile as of_phases
from tasks.pretraining.pretrain import make_pretrain_job
from tasks.stage import artifacts
from tasks.stage.errors import DeviceJobFailed, InputError, ParamsError
from tests.optimizers import optimizer_config
from tests.places import ROOT
from tests.tasks.pretraining.small_training import params_with

ON_IPU = ("device.runtime=ipu", "device.precision=fp16")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for name in ("phase1", "phase2", "squad/train", "squad/dev"):
        kind = "question_answering" if name.startswith("squad") else "pretrain"
        manifest = Manifest(kind, 64, 3, 10, 2000, "0", 0, 100, 150, 5000, {})
        write_text(tmp_path / artifacts.rows_folder(name) / "manifest.json", manifest.to_json())
    (tmp_path / "inputs" / "ipu").mkdir(parents=True)
    return tmp_path


def squad(params: Params) -> Entry:
    return find_entry(params, "squad")


def jobs(params: Params, root: Path, **options: Any) -> dict[str, Job]:
    return {
        "phase1": make_pretrain_job("phase1", params, root, **options),
        "phase2": make_pretrain_job("phase2", params, root, **options),
        "finetune": build_finetune_job(squad(params), params, root, **options),
        "predict": build_predict_job(squad(params), params, root / "r", root / "l", root, root),
    }


ADAMW = optimizer_config(name="adamw", weight_decay=0.01, max_grad_norm=1.0)
LAMB = optimizer_config(
    name="lamb",
    weight_decay=0.01,
    beta1=0.8,
    beta2=0.9,
    eps=1e-4,
    bias_correction=False,
    max_grad_norm=1.0,
    loss_scaling=128.0,
    first_moment_precision="fp16",
)
OWN = (
    *("pretrain.phase2.micro_batch_size=8", "pretrain.phase2.loss_scaling=128", "pretrain.optimizer=lamb"),
    *("pretrain.beta1=0.8", "pretrain.beta2=0.9", "pretrain.eps=1e-4", "pretrain.bias_correction=false"),
    *("pretrain.first_moment_precision=fp16", "downstream.squad.finetune.micro_batch_size=2"),
)
LAID_OVER = (
    *(*ON_IPU, "ipu.phase1={replication_factor: 4}", "ipu.inference_execution=sharded"),
    "downstream.squad.ipu.finetune={replication_factor: 8}",
)
ELSEWHERE = {"ipu_config": None, "executables": None}


@pytest.mark.parametrize(
    ("overrides", "name", "expected"),
    [
        (
            (),
            "phase1",
            {**ELSEWHERE, "geometry": BatchGeometry(32, 64), "optimizer": replace(ADAMW, learning_rate=1.5e-3)},
        ),
        ((), "phase2", {**ELSEWHERE, "geometry": BatchGeometry(32, 64), "model": None}),
        (
            (),
            "finetune",
            {
                **ELSEWHERE,
                "geometry": BatchGeometry(16, 64),
                "optimizer": replace(ADAMW, learning_rate=1e-3),
                "model": None,
            },
        ),
        ((), "predict", {**ELSEWHERE, "geometry": BatchGeometry(64, 64)}),
        (("device.runtime=cuda",), "phase1", ELSEWHERE),
        (OWN, "phase2", {"geometry": BatchGeometry(32, 8), "optimizer": replace(LAMB, learning_rate=1e-3)}),
        (("downstream.squad.finetune.optimizer=sgd",), "finetune", {"optimizer": replace(ADAMW, name="sgd")}),
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


def test_jobs_start_from_the_given_model_and_go_on_from_the_one_before(checkout):
    given = str(checkout / artifacts.BASE_MODEL)
    found = jobs(params_with("base_model.source=folder"), checkout)
    assert found["phase1"].init_checkpoint is None
    assert make_pretrain_job("phase1", params_with(), checkout, base=True).init_checkpoint == given
    assert found["phase2"].init_checkpoint == str(checkout / artifacts.MODELS / "phase1")
    assert found["finetune"].init_checkpoint == str(checkout / artifacts.MODELS / "phase2")
    alone = jobs(params_with("base_model.source=folder", "pretrain.enabled=false"), checkout)
    assert alone["finetune"].init_checkpoint == given


@pytest.mark.parametrize(
    ("content", "said"),
    [(None, "does not exist"), ("{", "is not JSON"), ("[1]", "must contain a JSON object, found list")],
)
def test_an_ipu_config_may_be_a_file_and_is_refused_if_it_cannot_be_read(checkout, content, said):
    params = params_with(*ON_IPU, "ipu.config=mine.json")
    (checkout / "mine.json").write_text('{"seed": 7}')
    found = ipu_config(params.ipu, {"layers_per_ipu": [1]}, params.device, checkout)
    assert found == {"seed": 7, "layers_per_ipu": [1]}
    (checkout / "mine.json").unlink() if content is None else (checkout / "mine.json").write_text(content)
    with pytest.raises(InputError, match=said):
        ipu_config(params.ipu, params.ipu.phase1, params.device, checkout)


RESULT = JobResult(
    kind="pretrain",
    runtime="ipu",
    runtime_reason="asked for",
    precision="fp16",
    steps=0,
    resumed_from_step=0,
    final_loss=None,
    final_losses={},
    sequences=0,
    real_tokens=0,
    train_seconds=0.0,
    compile_seconds=567.0,
    peak_memory_mb=1.0,
)


def compiled_ahead(checkout: Path, overrides: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> dict[str, Job]:
    """The jobs that the stages of programs start in a checkout, by the name of the program."""
    started = {}

    def start(job: Job, launcher: Any) -> JobResult:
        started[Path(str(job.executables)).name] = job
        write_json(Path(str(job.executables)) / artifacts.EXECUTABLES_RECORD, {"parts": {}})
        return RESULT

    monkeypatch.setattr(training, "run_device_job", start)
    monkeypatch.chdir(checkout)
    write_text(Path(artifacts.PARAMS), yaml_text(resolve(read_yaml(ROOT / "params.yaml"), None, overrides)))
    for stage, item in ((of_phases, "phase1"), (of_phases, "phase2"), (of_entries, "compile@squad")):
        monkeypatch.setattr(sys, "argv", ["compile", item])
        stage.main()
    return started


def test_the_job_that_is_compiled_ahead_is_the_one_that_runs_but_for_its_weights(checkout, monkeypatch):
    """What the IPU program is decided by must agree; test_compile_stages.py sees that it does."""
    tuning = ("downstream.squad.finetune.attention_dropout=0.15", "downstream.squad.finetune.micro_batch_size=2")
    made = compiled_ahead(checkout, (*ON_IPU, *tuning), monkeypatch)
    params, root = params_with(*ON_IPU, *tuning), Path()
    real = jobs(params, root)
    rows = root / artifacts.rows_folder("squad", "dev")
    real["predict"] = build_predict_job(squad(params), params, rows, artifacts.logits_file("squad", "dev"), root, root)
    free = ("model", "init_checkpoint", "output", "run_folder", "compile_only", "executables")
    for name, one in real.items():
        called = name if name.startswith("phase") else f"squad-{name}"
        ahead = made[called]
        assert ahead.compile_only
        assert ahead.init_checkpoint is None
        assert ahead.executables == ahead.output == one.executables == str(Path("executables", called))
        assert Path(ahead.run_folder) == artifacts.RUNS / f"compile-{called}"
        differing = [x.name for x in dataclasses.fields(Job) if getattr(ahead, x.name) != getattr(one, x.name)]
        assert set(differing) <= set(free), name
    assert made["squad-predict"].model.attention_dropout == 0.15
    assert made["phase1"].model.attention_dropout == 0.0
    shutil.rmtree("executables")
    artifacts.compile_report("phase1").unlink()
    monkeypatch.setattr(training, "run_device_job", lambda job, launcher: RESULT)
    with pytest.raises(DeviceJobFailed, match=r"podium\.json"):
        training.build_program("phase1", made["phase1"], params.device, root)
    assert not artifacts.compile_report("phase1").exists(), "a compilation that keeps nothing is no success"


def test_a_run_is_named_by_its_placement_but_not_by_where_programs_are_or_pieces_of_the_word_table(checkout):
    job = jobs(params_with(*ON_IPU), checkout)["phase1"]

    def name_with(**config: Any) -> str:
        return fingerprint(replace(job, ipu_config={**job.ipu_config, **config}))

    assert fingerprint(replace(job, compile_only=True, executables=None)) == fingerprint(job)
    for same in ({"embedding_serialization_factor": 2}, {"serialized_embedding_splits_per_ipu": [2, 0]}):
        assert name_with(**same) == fingerprint(job)
    for other in ({"layers_per_ipu": [1, 1]}, {"projection_serialization_factor": 2}):
        assert name_with(**other) != fingerprint(job)


FINETUNE = "downstream.squad.finetune"


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("pretrain.phase1.loss_scaling=0", "greater than 0"),
        (f"{FINETUNE}.beta1=1.0", "less than 1"),
        ("ipu.phase1=3", "valid dictionary"),
        ("ipu.phase9=null", "did you mean phase"),
        ("model.family=roberta", "found roberta: set pretrain_rows.next_sentence"),
        (f"{FINETUNE}.keep=best", "set evaluate_every_updates"),
        (f"{FINETUNE}.patience=2", "set evaluate_every_updates"),
        (f"{FINETUNE}.evaluate_every_updates=10", "downstream.squad: .* set rows.held_out_fraction"),
        ("pretrain_rows.held_out_fraction=0.6", "less than or equal to 0.5"),
    ],
)
def test_parameters_that_no_job_can_have_are_refused(override, said):
    with pytest.raises(ParamsError, match=said):
        params_with(override)
