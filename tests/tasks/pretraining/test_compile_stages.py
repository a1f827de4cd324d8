"""The compile stages under a real DVC: built on one host, restored on another, and never the cause of a retraining."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ipu_model.core.files import read_json, sha256_of, write_json, write_text
from tasks.params.overlays import resolve
from tasks.params.strict_yaml import read_yaml
from tasks.plan.stage_kinds import RESOLVED, hash_of_parameters
from tasks.plan.stages import define
from tasks.plan.writing import write_plan
from tasks.stage import artifacts
from tasks.stage.row_folders import HELD_OUT
from tests.ipu_model.tiny_jobs import make_columns, write_rows
from tests.places import ROOT
from tests.tasks.downstream.entries import write_parameters

DOUBLE = ROOT / "tests" / "doubles" / "poptorch_double"
STAGES = ("compile_pretrain", "compile", "pretrain", "finetune", "predict")
TUNED = ("finetune", "predict")
TINY = (
    *("device.runtime=ipu", "device.precision=fp32", "device.micro_batch_size=1"),
    "ipu.phase1={layers_per_ipu: [1, 1], matmul_proportion: 0.2}",
    *(f"{job}={{layers_per_ipu: [1, 1]}}" for job in ("ipu.phase2", *map("downstream.squad.ipu.{}".format, TUNED))),
    *("model.hidden_size=8", "model.num_heads=2", "model.intermediate_size=16", "pretrain.max_grad_norm=null"),
    *("pretrain.phase1.steps=2", "pretrain.phase1.global_batch_size=36"),
    *("pretrain.phase2.steps=2", "pretrain.phase2.global_batch_size=48"),
    *("downstream.squad.finetune.max_grad_norm=null", "downstream.squad.finetune.global_batch_size=36"),
)
DEVICE_STAGES = ("pretrain@phase1", "pretrain@phase2", "finetune@squad", "predict@squad")
COMPILE_STAGES = ("compile_pretrain@phase1", "compile_pretrain@phase2", "compile@squad")
JOBS = ("phase1", "phase2", "squad-finetune", "squad-predict")
CONFIG = '[core]\n    no_scm = true\n    analytics = false\n    remote = store\n[remote "store"]\n    url = {}\n'


class Host:
    """A checkout on a host of its own: rows that were made and checked, the stages that use the device, one remote."""

    def __init__(self, folder, remote):
        self.folder, self.live = folder, folder.parent / f"{folder.name}-live"
        folder.mkdir()
        for name in ("tasks", "ipu_model"):
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / ".dvcignore", folder)
        (folder / "inputs" / "ipu").mkdir(parents=True)
        self.set()
        for name in ("phase1", "phase2", "squad/train", "squad/dev"):
            kind = "question_answering" if "/" in name else "pretrain"
            write_rows(folder / artifacts.rows_folder(name), kind, make_columns(kind, 40))
        write_rows(folder / artifacts.rows_folder("phase1") / HELD_OUT, "pretrain", make_columns("pretrain", 9, seed=8))
        for name in ("phase1", "phase2", "squad-rows"):
            write_json(folder / artifacts.validation_report(name), {"valid": True})
        write_json(folder / artifacts.TOKENIZER / "tokenizer.json", {})
        write_text(folder / ".dvc/config", CONFIG.format(remote))

    def set(self, *overrides):
        """Write params.yaml, and a dvc.yaml that has STAGES alone."""
        values = resolve(read_yaml(ROOT / "params.yaml"), None, [*TINY, *overrides])
        definitions = define(write_parameters(self.folder, values))
        write_plan(self.folder, {name: definitions[name] for name in STAGES if name in definitions})

    def dvc(self, *words):
        """Run DVC; its output."""
        home = self.folder.parent / "dvc"
        environment = {
            **os.environ,
            **{f"DVC_{name}_DIR": str(home / name) for name in ("SITE_CACHE", "GLOBAL_CONFIG", "SYSTEM_CONFIG")},
            **{"PODIUM_THREADS": "1", "PODIUM_DEVICE_PYTHON": sys.executable},
            "PODIUM_EXECUTABLE_CACHE": str(self.live),
            RESOLVED: hash_of_parameters(self.folder),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(DOUBLE),
        }
        command = [sys.executable, "-m", "dvc", *words]
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        done = subprocess.run(command, cwd=self.folder, env=environment, text=True, **streams)
        assert done.returncode == 0, done.stdout
        return str(done.stdout)

    def report(self, job="phase1"):
        return dict(read_json(self.folder / artifacts.compile_report(job)))


@pytest.fixture(scope="module")
def builder(tmp_path_factory):
    """A host that built the programs of four jobs and of evaluations of phase 1, trained nothing, and pushed them."""
    folder = tmp_path_factory.mktemp("hosts")
    host = Host(folder / "builder", folder / "remote")
    host.dvc("repro", "--pull", "compile_pretrain", "compile")
    host.dvc("push", "--run-cache")
    return host


@pytest.fixture(scope="module")
def trainer(builder):
    host = Host(builder.folder.with_name("trainer"), builder.folder.with_name("remote"))
    return host, host.dvc("repro", "--pull", "predict@squad")


@pytest.mark.soak
def test_programs_are_built_before_there_are_weights_and_another_host_restores_them(builder, trainer):
    assert not (builder.folder / artifacts.MODELS).exists()
    assert len(list(builder.live.glob("*/*.popef"))) == 5
    assert len(list((builder.folder / artifacts.EXECUTABLES / "phase1").glob("evaluation/*.popef"))) == 1
    report, (host, output) = builder.report(), trainer
    assert (set(report), report["job"]) == ({"job", "parts", "program"}, "phase1")
    assert not {"poptorch", "torch", "poplar_sdk", "ipu_version", "instances"} & set(report["parts"])
    assert report["program"] != builder.report("phase2")["program"]
    assert [stage for stage in COMPILE_STAGES if f"Stage '{stage}' is cached - skipping run" not in output] == []
    assert output.count("loaded from the cache, nothing was compiled") == 5
    assert "miss" not in output
    for job in JOBS:
        assert host.report(job) == builder.report(job)
        figures = f"measurements/{'pretrain-' if job.startswith('phase') else ''}{job}.json"
        assert read_json(host.folder / figures)["program"] == f"restored from executables/{job}"
    assert read_json(host.folder / "metrics/pretrain-phase1.json")["held_out"]["rows"] == 9
    (carried,) = (host.folder / artifacts.EXECUTABLES / "phase1").glob("*.popef")
    (live,) = host.live.glob(f"*/{carried.name}")
    assert live.stat().st_ino != carried.stat().st_ino, "nothing that happens to it reaches DVC's cache"
    assert live.read_bytes() == carried.read_bytes()


@pytest.mark.soak
def test_what_decides_a_program_builds_and_trains_again_and_nothing_else_does(trainer):
    host, _ = trainer
    record = host.folder / artifacts.EXECUTABLES / "phase1" / artifacts.EXECUTABLES_RECORD
    before = sha256_of(record)
    host.dvc("repro", "--force", "--single-item", "compile_pretrain@phase1")
    assert sha256_of(record) != before, "built again with other bytes"
    output = host.dvc("repro", "predict@squad")
    assert [
        stage for stage in (*DEVICE_STAGES, *COMPILE_STAGES) if f"Stage '{stage}' didn't change" not in output
    ] == []

    manifest = host.folder / artifacts.rows_folder("phase1") / "manifest.json"
    write_json(manifest, {**read_json(manifest), "seed": 12345})
    rates = ("pretrain.phase1.learning_rate=2e-3", "pretrain.phase1.steps=4", "pretrain.phase1.loss_scaling=8.0")
    host.set(*rates, "pretrain.seed=9", "downstream.squad.finetune.seed=9")
    output = host.dvc("repro", "--dry", "finetune@squad")
    assert [stage for stage in COMPILE_STAGES if f"Stage '{stage}' didn't change" not in output] == []
    assert [stage for stage in DEVICE_STAGES[:3] if f"Running stage '{stage}'" not in output] == []
    assert "loaded from the cache, nothing was compiled" in host.dvc("repro", "pretrain@phase1")
    host.set("ipu.phase1.matmul_proportion=0.3")
    output = host.dvc("repro", "--dry", "pretrain@phase1")
    assert all(f"Running stage '{stage}@phase1'" in output for stage in ("compile_pretrain", "pretrain"))
