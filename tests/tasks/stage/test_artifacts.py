"""Files and folders appear whole or not at all."""

import errno
import hashlib
import os
import subprocess
import sys
import time

import pytest

from ipu_model.core.files import FOREIGN_SECONDS, HOST, new_folder, sha256_of, write_json, write_text


def test_a_folder_that_fails_in_the_middle_leaves_the_old_one_as_it_was(tmp_path):
    target = tmp_path / "rows"
    with new_folder(target) as folder:
        (folder / "a").write_text("old")

    def fail():
        with new_folder(target) as folder:
            (folder / "a").write_text("new")
            raise RuntimeError("killed")

    with pytest.raises(RuntimeError):
        fail()
    assert (target / "a").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["rows"], "no partial folder is left"


def test_a_new_folder_replaces_the_old_one_whole(tmp_path):
    for name in ("a", "b"):
        with new_folder(tmp_path / "rows") as folder:
            (folder / name).write_text(name)
    assert [path.name for path in (tmp_path / "rows").iterdir()] == ["b"]


def test_what_a_killed_run_left_is_removed_and_of_another_host_only_after_a_day(tmp_path):
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    names = {"dead": (HOST, gone.pid), "alive": (HOST, os.getppid()), "young": ("0" * 8, gone.pid), "old": ("1" * 8, 1)}
    left = {name: tmp_path / f"rows.{host}-{process}.partial" for name, (host, process) in names.items()}
    for folder in left.values():
        folder.mkdir()
    a_day_ago = time.time() - FOREIGN_SECONDS - 60
    os.utime(left["old"], (a_day_ago, a_day_ago))
    with new_folder(tmp_path / "rows"):
        pass
    assert [name for name, folder in left.items() if folder.exists()] == ["alive", "young"]


def test_a_folder_that_another_process_completed_first_stays(tmp_path):
    with new_folder(tmp_path / "shard", replace=False) as late:
        with new_folder(tmp_path / "first") as first:
            (first / "rows").write_text("first")
        os.replace(tmp_path / "first", tmp_path / "shard")
        (late / "rows").write_text("late")
    assert (tmp_path / "shard" / "rows").read_text() == "first"
    assert [path.name for path in tmp_path.iterdir()] == ["shard"]


@pytest.mark.parametrize("number", [errno.EACCES, errno.EINVAL])
def test_a_place_whose_names_cannot_be_synced_takes_files_and_folders(tmp_path, monkeypatch, number):
    sync = os.fsync

    def refuse(descriptor):
        if os.path.samestat(os.fstat(descriptor), tmp_path.stat()):
            raise OSError(number, os.strerror(number))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", refuse)
    write_text(tmp_path / "card.md", "new")
    with new_folder(tmp_path / "rows"):
        pass
    assert sorted(path.name for path in tmp_path.iterdir()) == ["card.md", "rows"]


def test_text_that_cannot_be_encoded_leaves_the_old_file_as_it_was(tmp_path):
    path = tmp_path / "card.md"
    write_text(path, "old")
    with pytest.raises(UnicodeEncodeError):
        write_text(path, "new \ud800")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_json_refuses_nan_and_sorts_keys(tmp_path):
    with pytest.raises(ValueError, match="JSON compliant"):
        write_json(tmp_path / "m.json", {"f1": float("nan")})
    assert not (tmp_path / "m.json").exists()
    write_json(tmp_path / "m.json", {"b": 1, "a": "é"})
    assert (tmp_path / "m.json").read_text(encoding="utf-8") == '{\n  "a": "é",\n  "b": 1\n}\n'


def test_sha256_of_a_file_larger_than_a_block(tmp_path):
    content = bytes(range(256)) * 5000
    (tmp_path / "f").write_bytes(content)
    assert sha256_of(tmp_path / "f") == hashlib.sha256(content).hexdigest()
