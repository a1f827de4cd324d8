"""The compile stages under a real DVC: built on one host, restored on another, and never the cause of a retraining."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ipu_model.core.files import sha256_of, write_json
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
TINY = (
    "device.runtime=ipu",
    "device.precision=fp32",
    "device.micro_batch_size=1",
    "ipu.phase1={layers_per_ipu: [1, 1], matmul_proportion: 0.2}",
    "ipu.phase2={layers_per_ipu: [1, 1]}",
    "downstream.squad.ipu.finetune={layers_per_ipu: [1, 1]}",
    "downstream.squad.ipu.predict={layers_per_ipu: [1, 1]}",
    "model.hidden_size=8",
    "model.num_heads=2",
    "model.intermediate_size=16",
    "pretrain.max_grad_norm=null",
    "pretrain.phase1.steps=2",
    "pretrain.phase1.global_batch_size=36",
    "pretrain.phase2.steps=2",
    "pretrain.phase2.global_batch_size=48",
    "downstream.squad.finetune.max_grad_norm=null",
    "downstream.squad.finetune.global_batch_size=36",
)
DEVICE_STAGES = ("pretrain@phase1", "pretrain@phase2", "finetune@squad", "predict@squad")
JOBS = {"phase1": "compile_pretrain@phase1", "phase2": "compile_pretrain@phase2"} | dict.fromkeys(
    ("squad-finetune", "squad-predict"), "compile@squad"
)
"""Folder of a program -> the stage that builds it."""


class Host:
    """A checkout on a host of its own: rows that were made and checked, the stages that use the device, one remote."""

    def __init__(self, folder: Path, remote: Path) -> None:
        self.folder, self.live = folder, folder.parent / f"{folder.name}-live"
        folder.mkdir()
        for name in ("tasks", "ipu_model"):
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / ".dvcignore", folder)
        (folder / "inputs" / "ipu").mkdir(parents=True)
        self.set()
        for name, kind in (
            ("phase1", "pretrain"),
            ("phase2", "pretrain"),
            ("squad/train", "question_answering"),
            ("squad/dev", "question_answering"),
        ):
            write_rows(folder / artifacts.rows_folder(name), kind, make_columns(kind, 40))
        write_rows(folder / artifacts.rows_folder("phase1") / HELD_OUT, "pretrain", make_columns("pretrain", 9, seed=8))
        for name in ("phase1", "phase2", "squad-rows"):
            write_json(folder / artifacts.validation_report(name), {"valid": True})
        write_json(folder / artifacts.TOKENIZER / "tokenizer.json", {})
        (folder / ".dvc").mkdir()
        (folder / ".dvc" / "config").write_text(
            "[core]\n    no_scm = true\n    analytics = false\n    remote = store\n"
            f'[remote "store"]\n    url = {remote}\n'
        )

    def set(self, *overrides: str) -> None:
        """Write params.yaml, and a dvc.yaml that has STAGES alone."""
        values = resolve(read_yaml(ROOT / "params.yaml"), None, [*TINY, *overrides])
        definitions = define(write_parameters(self.folder, values))
        write_plan(self.folder, {name: definitions[name] for name in STAGES if name in definitions})

    def dvc(self, *words: str) -> str:
        """Run DVC; its output."""
        home = self.folder.parent / "dvc"
        environment = {
            **os.environ,
            "DVC_SITE_CACHE_DIR": str(home / "site"),
            "DVC_GLOBAL_CONFIG_DIR": str(home / "global"),
            "DVC_SYSTEM_CONFIG_DIR": str(home / "system"),
            RESOLVED: hash_of_parameters(self.folder),
            "PODIUM_DEVICE_PYTHON": sys.executable,
            "PODIUM_EXECUTABLE_CACHE": str(self.live),
            "PODIUM_THREADS": "1",
            "OMP_NUM_THREADS": "1",
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(DOUBLE),
        }
        done = subprocess.run(
            [sys.executable, "-m", "dvc", *words],
            cwd=self.folder,
            env=environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        assert done.returncode == 0, done.stdout
        return done.stdout

    def push(self) -> None:
        self.dvc("push", "--run-cache")

    def program(self) -> Path:
        (found,) = (self.folder / artifacts.EXECUTABLES / "phase1").glob("*.popef")
        return found

    def how(self, name: str = "pretrain-phase1") -> str:
        return str(json.loads((self.folder / "measurements" / f"{name}.json").read_text())["program"])

    def report(self, job: str = "phase1") -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.folder / artifacts.compile_report(job)).read_text())
        return found


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Host]:
    folder = tmp_path_factory.mktemp("hosts")
    return lambda name: Host(folder / name, folder / "remote")


@pytest.fixture(scope="module")
def builder(hosts: Callable[[str], Host]) -> Host:
    """A host that built the programs of four jobs and of evaluations of phase 1, trained nothing, and pushed them."""
    host = hosts("builder")
    host.dvc("repro", "--pull", "compile_pretrain", "compile")
    host.dvc("push", "--run-cache")
    return host


@pytest.fixture(scope="module")
def trainer(builder: Host, hosts: Callable[[str], Host]) -> tuple[Host, str]:
    host = hosts("trainer")
    return host, host.dvc("repro", "--pull", "predict@squad")


@pytest.mark.soak
def test_programs_are_built_before_there_are_weights_and_the_report_says_what_decides_them(builder: Host) -> None:
    assert not (builder.folder / artifacts.MODELS).exists()
    assert len(list(builder.live.glob("*/*.popef"))) == 5
    assert len(list((builder.folder / artifacts.EXECUTABLES / "phase1").glob("evaluation/*.popef"))) == 1
    report = builder.report()
    assert report["job"] == "phase1"
    assert report["parts"]["micro_batch_size"] == 1
    assert not {"poptorch", "torch", "poplar_sdk", "ipu_version", "instances"} & set(report["parts"])
    assert set(report) == {"job", "parts", "program"}
    assert report["program"] != builder.report("phase2")["program"]


@pytest.mark.soak
def test_another_host_restores_them_and_compiles_nothing(builder: Host, trainer: tuple[Host, str]) -> None:
    host, said = trainer
    for job, stage in JOBS.items():
        assert f"Stage '{stage}' is cached - skipping run" in said
        assert f"from executables/{job}, checked and put into {host.live}" in said
        assert host.report(job) == builder.report(job)
    assert said.count("loaded from the cache, nothing was compiled") == 5
    assert "miss" not in said
    held_out = json.loads((host.folder / "metrics" / "pretrain-phase1.json").read_text())["held_out"]
    assert held_out["rows"] == 9
    found = [host.how(name) for name in ("pretrain-phase1", "pretrain-phase2", "squad-finetune", "squad-predict")]
    assert found == [f"restored from executables/{job}" for job in JOBS]
    carried = host.program()
    (live,) = host.live.glob(f"*/{carried.name}")
    assert live.stat().st_ino != carried.stat().st_ino, "nothing that happens to it reaches DVC's cache"
    assert live.read_bytes() == carried.read_bytes()


@pytest.mark.soak
def test_building_again_with_other_bytes_trains_nothing_again(trainer: tuple[Host, str]) -> None:
    host, _ = trainer
    before = sha256_of(host.folder / artifacts.EXECUTABLES / "phase1" / artifacts.EXECUTABLES_RECORD)
    said = host.dvc("repro", "--force", "--single-item", "compile_pretrain@phase1")
    assert "Running stage 'compile_pretrain@phase1'" in said
    record = host.folder / artifacts.EXECUTABLES / "phase1" / artifacts.EXECUTABLES_RECORD
    assert sha256_of(record) != before
    said = host.dvc("repro", "predict@squad")
    stages = (*DEVICE_STAGES, "compile_pretrain@phase1")
    assert [stage for stage in stages if f"Stage '{stage}' didn't change" not in said] == []


@pytest.mark.soak
def test_other_rows_of_the_same_shape_another_seed_and_another_learning_rate_build_nothing(
    trainer: tuple[Host, str],
) -> None:
    host, _ = trainer
    manifest = host.folder / artifacts.rows_folder("phase1") / "manifest.json"
    values = json.loads(manifest.read_text())
    write_json(manifest, {**values, "seed": values["seed"] + 1})
    rates = ("pretrain.phase1.learning_rate=2e-3", "pretrain.phase1.steps=4", "pretrain.phase1.loss_scaling=8.0")
    host.set(*rates, "pretrain.seed=9", "downstream.squad.finetune.seed=9")
    said = host.dvc("repro", "--dry", "finetune@squad")
    for stage in ("compile_pretrain@phase1", "compile_pretrain@phase2", "compile@squad"):
        assert f"Stage '{stage}' didn't change, skipping" in said
    for stage in ("pretrain@phase1", "pretrain@phase2", "finetune@squad"):
        assert f"Running stage '{stage}'" in said
    said = host.dvc("repro", "pretrain@phase1")
    assert "training program ready" in said
    assert "loaded from the cache, nothing was compiled" in said
    write_json(manifest, values)
    host.set()


@pytest.mark.soak
def test_another_ipu_config_builds_and_trains_again(trainer: tuple[Host, str]) -> None:
    host, _ = trainer
    before = host.report()
    host.set("ipu.phase1.matmul_proportion=0.3")
    said = host.dvc("repro", "--pull", "compile_pretrain@phase1")
    assert "the most similar cached one differs in config.matmul_proportion [0.2, 0.2] -> [0.3, 0.3]" in said
    assert host.report()["program"] != before["program"]
    assert host.report()["parts"]["config.matmul_proportion"] == [0.3, 0.3]
    assert "Running stage 'pretrain@phase1'" in host.dvc("repro", "--dry", "pretrain@phase1")


@pytest.mark.soak
def test_a_program_that_changed_in_the_remote_is_discarded_and_built_again(
    builder: Host, hosts: Callable[[str], Host]
) -> None:
    """DVC does not look at what it restores from a remote that it trusts; the job does."""
    content = builder.program().read_bytes()
    digest = hashlib.md5(content).hexdigest()
    stored = builder.folder.parent / "remote" / "files" / "md5" / digest[:2] / digest[2:]
    stored.chmod(0o644)
    stored.write_bytes(bytes([content[0] ^ 1]) + content[1:])
    host = hosts("unlucky")
    said = host.dvc("repro", "--pull", "pretrain@phase1")
    assert "Stage 'compile_pretrain@phase1' is cached - skipping run" in said
    wrong = f"executables/phase1 was discarded: {builder.program().name} does not match its SHA-256"
    assert f"training: miss, {wrong}, to be rebuilt" in said
    assert host.how() == f"built: {wrong}"
    (live,) = host.live.glob(f"*/{builder.program().name}")
    assert live.read_bytes() == content  # the double builds the same bytes every time
    assert host.report() == builder.report()
