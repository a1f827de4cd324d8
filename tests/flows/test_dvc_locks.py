"""What a killed DVC left half-written."""

import fcntl
import json
import subprocess
import sys

import pytest

from flows import dvc, dvc_locks


@pytest.fixture
def rwlock(toy_project):
    path = toy_project / ".dvc" / "tmp" / "rwlock"
    path.parent.mkdir(exist_ok=True)
    return path


def test_a_run_after_a_kill_in_the_middle_of_the_list_works(toy_project, rwlock):
    rwlock.write_text('{"write": {"data/first": {"pi')
    said = []
    assert dvc.repro("first", toy_project, said.append, lambda _: None) == "ran"
    assert "had left half of it" in said[0]


def test_a_whole_list_and_no_list_stay_as_they_are(toy_project, rwlock):
    dvc_locks.mend(toy_project, pytest.fail)
    assert not rwlock.exists()
    rwlock.write_text(json.dumps({"write": {}, "read": {}}))
    dvc_locks.mend(toy_project, pytest.fail)
    assert json.loads(rwlock.read_text()) == {"write": {}, "read": {}}


def test_a_list_that_is_being_written_is_left_alone(toy_project, rwlock):
    rwlock.write_text("")
    with rwlock.with_suffix(".lock").open("a") as guard:
        fcntl.flock(guard, fcntl.LOCK_EX)
        dvc_locks.mend(toy_project, pytest.fail)
    assert rwlock.exists()


def test_a_broken_list_stays_while_another_dvc_works_here(toy_project, rwlock):
    rwlock.write_text("")
    waits = [sys.executable, "-c", "input()", "dvc"]
    with subprocess.Popen(waits, cwd=toy_project, stdin=subprocess.PIPE) as other:
        said = []
        dvc_locks.mend(toy_project, said.append)
        assert f"process {other.pid}" in said[0]
        other.communicate(b"\n")
    assert rwlock.exists()


@pytest.mark.parametrize("left", ["", "schema: '2.0'\nstages:\n  first:\n    cmd: 'pyth", "stages: {}\n"])
def test_a_half_written_lock_file_is_set_aside_and_no_stage_runs_again(toy_project, ran, left):
    dvc.repro("second", toy_project, print, print)
    assert ran() == ["first", "second"]
    (toy_project / "dvc.lock").write_text(left)
    said = []
    assert dvc.repro("second", toy_project, said.append, print) == "restored"
    assert ran() == []
    assert "written by half" in said[0]
    assert (toy_project / "runs" / "dvc.lock.broken").read_text() == left
    assert dvc.repro("second", toy_project, pytest.fail, print) == "skipped"
