"""What the cases share: one Prefect server and one undisturbed run with a picture of the project before every stage."""

import fcntl
import os
import shutil
from pathlib import Path

import pytest

from tests.faults import small_run
from tests.faults.pictures import Pictures, take_pictures
from tests.faults.small_run import Case
from tests.flows.workers.worker_hosts import Server
from tests.tasks.conftest import hub_over_http  # noqa: F401 (the fixture `hub`)


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    """The API address of a Prefect server of this worker, so that not every run has to start one."""
    running = Server(tmp_path_factory.mktemp("server"))
    yield running.url
    running.stop()


@pytest.fixture(scope="session")
def pictures(tmp_path_factory, worker_id):
    """The undisturbed run, made once for all workers of pytest; PODIUM_FAULT_FOLDER keeps it, another code makes
    another."""
    base = tmp_path_factory.getbasetemp()
    shared = Path(os.environ.get("PODIUM_FAULT_FOLDER") or (base if worker_id == "master" else base.parent))
    folder = shared / f"pictures-{small_run.code_hash()}"
    with (shared / "pictures.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "seconds.json").exists():
            shutil.rmtree(folder, ignore_errors=True)
            take_pictures(folder)
    return Pictures(folder)


@pytest.fixture
def new_case(tmp_path):
    return lambda project: Case(project, tmp_path)


@pytest.fixture
def new_flow(tmp_path, server):
    return lambda project: Case(project, tmp_path, server)
