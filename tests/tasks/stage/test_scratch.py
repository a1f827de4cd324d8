"""Temporary folders: for their user alone, and gone a day after a killed process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ipu_model.core.files import HOST
from tasks.stage.scratch import scratch_folder
from tests.places import ROOT

DAY = 25 * 3600


def age(path: Path, seconds: float) -> None:
    for one in (*path.rglob("*"), path):
        os.utime(one, (one.stat().st_mtime - seconds,) * 2)


def test_what_a_killed_process_left_goes_after_a_day(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    script = (
        "import os, signal\nfrom tasks.stage.scratch import scratch_folder\n"
        "with scratch_folder() as folder:\n"
        "    (folder / 'text').write_text('private')\n    os.kill(os.getpid(), signal.SIGKILL)"
    )
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, env=environment, check=False)
    assert done.returncode == -signal.SIGKILL
    [left] = tmp_path.iterdir()
    assert left.stat().st_mode & 0o777 == 0o700
    others = [tmp_path / name for name in ("podium-memory-0", f"podium-{HOST}-{os.getpid()}-x", f"podium-{HOST}-1-x")]
    for other in others:
        other.mkdir()
        age(other, DAY)
    linked = tmp_path / f"podium-{HOST}-99999999-link"
    linked.symlink_to(others[0])
    with scratch_folder():
        assert (left / "text").is_file(), "not a day old"
    age(left, DAY)
    with scratch_folder():
        assert not left.exists()
    assert all(one.exists() for one in (*others, linked)), "of other programs, and of processes that are alive"
