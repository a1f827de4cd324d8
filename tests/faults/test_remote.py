"""A DVC remote that is not there, cannot be written, or goes in the middle of a push."""

import shutil
import signal
import subprocess

import pytest

from tests.faults import processes, small_run, table
from tests.faults.damage import leave, small_disk
from tests.faults.small_run import Case

ROW = "DVC remote"


@pytest.fixture
def finished(tmp_path, pictures, new_case):
    """A finished run with a folder as its remote, to which nothing was pushed yet."""
    shutil.copytree(pictures.folder / "work", tmp_path / "project", symlinks=True)
    case = new_case(tmp_path / "project")
    (case.project / ".dvc" / "config.local").write_text(
        f"[core]\n    remote = store\n['remote \"store\"']\n    url = {tmp_path / 'store'}\n"
    )
    return case


def push_again_and_restore(case, pictures):
    """The remote is back: push, then restore it all in a checkout without cache and outputs."""
    before = pictures.digests_after("gate@squad")
    small_run.require_same(case.project, pictures.digests)
    pushed = case.run("-m", "dvc", "push", "--run-cache")
    assert pushed.returncode == 0, pushed.stdout
    elsewhere = small_run.make_project(case.home / "elsewhere")
    shutil.copy2(case.project / ".dvc" / "config.local", elsewhere / ".dvc" / "config.local")
    shutil.copy2(case.project / "dvc.lock", elsewhere / "dvc.lock")
    other = Case(elsewhere, case.home / "other-home", case.api_url)
    done = other.run("-m", "dvc", "repro", "--pull", "gate@squad")
    assert done.returncode == 0, done.stdout
    ran = [line for line in done.stdout.splitlines() if line.startswith("Running stage") and "gate@squad" not in line]
    if ran:
        raise table.Lost(f"stages ran that the remote has: {ran}")
    small_run.require_same(elsewhere, {name: sha for name, sha in before.items() if not name.startswith("published")})


def require_said(case, words):
    """Push to a remote in trouble: it fails and says why."""
    done = case.run("-m", "dvc", "push", "--run-cache")
    assert done.returncode != 0, f"a push that could not work ended well:\n{done.stdout}"
    said = [line for line in done.stdout.splitlines() if any(word in line for word in words)]
    assert said, done.stdout
    return said[0][:150]


@pytest.mark.faults
def test_a_remote_whose_place_is_taken_by_a_file(finished, tmp_path, pictures):
    with table.case(ROW, "its place is a file") as notes:
        (tmp_path / "store").write_text("")
        notes.append(require_said(finished, ("Not a directory", "File exists", "failed to push")))
        (tmp_path / "store").unlink()
        push_again_and_restore(finished, pictures)


@pytest.mark.faults
def test_a_full_remote(finished, tmp_path, pictures):
    with small_disk(tmp_path / "store", 64) as disk, table.case(ROW, "full in the middle of a push") as notes:
        notes.append(require_said(finished, ("No space left", "failed to push")))
        leave(disk, 1 << 16)
        push_again_and_restore(finished, pictures)


@pytest.mark.faults
def test_a_read_only_remote(finished, tmp_path, pictures):
    with small_disk(tmp_path / "store", 1 << 16) as disk, table.case(ROW, "read-only") as notes:
        subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
        notes.append(require_said(finished, ("Read-only file system", "failed to push")))
        subprocess.run(["mount", "-o", "remount,rw", disk], check=True)
        push_again_and_restore(finished, pictures)


@pytest.mark.faults
@pytest.mark.parametrize("files", [3, 20, 40])
def test_a_push_killed_in_the_middle(finished, tmp_path, files, pictures):
    """As when the remote's host goes: what is there is whole, or is not under its name."""
    with table.case(ROW, f"push killed after {files} files"):
        push = finished.start("-m", "dvc", "push", "--run-cache", "--jobs", "1")
        store = tmp_path / "store"
        processes.wait_for(
            lambda: push.poll() is not None or sum(1 for path in store.rglob("*") if path.is_file()) >= files,
            60.0,
            "nothing is pushed",
        )
        push.send_signal(signal.SIGKILL)
        push.wait()
        push_again_and_restore(finished, pictures)
