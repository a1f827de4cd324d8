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
        leftovers.repair(toy_project, (said := []).append)
        assert len(said) == 1
        assert list(rwlock.parent.iterdir()) == []
    rwlock.write_text(left)
    assert repro("first", toy_project) == "ran"


def test_a_whole_list_no_list_and_one_that_is_being_written_stay_as_they_are(toy_project, rwlock):
    leftovers.repair(toy_project, pytest.fail)
    assert not rwlock.exists()
    rwlock.write_text(json.dumps({"write": {}, "read": {}}))
    leftovers.repair(toy_project, pytest.fail)
    assert json.loads(rwlock.read_text()) == {"write": {}, "read": {}}
    rwlock.write_text("")
    with rwlock.with_suffix(".lock").open("a") as guard:
        fcntl.flock(guard, fcntl.LOCK_EX)
        leftovers.repair(toy_project, pytest.fail)
    assert rwlock.exists()


def test_a_broken_list_stays_while_another_dvc_works_here(toy_project, rwlock):
    rwlock.write_text("")
    with a_dvc_in(toy_project) as other:
        leftovers.repair(toy_project, (said := []).append)
        assert f"process {other}" in said[0]
    assert rwlock.exists()


@pytest.fixture
def second(after):
    return after("second", lambda: repro("second", Path.cwd()))


FIRST = "schema: '2.0'\nstages:\n  first:\n"
HALVES = (
    "",
    "schema: '2.0'\nstages:",
    FIRST,
    f"{FIRST}    cmd: 'pyth",
    f"{FIRST}    cmd: a\n    deps:\n",
    f"{FIRST}    cmd: a\n    params:\n      params.yaml:\n",
)
"""What a full disk or a kill leaves of dvc.lock; some of it is YAML."""


def test_a_half_written_lock_file_is_set_aside_and_no_stage_runs_again(second, toy_project, ran):
    ran()
    broken = toy_project / "runs" / "dvc.lock.broken"
    for left in HALVES:
        (toy_project / "dvc.lock").write_text(left)
        said = []
        leftovers.repair(toy_project, said.append)
        assert len(said) == 1, left
        assert broken.read_text() == left
        broken.unlink()
    (toy_project / "dvc.lock").write_text(HALVES[-1])
    assert repro("second", toy_project) == "restored"
    assert ran() == []
    assert (repro("second", toy_project, said := []), said) == ("skipped", [])


def entries_of_the_run_cache(project):
    return list((project / ".dvc" / "cache" / "runs").glob("??/*/*"))


@pytest.mark.parametrize("alone", [True, pytest.param(False, marks=pytest.mark.soak)], ids=["half alone", "nothing"])
def test_an_entry_of_the_run_cache_that_was_not_finished_is_as_none(second, toy_project, alone):
    """DVC ends at the folder of an entry that holds half of it, or nothing."""
    for entry in entries_of_the_run_cache(toy_project):
        half = entry.rename(entry.with_name(".3hbIm_kBw2Kh0TEWqyDyCA.tmp"))
        half.write_text(half.read_text(encoding="utf-8").partition("outs:")[0], encoding="utf-8")
        if not alone:
            half.unlink()
    (toy_project / "dvc.lock").unlink()
    assert repro("second", toy_project) == "ran"
    assert len(entries_of_the_run_cache(toy_project)) == 2


def test_half_of_an_entry_of_the_run_cache_is_removed_and_no_stage_runs_again(second, toy_project, ran):
    """DVC takes it for the entry, as it is the newest file there, and ends with 'outs'."""
    ran()
    for entry in entries_of_the_run_cache(toy_project):
        half = entry.read_text(encoding="utf-8").partition("outs:")[0]
        entry.with_name(".3hbIm_kBw2Kh0TEWqyDyCA.tmp").write_text(half, encoding="utf-8")
    (toy_project / "dvc.lock").unlink()
    said = []
    assert repro("second", toy_project, said) == "restored"
    assert ran() == []
    assert len(said) == 1


def test_unfinished_files_of_the_cache_go_once_no_dvc_that_could_write_them_is_at_work(toy_project):
    cache = toy_project / ".dvc" / "cache" / "files" / "md5"
    (cache / "4a").mkdir(parents=True)
    whole = cache / "4a" / "21de"
    left = [cache / ".3hbIm_kBw2Kh0TEWqyDyCA.tmp", cache / "4a" / ".FHm-1Dwn_STBbsB9JSQsKw.tmp"]
    left.append(toy_project / "data" / ".IqLW4I-8BYjCmFLwLOovjg.tmp")
    left[-1].parent.mkdir()
    for path in (whole, *left):
        path.write_bytes(bytes(1000))
    other = toy_project.parent / "other"  # another checkout on the same cache, as runs with --set are
    (other / ".dvc").mkdir(parents=True)
    (other / ".dvc" / "config").write_text(f"[cache]\n    dir = {toy_project / '.dvc' / 'cache'}\n")
    with a_dvc_in(other):
        leftovers.repair(toy_project, pytest.fail)
        assert all(path.exists() for path in left)
    leftovers.repair(toy_project, print)
    assert whole.exists()
    assert not any(path.exists() for path in left)
