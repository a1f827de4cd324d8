"""A sample of the matrix, one of its cases in every `make test`: the first stages only, without the flow."""

from __future__ import annotations

import random
import shutil
import time
from pathlib import Path

import pytest

from flows.dvc import leftovers
from tests.faults import processes, small_run, table
from tests.faults.damage import FLIPPED_UNSEEN, damage
from tests.faults.small_run import Case
from tests.faults.test_disk_full import leave, small_disk
from tests.faults.test_kill_points import SEED
from tests.faults.test_two_at_once import holder, start_both

ROW = "sample of make test"
CORPUS = ["-m", "dvc", "repro", "corpus@text"]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """A project whose corpus is made, and the hashes of it."""
    home = tmp_path_factory.mktemp("undisturbed")
    case = Case(small_run.make_project(home / "project"), home)
    done = case.run(*CORPUS)
    assert done.returncode == 0, done.stdout
    return case.project, small_run.digests(case.project)


@pytest.fixture
def fresh(tmp_path: Path) -> Case:
    """A project in which nothing has run."""
    return Case(small_run.make_project(tmp_path / "project"), tmp_path)


def require_as(case: Case, reference: dict[str, str]) -> None:
    done = case.run(*CORPUS)
    if done.returncode:
        raise table.Lost(done.stdout)
    small_run.require_same(case.project, reference)
    small_run.require_whole(case.project)
    processes.require_none(case.mark, 5.0)


def test_killed_and_run_again(fresh: Case, undisturbed: tuple[Path, dict[str, str]]) -> None:
    source = random.Random(SEED)
    with table.case(ROW, "SIGKILL twice, then again"):
        for _ in range(2):
            run = fresh.start(*CORPUS)
            time.sleep(source.uniform(0.5, 2.0))  # the random moment itself
            run.kill()
            run.wait()
            processes.require_none(fresh.mark)
        leftovers.repair(fresh.project, print)  # as flows do: a DVC killed while it writes its list leaves half of it
        require_as(fresh, undisturbed[1])


@pytest.mark.faults
def test_a_full_disk(fresh: Case, undisturbed: tuple[Path, dict[str, str]]) -> None:
    with small_disk(fresh.project / "data", 4) as disk, table.case(ROW, "disk full"):
        starved = fresh.run(*CORPUS)
        assert starved.returncode == 255, starved.stdout
        assert "No space left on device" in starved.stdout
        assert list(disk.rglob("*.parquet")) == []
        leave(disk, 1 << 14)
        require_as(fresh, undisturbed[1])


@pytest.mark.faults
def test_a_byte_the_disk_changed(tmp_path: Path, undisturbed: tuple[Path, dict[str, str]]) -> None:
    with table.case(ROW, "damaged file"):
        case = Case(tmp_path / "project", tmp_path)
        shutil.copytree(undisturbed[0], case.project, symlinks=True)
        assert case.run("-m", "dvc", "status").returncode == 0
        damage(case.project / "data" / "corpus" / "part-00000.parquet", FLIPPED_UNSEEN)
        done = case.run("-m", "dvc", "repro", "validate@corpus")
        assert done.returncode == 255, done.stdout
        assert "error: data/corpus is not what its stage wrote" in done.stdout
        require_as(case, undisturbed[1])


@pytest.mark.faults
def test_two_at_once(fresh: Case, undisturbed: tuple[Path, dict[str, str]]) -> None:
    with table.case(ROW, "two at once"):
        both = start_both(fresh, CORPUS)
        codes = [process.wait(timeout=60) for process, _ in both]
        assert 0 in codes
        for code, (_, log) in zip(codes, both, strict=True):
            assert code == 0 or holder(log.read_text()), log.read_text()
        require_as(fresh, undisturbed[1])
