"""Threads from the environment, memory settings of the C library, and events for a reader that went away."""

import contextlib
import json
import os
import platform
import subprocess
import sys

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
def test_waiting_threads_sleep_soon_unless_the_user_says_otherwise(monkeypatch, environ, spins):
    monkeypatch.setattr(os, "environ", dict(environ))
    limit_spinning()
    assert os.environ.get("GOMP_SPINCOUNT") == spins


def test_a_reader_that_went_away_does_not_stop_the_job():
    read, write = os.pipe()
    os.close(read)
    emit = Progress(os.fdopen(write, "w"))
    for text in "ab":
        emit("message", text=text)


def test_a_file_or_folder_appears_whole_or_not_at_all_and_leftovers_of_its_writers_go(tmp_path):
    def names():
        return sorted(path.name for path in tmp_path.rglob("*"))

    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "old").write_text("old")
    with contextlib.suppress(KeyError), new_folder(tmp_path / "folder") as partial:
        (partial / "new").write_text("new")
        raise KeyError
    with contextlib.suppress(KeyError), new_file(tmp_path / "file") as partial:
        partial.write_text("half")
        raise KeyError
    assert names() == ["folder", "old"]
    other = f"other.{HOST}-99.partial"
    for killed in (f"folder.{HOST}-99.partial", other):
        (tmp_path / killed).mkdir()
    (tmp_path / f"file.{HOST}-98.partial").write_text("half")
    with new_folder(tmp_path / "folder") as partial:
        (partial / "new").write_text("new")
    with new_file(tmp_path / "file") as partial:
        partial.write_text("whole")
    assert names() == ["file", "folder", "new", other]


def test_threads_and_memory_are_set_as_the_host_asks():
    before = torch.get_num_threads()
    try:
        for threads in ("1", None):
            set_threads(threads)
            assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)
    for threads in ("0", "two"):
        with pytest.raises(ConfigError, match="PODIUM_THREADS"):
            set_threads(threads)
    assert keep_freed_memory() == (platform.libc_ver()[0] == "glibc")
    assert not keep_freed_memory("0")
    with pytest.raises(ConfigError, match="PODIUM_KEEP_MEMORY='yes'"):
        keep_freed_memory("yes")


def make_request(runtime="cpu", precision="fp32", **changes):
    places = [{"knob": f"device.runtime={runtime}", "runtime": runtime, "precision": precision}]
    return {"places": places, "family": "bert", "pretrains": True, "processes": 1, "compile_only": False, **changes}


def check(**changes):
    return list(host_check.run_checks(make_request(**changes)))


def test_a_process_of_its_own_says_python_torch_and_runtime():
    command, env = [sys.executable, "-m", "ipu_model.runtimes.host_check"], {**os.environ, "PYTHONPATH": str(ROOT)}
    request = json.dumps(make_request())
    done = subprocess.run(command, input=request, capture_output=True, text=True, cwd=str(ROOT), env=env)
    assert done.returncode == 0, done.stderr
    python, device = map(json.loads, done.stdout.splitlines())
    assert (python["name"], python["level"]) == ("device python", "ok")
    assert f"torch {torch.__version__}" in python["text"]
    assert (device["name"], device["level"], device["text"]) == ("device", "ok", "cpu (as requested), fp32")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_without_a_gpu_cuda_is_a_problem_of_the_host_and_both_reasons_are_said():
    runtime, precision = check(runtime="cuda", precision="fp16")[1:]
    assert not runtime["of_parameters"]
    assert runtime["text"].endswith("found device.runtime=cuda")
    assert precision["of_parameters"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"precision": "fp16"}, "set device.precision to"),
        ({"runtime": "ipu", "precision": "bf16"}, "set device.precision to"),
        ({"runtime": "ipu", "family": "deberta-v2", "pretrains": False}, "deberta-v2 models cannot be run on IPUs"),
        ({"family": "deberta-v2", "pretrains": False}, "deberta-v2 need the package transformers"),
    ],
)
def test_what_a_runtime_does_not_compute_is_refused_by_name(monkeypatch, changes, message):
    monkeypatch.setitem(sys.modules, "transformers", None)  # as if it were not installed
    describe_type.cache_clear()
    last = check(**changes)[-1]
    assert (last["level"], message in last["text"]) == ("problem", True), last


def test_more_processes_than_gpus_are_refused(monkeypatch):
    monkeypatch.setattr("ipu_model.runtimes.cuda.find_gpu", lambda: (True, "a GPU"))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert "2 GPUs" in check(runtime="cuda", processes=2)[1]["text"]
    assert "device.processes=3" in check(runtime="cuda", processes=3)[1]["text"]


@pytest.mark.parametrize(
    ("name", "value", "word"),
    [("NEEDED", ("json", "no_such_package"), "lacks no_such_package"), ("OLDEST_PYTHON", (4, 0), "newer")],
)
def test_a_package_that_is_missing_and_an_old_python_are_named(monkeypatch, name, value, word):
    monkeypatch.setattr(host_check, name, value)
    (problem,) = check()
    assert (problem["level"], word in problem["text"]) == ("problem", True), problem
