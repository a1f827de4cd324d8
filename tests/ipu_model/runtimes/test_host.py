"""Threads from the environment, memory settings of the C library, and events for a reader that went away."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any, Dict, List, Optional

import pytest
import torch
from tiny_jobs import ROOT

from ipu_model.core.errors import ConfigError
from ipu_model.core.files import HOST, new_file, new_folder
from ipu_model.core.progress import Progress
from ipu_model.distributed.process import SPINS, limit_spinning
from ipu_model.models.transformers_encoder import describe_type
from ipu_model.runtimes import host_check
from ipu_model.runtimes.host import keep_freed_memory, set_threads


@pytest.mark.parametrize(
    ("environ", "spins"), [({}, SPINS), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "active"}, None)]
)
def test_waiting_threads_sleep_soon_unless_the_user_says_otherwise(
    monkeypatch: pytest.MonkeyPatch, environ: Dict[str, str], spins: Optional[str]
) -> None:
    monkeypatch.setattr(os, "environ", dict(environ))
    limit_spinning()
    assert os.environ.get("GOMP_SPINCOUNT") == spins


def test_a_reader_that_went_away_does_not_stop_the_job(tmp_path: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    emit = Progress(os.fdopen(write, "w"))
    for text in "ab":
        emit("message", text=text)


def test_a_file_or_folder_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "old").write_text("old")

    def fail_in_folder() -> None:
        with new_folder(tmp_path / "folder") as partial:
            (partial / "new").write_text("new")
            raise KeyError

    def fail_in_file() -> None:
        with new_file(tmp_path / "file") as partial:
            partial.write_text("half")
            raise KeyError

    for fail in (fail_in_folder, fail_in_file):
        with pytest.raises(KeyError):
            fail()
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["folder", "old"]
    with new_folder(tmp_path / "folder") as partial:
        (partial / "new").write_text("new")
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["folder", "new"]


def test_what_a_killed_writer_left_beside_its_target_goes_with_the_next_write(tmp_path: Path) -> None:
    model = tmp_path / f"model.{HOST}-99.partial"
    model.mkdir()
    (model / "half").write_text("half")
    (tmp_path / f"other.{HOST}-99.partial").mkdir()
    with new_folder(tmp_path / "model"):
        pass
    (tmp_path / f"logits.arrow.{HOST}-98.partial").write_text("half")
    with new_file(tmp_path / "logits.arrow") as partial:
        partial.write_text("whole")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["logits.arrow", "model", f"other.{HOST}-99.partial"]


@pytest.mark.parametrize("asked", ["0", "two"])
def test_threads_and_memory_are_set_as_the_host_asks(asked: str) -> None:
    before = torch.get_num_threads()
    try:
        for stated in ("1", None):
            set_threads(stated)
            assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)
    with pytest.raises(ConfigError, match="PODIUM_THREADS"):
        set_threads(asked)
    assert keep_freed_memory() == (platform.libc_ver()[0] == "glibc")
    assert not keep_freed_memory("0")
    with pytest.raises(ConfigError, match="PODIUM_KEEP_MEMORY='yes'"):
        keep_freed_memory("yes")


def told(
    runtime: str = "cpu", precision: str = "fp32", processes: int = 1, family: str = "bert", pretrains: bool = True
) -> Dict[str, Any]:
    place = {"knob": f"device.runtime={runtime}", "runtime": runtime, "precision": precision}
    model = {"family": family, "pretrains": pretrains}
    return {"places": [place], **model, "processes": processes, "compile_only": False}


def found(**what: Any) -> List[Dict[str, Any]]:
    return list(host_check.run_checks(told(**what)))


def test_a_process_of_its_own_says_python_torch_and_runtime() -> None:
    command, env = [sys.executable, "-m", "ipu_model.runtimes.host_check"], {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, input=json.dumps(told()), capture_output=True, text=True, cwd=str(ROOT), env=env)
    assert done.returncode == 0, done.stderr
    python, device = map(json.loads, done.stdout.splitlines())
    assert (python["name"], python["level"]) == ("device python", "ok")
    assert f"torch {torch.__version__}" in python["text"]
    assert (device["name"], device["level"], device["text"]) == ("device", "ok", "cpu (as requested), fp32")


@pytest.mark.parametrize(("runtime", "precision"), [("cpu", "fp16"), ("ipu", "bf16")])
def test_a_precision_that_the_runtime_has_not_is_a_mistake_of_the_parameters(runtime: str, precision: str) -> None:
    problems = [one for one in found(runtime=runtime, precision=precision) if one["level"] == "problem"]
    assert problems[-1]["of_parameters"]
    assert "set device.precision to" in problems[-1]["text"]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_without_a_gpu_cuda_is_a_problem_of_the_host_and_both_reasons_are_said() -> None:
    runtime, precision = found(runtime="cuda", precision="fp16")[1:]
    assert not runtime["of_parameters"]
    assert runtime["text"].endswith("found device.runtime=cuda")
    assert precision["of_parameters"]


def test_an_encoder_of_transformers_is_checked_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)  # as if it were not installed
    describe_type.cache_clear()
    for what, said in (
        ({"runtime": "ipu"}, "deberta-v2 models cannot be run on IPUs"),
        ({}, "deberta-v2 need the package transformers"),
    ):
        last = found(**{"family": "deberta-v2", "pretrains": False, **what})[-1]
        assert (last["level"], said in last["text"]) == ("problem", True), last


def test_more_processes_than_gpus_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ipu_model.runtimes.cuda.find_gpu", lambda: (True, "a GPU"))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert "2 GPUs" in found(runtime="cuda", processes=2)[1]["text"]
    assert "device.processes=3" in found(runtime="cuda", processes=3)[1]["text"]


@pytest.mark.parametrize(
    ("name", "value", "word"),
    [("NEEDED", ("json", "no_such_package"), "lacks no_such_package"), ("OLDEST_PYTHON", (4, 0), "newer")],
)
def test_a_package_that_is_missing_and_an_old_python_are_named(
    monkeypatch: pytest.MonkeyPatch, name: str, value: Any, word: str
) -> None:
    monkeypatch.setattr(host_check, name, value)
    (problem,) = found()
    assert (problem["level"], word in problem["text"]) == ("problem", True), problem
