"""Threads from the environment, memory settings of the C library, and events for a reader that went away."""

from __future__ import annotations

import io
import os
import platform
from pathlib import Path

import pytest
import torch

from ipu_model.core.errors import ConfigError
from ipu_model.core.files import HOST, new_file, new_folder
from ipu_model.core.progress import Progress
from ipu_model.distributed.process import SPINS, limit_spinning
from ipu_model.runtimes.host import keep_freed_memory, set_threads


def test_waiting_threads_sleep_soon_unless_the_user_says_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT"):
        monkeypatch.setenv(name, "")  # so that it is put back afterwards
        monkeypatch.delenv(name)
    limit_spinning()
    assert os.environ["GOMP_SPINCOUNT"] == SPINS
    monkeypatch.setenv("GOMP_SPINCOUNT", "7")
    limit_spinning()
    assert os.environ["GOMP_SPINCOUNT"] == "7"
    monkeypatch.delenv("GOMP_SPINCOUNT")
    monkeypatch.setenv("OMP_WAIT_POLICY", "active")
    limit_spinning()
    assert "GOMP_SPINCOUNT" not in os.environ


class Gone(io.StringIO):
    """A pipe whose reader ended."""

    def write(self, text: str) -> int:
        raise BrokenPipeError


def test_a_reader_that_went_away_does_not_stop_the_job() -> None:
    emit = Progress(Gone())
    emit("message", text="a")
    emit("message", text="b")


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


@pytest.mark.parametrize("asked", ["0", "-1", "two", "1.5"])
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
