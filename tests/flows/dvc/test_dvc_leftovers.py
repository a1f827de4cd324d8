"""What a killed DVC left half-written."""

import contextlib
import fcntl
import json
import subprocess
import sys
from pathlib import Path

import pytest

from flows.dvc import leftovers
from tests.flows.toy_runs import repro


@pytest.fixture
def rwlock(toy_project):
    path = toy_project / ".dvc" / "tmp" / "rwlock"
    path.parent.mkdir(exist_ok=True)
    return path


def repair(project):
    lines = []
    leftovers.repair(project, lines.append)
    return lines


@contextlib.contextmanager
def a_dvc_in(folder):
    """The ID of a process that looks like a DVC running there, and is not a child of this one."""
    waits = [sys.executable, "-c", "import os; print(os.getpid(), flush=True); input()", "dvc"]
    words = ["/bin/sh", "-c", '"$@"; exit', "sh", *waits]
    with subprocess.Popen(words, cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        yield int(process.stdout.readline())
        process.communicate(b"\n")


def test_a_run_after_a_kill_in_the_middle_of_the_list_works(toy_project, rwlock):
    """The file of DVC's hardlink lock is the lock, which would be held for a year, and so is not made."""
    for left in ("", '{"write": {"data/first": {"pi'):
        rwlock.write_text(left)
        assert len(repair(toy_project)) == 1
        assert list(rwlock.parent.iterdir()) == []
    rwlock.write_text(left)
    assert repro("first", toy_project) == "ran"


def test_a_whole_list_no_list_and_one_that_is_being_written_stay_as_they_are(toy_project, rwlock):
    assert (repair(toy_project), rwlock.exists()) == ([], False)
    rwlock.write_text(json.dumps({"write": {}, "read": {}}))
    assert (repair(toy_project), json.loads(rwlock.read_text())) == ([], {"write": {}, "read": {}})
    rwlock.write_text("")
    with rwlock.with_suffix(".lock").open("a") as guard:
        fcntl.flock(guard, fcntl.LOCK_EX)
        assert (repair(toy_project), rwlock.exists()) == ([], True)
    with a_dvc_in(toy_project) as other:
        assert f"process {other}" in repair(toy_project)[0]
    assert rwlock.exists(), "another DVC works here"


@pytest.fixture
def second(after):
    return after("second", lambda: repro("second", Path.cwd()))


FIRST = "schema: '2.0'\nstages:\n  first:\n"
CUT = ("'pyth", "a\n    deps:\n", "a\n    params:\n      params.yaml:\n")
HALVES = ("", "schema: '2.0'\nstages:", FIRST, *(f"{FIRST}    cmd: {half}" for half in CUT))
"""What a full disk or a kill leaves of dvc.lock; some of it is YAML."""


def test_a_half_written_lock_file_is_set_aside_and_no_stage_runs_again(second, toy_project, ran):
    ran()
    broken = toy_project / "runs" / "dvc.lock.broken"
    for left in HALVES:
        (toy_project / "dvc.lock").write_text(left)
        assert len(repair(toy_project)) == 1, left
        assert broken.read_text() == left
        broken.unlink()
    (toy_project / "dvc.lock").write_text(HALVES[-1])
    assert repro("second", toy_project) == "restored"
    assert ran() == []
    assert repro("second", toy_project, pytest.fail) == "skipped"


def entries_of_the_run_cache(project):
    return list((project / ".dvc" / "cache" / "runs").glob("??/*/*"))


@pytest.mark.parametrize("left", ["half beside the whole", "half alone", "an empty folder"])
def test_what_is_left_of_an_entry_of_the_run_cache_is_removed_and_a_whole_one_is_used(second, toy_project, ran, left):
    """DVC takes half of it for the entry, as the newest file there, and ends; it ends at an empty folder as well."""
    ran()
    for entry in entries_of_the_run_cache(toy_project):
        half = entry.with_name(".3hbIm_kBw2Kh0TEWqyDyCA.tmp")
        half.write_text(entry.read_text(encoding="utf-8").partition("outs:")[0], encoding="utf-8")
        if left != "half beside the whole":
            entry.unlink()
        if left == "an empty folder":
            half.unlink()
    (toy_project / "dvc.lock").unlink()
    verdict = repro("second", toy_project)
    assert (verdict, ran()) == (("restored", []) if "beside" in left else ("ran", ["first", "second"]))
    assert len(entries_of_the_run_cache(toy_project)) == 2


def test_unfinished_files_of_the_cache_go_once_no_dvc_that_could_write_them_is_at_work(toy_project):
    cache, name = toy_project / ".dvc" / "cache" / "files" / "md5", ".3hbIm_kBw2Kh0TEWqyDyCA.tmp"
    whole, left = cache / "4a" / "21de", [cache / name, cache / "4a" / name, toy_project / "data" / name]
    for path in (whole, *left):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(1000))
    other = toy_project.parent / "other"  # another checkout on the same cache, as runs with --set are
    (other / ".dvc").mkdir(parents=True)
    (other / ".dvc" / "config").write_text(f"[cache]\n    dir = {toy_project / '.dvc' / 'cache'}\n")
    with a_dvc_in(other):
        assert (repair(toy_project), all(path.exists() for path in left)) == ([], True)
    repair(toy_project)
    assert (whole.exists(), any(path.exists() for path in left)) == (True, False)
