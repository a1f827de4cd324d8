"""A DVC remote that is not there, cannot be written, or goes in the middle of a push."""

import contextlib
import re
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from tests.faults import processes, small_run
from tests.faults.small_disk import leave, small_disk
from tests.faults.small_run import Case

pytestmark = pytest.mark.faults
PUSH = ("-m", "dvc", "push", "--run-cache")


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
    small_run.require_same(case.project, pictures.digests)
    case.succeed(*PUSH)
    elsewhere = small_run.make_project(case.home / "elsewhere")
    for name in (".dvc/config.local", "dvc.lock"):
        shutil.copy2(case.project / name, elsewhere / name)
    printed = Case(elsewhere, case.home / "other-home").succeed("-m", "dvc", "repro", "--pull", "gate@squad")
    assert {line for line in printed.splitlines() if line.startswith("Running stage")} <= {
        "Running stage 'gate@squad':"
    }
    before = pictures.digests_after("gate@squad").items()
    small_run.require_same(elsewhere, {name: sha for name, sha in before if not name.startswith("published")})


def remount(how):
    return lambda disk: subprocess.run(["mount", "-o", f"remount,{how}", disk], check=True)


TROUBLES = {
    "a file": (None, Path.touch, Path.unlink, "Not a directory|File exists|failed to push"),
    "full": (64, lambda disk: None, lambda disk: leave(disk, 1 << 16), "No space left|failed to push"),
    "read-only": (1 << 16, remount("ro"), remount("rw"), "Read-only file system|failed to push"),
}
"""What the remote is -> KB of its own disk, how it becomes so and good again, and what a push says."""


@pytest.mark.parametrize("trouble", TROUBLES)
def test_a_push_that_cannot_work_says_why_and_works_later(trouble, finished, tmp_path, pictures):
    kilobytes, spoil, mend, message = TROUBLES[trouble]
    store = tmp_path / "store"
    with contextlib.nullcontext() if kilobytes is None else small_disk(store, kilobytes):
        spoil(store)
        done = finished.run(*PUSH)
        assert done.returncode != 0, done.stdout
        assert re.search(message, done.stdout), done.stdout
        mend(store)
        push_again_and_restore(finished, pictures)


@pytest.mark.parametrize("files", [3, 20, 40])
def test_a_push_killed_in_the_middle_leaves_what_is_whole(finished, tmp_path, files, pictures):
    push = finished.start(*PUSH, "--jobs", "1")

    def far_enough():
        return push.poll() is not None or sum(path.is_file() for path in (tmp_path / "store").rglob("*")) >= files

    processes.wait_for(far_enough, 60.0, "nothing is pushed")
    push.send_signal(signal.SIGKILL)
    push.wait()
    push_again_and_restore(finished, pictures)
