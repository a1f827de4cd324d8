"""Temporary folders and folders of exchanged files: for their user alone, and gone a day after a killed process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path, PurePosixPath

import pytest

from ipu_model.core.files import HOST
from tasks.stage import exchange
from tasks.stage.errors import InputError
from tasks.stage.exchange import Exchange, FilesOfPath
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


def test_an_exchange_of_a_killed_map_goes_after_a_day(tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("private")
    left = Exchange(str(tmp_path), None)
    left.pack(text)
    folder = Path(left.root)
    assert folder.stat().st_mode & 0o777 == 0o700
    Exchange(str(tmp_path), None)
    age(folder, DAY)
    newest = next(path for path in folder.rglob("*") if path.is_file())
    os.utime(newest)
    Exchange(str(tmp_path), None)
    assert folder.is_dir(), "still written to"
    age(folder, 2 * DAY)
    (tmp_path / "podium-mine").mkdir()
    age(tmp_path / "podium-mine", DAY)
    Exchange(str(tmp_path), None)
    assert not folder.exists()
    assert (tmp_path / "podium-mine").is_dir()


@pytest.mark.parametrize("name", ["../x", "/tmp/x", "a/../../x"])
def test_an_answer_whose_path_leaves_the_folder_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "url").mkdir()
    (tmp_path / "results").mkdir()
    mine = Exchange(str(tmp_path / "url"), tmp_path / "results")
    answer = exchange.pack(None, lambda path: None)
    place = exchange.pack(Path("x"), lambda path: FilesOfPath(str(PurePosixPath("out", name)), ()))
    for sent in ((answer, [name]), (place, [])):
        with pytest.raises(InputError, match="which leaves its folder"):
            mine.unpack(sent)
