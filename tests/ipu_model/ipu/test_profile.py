"""Memory of IPUs from a profile, with a stand-in of libpva that has its documented names."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, Dict, List, Optional

import pytest
from tiny_ipu import ipu_job, ipu_runtime, make_batches

from ipu_model.ipu.compile_watch import MB, CompileProfile
from tests.optimizers import optimizer_config


def asking(folder: Path, **more: str) -> Dict[str, str]:
    return {"POPLAR_ENGINE_OPTIONS": json.dumps({"autoReport.directory": str(folder), **more})}


def write(folder: Path, at: int) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "profile.pop"
    path.write_bytes(b"")
    os.utime(str(path), (at, at))
    return path


def stand_in_for_pva(monkeypatch: pytest.MonkeyPatch) -> List[str]:
    """Two IPUs of two tiles; returns the paths that were opened."""
    tiles = [SimpleNamespace(memory=SimpleNamespace(total=SimpleNamespace(includingGaps=x * MB))) for x in (1, 2, 3, 4)]
    compilation = SimpleNamespace(target=SimpleNamespace(tilesPerIpu=2), tiles=tiles)
    opened: List[str] = []

    def open_report(name: str) -> Any:
        opened.append(name)
        return SimpleNamespace(compilation=compilation)

    module = ModuleType("pva")
    module.openReport = open_report  # type: ignore[attr-defined]
    module.__spec__ = SimpleNamespace()  # type: ignore[assignment]
    monkeypatch.setitem(sys.modules, "pva", module)
    return opened


@pytest.mark.parametrize("options", ['{"autoReport.all": "true"}', "{}", "{"])
def test_a_profile_of_another_program_counts_not(options: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was there before, or no one asked for one."""
    opened = stand_in_for_pva(monkeypatch)
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "training", 1)
    profile = CompileProfile({"POPLAR_ENGINE_OPTIONS": options}, training=True)
    if "autoReport" not in options:
        write(tmp_path / "training", 2)
    profile.find()
    assert profile.fullest_ipu_mb() is None
    assert opened == []


@pytest.mark.ipu
@pytest.mark.parametrize("written", ["own", "", None], ids=["new", "written over", "from the cache"])
def test_a_job_states_the_memory_of_the_newest_profile_of_its_own_program(
    written: Optional[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, poptorch: Any
) -> None:
    opened = stand_in_for_pva(monkeypatch)
    for name, value in asking(tmp_path / "profiles", **{"autoReport.all": "true"}).items():
        monkeypatch.setenv(name, value)
    training = tmp_path / "profiles" / "training"
    for folder, at in ((training / "old", 5), (training, 1), (training.with_name("inference"), 9)):
        write(folder, at)
    runtime = ipu_runtime(ipu_job("pretraining", optimizer_config(name="lamb", learning_rate=1e-3), tmp_path, 1, 1))
    compiled = poptorch.PoplarExecutor.compile

    def compile_with_profile(self: Any, *tensors: Any) -> Any:
        if written is not None:
            write(training / written, 7)
        return compiled(self, *tensors)

    monkeypatch.setattr(poptorch.PoplarExecutor, "compile", compile_with_profile)
    assert runtime.peak_device_memory_mb() is None
    runtime.compile(make_batches("pretraining", 1, 16)[0])
    assert runtime.peak_device_memory_mb() == (None if written is None else 7.0)
    assert opened == ([] if written is None else [str(training / written / "profile.pop")])
    runtime.close()
