"""An empty clone, and what is asked of it before a run, for tests of flows/checks."""

import json
import os
import shutil
import subprocess
import sys

import pytest

from flows.checks import device, preflight
from flows.runs.run_options import RunOptions
from flows.runs.run_request import resolve_request
from tasks.stage.errors import InputError, ParamsError
from tests.places import ROOT

HUB = ("publish.target=hub", "downstream.squad.publish.repository=user/name")
NO_GPU = {"CUDA_VISIBLE_DEVICES": ""}
OUTSIDE = ("PODIUM_", "PREFECT_", "HF_", "SSL_CERT", "http_proxy", "https_proxy", "all_proxy")


@pytest.fixture
def project(tmp_path, monkeypatch):
    """An empty clone, and an environment that says nothing; its host has no device, which is not asked for then."""
    folder = tmp_path / "project"
    (folder / ".dvc").mkdir(parents=True)
    (folder / ".dvc" / "config").write_text("[core]\n    no_scm = true\n    analytics = false\n")
    for name in ("params.yaml", "dvc.yaml"):
        shutil.copy(ROOT / name, folder / name)
    for name in ("inputs", "presets"):
        shutil.copytree(ROOT / name, folder / name)
    for name in [name for name in os.environ if name.lower().startswith(tuple(map(str.lower, OUTSIDE)))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PODIUM_CHECK_SECONDS", "120")  # hosts of tests are busy
    monkeypatch.setenv("PODIUM_STAGE_KINDS", "cpu")
    # Estimates of jobs have tests of their own (test_plan_command.py).
    monkeypatch.setattr(preflight, "CHECKS", [check for check in preflight.CHECKS if check is not device.check_fit])
    return folder


@pytest.fixture
def asks_device(project, monkeypatch):
    monkeypatch.delenv("PODIUM_STAGE_KINDS")


def look(project, *overrides, thorough=False, **choices):
    """The findings, by name and level, of a run with these overrides."""
    wanted = resolve_request(project, RunOptions(None, overrides, **choices), thorough=thorough)
    return {(finding.name, finding.level): finding.text for finding in preflight.run_checks(wanted)}


def refuse(project, *overrides, **choices):
    with pytest.raises((InputError, ParamsError)) as refused:
        preflight.require_runnable(resolve_request(project, RunOptions(None, overrides, **choices)))
    return refused.value


def podium(project, *words, **environment):
    return subprocess.run(
        [sys.executable, "-m", "flows", "--project", str(project), *words], cwd=ROOT, text=True, capture_output=True,
        timeout=120, env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "100", **environment},
    )  # fmt: skip


def tree(folder):
    """Everything below a folder: names, sizes, times and bytes."""
    return {
        path.relative_to(folder): (path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else b"")
        for path in sorted(folder.rglob("*"))
    }


def write_config(folder, **values):
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"model_type": "bert", "vocab_size": 100, **values}))
    (folder / "model.safetensors").write_bytes(b"")
    return folder
