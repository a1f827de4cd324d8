"""What the cases share: one Prefect server and one undisturbed run with a picture of the project before every stage."""

import fcntl
import json
import os
import shutil
import time
from pathlib import Path

import pytest

from tests.faults import small_run
from tests.faults.pictures import Pictures
from tests.faults.small_run import Case
from tests.flows.workers.worker_hosts import Server
from tests.tasks.conftest import hub_over_http  # noqa: F401 (the fixture `hub`)


@pytest.fixture(scope="session")
def shared(tmp_path_factory, worker_id):
    """A folder for all workers of this pytest run, or of several: PODIUM_FAULT_FOLDER keeps the undisturbed run."""
    if kept := os.environ.get("PODIUM_FAULT_FOLDER"):
        return Path(kept)
    base = tmp_path_factory.getbasetemp()
    return base if worker_id == "master" else base.parent


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    """The API address of a Prefect server of this worker, so that not every run has to start one."""
    running = Server(tmp_path_factory.mktemp("server"))
    yield running.url
    running.stop()


@pytest.fixture(scope="session")
def pictures(shared):
    """The undisturbed run, made once for all workers; another code makes another."""
    folder = shared / f"pictures-{small_run.code_hash()}"
    with (shared / "pictures.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "seconds.json").exists():
            shutil.rmtree(folder, ignore_errors=True)
            take_pictures(folder)
    return Pictures(folder)


def take_pictures(folder):
    """Run stage by stage, copying the project before each, then publish."""
    folder.mkdir()
    case = Case(small_run.make_project(folder / "work"), folder)
    seconds = {}
    for stage in (*small_run.PLAN, small_run.PUBLISH):
        shutil.copytree(case.project, folder / "before" / stage, symlinks=True)
        started_at = time.monotonic()
        done = case.run(*case.stage(stage))
        assert done.returncode == 0, done.stdout
        seconds[stage] = round(time.monotonic() - started_at, 2)
    (folder / "seconds.json").write_text(json.dumps(seconds))


@pytest.fixture
def new_case(tmp_path):
    return lambda project: Case(project, tmp_path)


@pytest.fixture
def new_flow(tmp_path, server):
    return lambda project: Case(project, tmp_path, server)
