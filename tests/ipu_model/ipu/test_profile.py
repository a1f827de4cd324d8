"""Memory of IPUs from a profile, with a stand-in of libpva that has its documented names."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, Dict

import pytest

from ipu_model.ipu.profile import MB, fullest_ipu_mb, profile_file


def asking(folder: Path, **more: str) -> Dict[str, str]:
    return {"POPLAR_ENGINE_OPTIONS": json.dumps({"autoReport.directory": str(folder), **more})}


def write(folder: Path, at: int) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "profile.pop"
    path.write_bytes(b"")
    os.utime(str(path), (at, at))
    return path


def test_the_newest_profile_of_the_program_is_read_where_one_was_asked_for(tmp_path: Path) -> None:
    write(tmp_path / "training" / "old", 1)
    newest = write(tmp_path / "training", 2)
    write(tmp_path / "inference", 3)
    assert profile_file(asking(tmp_path, **{"autoReport.all": "true"}), training=True) == newest
    assert profile_file(asking(tmp_path), training=True) is None, "nobody asked for memory"
    assert profile_file({"POPLAR_ENGINE_OPTIONS": "{"}, training=True) is None
    assert profile_file({}, training=True) is None


def test_it_is_that_of_the_fullest_ipu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two IPUs of two tiles."""
    path = write(tmp_path / "training", 1)
    tiles = [SimpleNamespace(memory=SimpleNamespace(total=SimpleNamespace(includingGaps=x * MB))) for x in (1, 2, 3, 4)]
    compilation = SimpleNamespace(target=SimpleNamespace(tilesPerIpu=2), tiles=tiles)
    opened = []

    def open_report(name: str) -> Any:
        opened.append(name)
        return SimpleNamespace(compilation=compilation)

    module = ModuleType("pva")
    module.openReport = open_report  # type: ignore[attr-defined]
    module.__spec__ = SimpleNamespace()  # type: ignore[assignment]
    environ = asking(tmp_path, **{"autoReport.outputMemoryProfile": "true"})
    assert fullest_ipu_mb(environ, training=True) is None, "there is no libpva"
    monkeypatch.setitem(sys.modules, "pva", module)
    assert fullest_ipu_mb(environ, training=True) == 7.0
    assert opened == [str(path)]
    assert fullest_ipu_mb(environ, training=False) is None
