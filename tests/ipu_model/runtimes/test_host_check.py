"""What a Python and its host have for device jobs, as its own process says it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any, Dict, List

import pytest
import torch
from tiny_jobs import ROOT

from ipu_model.models.transformers_encoder import describe_type
from ipu_model.runtimes import host_check


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
    assert runtime["text"].endswith("set device.runtime to cpu or auto; found device.runtime=cuda")
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
    assert found(runtime="cuda", processes=2)[1]["text"] == "cuda (as requested); 2 GPUs, fp32"
    assert (
        "device.processes=3 needs one GPU per process, but this host has 2"
        in found(runtime="cuda", processes=3)[1]["text"]
    )


def test_a_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_check, "NEEDED", ("json", "no_such_package"))
    (problem,) = found()
    assert "lacks no_such_package" in problem["text"]
    assert "PODIUM_DEVICE_PYTHON" in problem["text"]


def test_an_old_python_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_check, "OLDEST_PYTHON", (4, 0))
    (problem,) = found()
    assert problem["level"] == "problem"
