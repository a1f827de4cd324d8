"""Files and folders appear whole or not at all; temporary ones are private and go after a killed process."""

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path, PurePosixPath

import pytest

from ipu_model.core.files import FOREIGN_SECONDS, HOST, new_folder, write_json, write_text
from tasks.stage import exchange
from tasks.stage.errors import InputError
from tasks.stage.exchange import Exchange, FilesOfPath
from tasks.stage.scratch import scratch_folder
from tests.places import ROOT

DAY = 25 * 3600


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def age(path: Path, seconds: float) -> None:
    for part in (*path.rglob("*"), path):
        os.utime(part, (part.stat().st_mtime - seconds,) * 2)


def write_rows(target: Path, name: str, text: str, fails: bool = False) -> None:
    with new_folder(target) as folder:
        (folder / name).write_text(text)
        if fails:
            raise RuntimeError("killed")


def test_a_folder_that_fails_in_the_middle_leaves_the_old_one_as_it_was(tmp_path: Path) -> None:
    target = tmp_path / "rows"
    write_rows(target, "a", "old")
    with pytest.raises(RuntimeError):
        write_rows(target, "a", "new", fails=True)
    assert (target / "a").read_text() == "old"
    assert names_in(tmp_path) == ["rows"], "no partial folder is left"
    write_rows(target, "b", "new")
    assert names_in(target) == ["b"], "a new folder replaces the old one whole"


def test_what_a_killed_run_left_is_removed_and_of_another_host_only_after_a_day(tmp_path: Path) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    names = {"dead": (HOST, gone.pid), "alive": (HOST, os.getppid()), "young": ("0" * 8, gone.pid), "old": ("1" * 8, 1)}
    left = {name: tmp_path / f"rows.{host}-{process}.partial" for name, (host, process) in names.items()}
    for folder in left.values():
        folder.mkdir()
    age(left["old"], FOREIGN_SECONDS + 60)
    write_rows(tmp_path / "rows", "a", "")
    assert [name for name, folder in left.items() if folder.exists()] == ["alive", "young"]


def test_a_folder_that_another_process_completed_first_stays(tmp_path: Path) -> None:
    with new_folder(tmp_path / "shard", replace=False) as late:
        write_rows(tmp_path / "first", "rows", "first")
        os.replace(tmp_path / "first", tmp_path / "shard")
        (late / "rows").write_text("late")
    assert (tmp_path / "shard" / "rows").read_text() == "first"
    assert names_in(tmp_path) == ["shard"]


@pytest.mark.parametrize("number", [errno.EACCES, errno.EINVAL])
def test_a_place_whose_names_cannot_be_synced_takes_files_and_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    sync = os.fsync

    def refuse(descriptor: int) -> None:
        if os.path.samestat(os.fstat(descriptor), tmp_path.stat()):
            raise OSError(number, os.strerror(number))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", refuse)
    write_text(tmp_path / "card.md", "new")
    write_rows(tmp_path / "rows", "a", "")
    assert names_in(tmp_path) == ["card.md", "rows"]


def test_json_refuses_nan_and_text_what_cannot_be_encoded_and_neither_changes_a_file(tmp_path: Path) -> None:
    path = tmp_path / "m.json"
    write_json(path, {"b": 1, "a": "é"})
    for write, value in ((write_json, {"f1": float("nan")}), (write_text, "new \ud800")):
        with pytest.raises(ValueError, match="JSON compliant|surrogates"):
            write(path, value)
    assert path.read_text(encoding="utf-8") == '{\n  "a": "é",\n  "b": 1\n}\n'
    assert names_in(tmp_path) == ["m.json"]


DIES = """
import os, signal
from tasks.stage.scratch import scratch_folder
with scratch_folder() as folder:
    (folder / "text").write_text("private")
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_process_left_goes_after_a_day(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", DIES], cwd=ROOT, env=environment, check=False)
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
    assert all(path.exists() for path in (*others, linked)), "of other programs, and of processes that are alive"


def test_an_exchange_of_a_killed_map_goes_after_a_day(tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("private")
    left = Exchange(str(tmp_path), None)
    left.pack(text)
    folder = Path(left.root)
    assert folder.stat().st_mode & 0o777 == 0o700
    age(folder, DAY)
    os.utime(next(path for path in folder.rglob("*") if path.is_file()))
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
    for folder in ("url", "results"):
        (tmp_path / folder).mkdir()
    mine = Exchange(str(tmp_path / "url"), tmp_path / "results")
    answer = exchange.pack(None, lambda path: None)
    place = exchange.pack(Path("x"), lambda path: FilesOfPath(str(PurePosixPath("out", name)), ()))
    for sent in ((answer, [name]), (place, [])):
        with pytest.raises(InputError, match="leaves its folder"):
            mine.unpack(sent)
