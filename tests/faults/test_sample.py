"""A case of the matrix in every `make test`: the first stage only, without the flow."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from flows.dvc import leftovers
from tests.faults import processes, small_run, table
from tests.faults.small_run import Case
from tests.faults.test_kill_points import SEED

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
