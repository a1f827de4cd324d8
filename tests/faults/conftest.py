"""What the cases share: one Prefect server and one undisturbed run with a picture of the project before every stage."""

import fcntl
import functools
import json
import os
import shutil
import time
from pathlib import Path

import pytest

from tests.faults import small_run
from tests.faults.small_run import Case, digests
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


def take_pictures(folder):
    folder.mkdir()
    case = Case(small_run.make_project(folder / "work"), folder)
    seconds = {}
    for stage in (*small_run.PLAN, small_run.PUBLISH):
        shutil.copytree(case.project, folder / "before" / stage, symlinks=True)
        started_at = time.monotonic()
        case.succeed(*case.stage(stage))
        seconds[stage] = round(time.monotonic() - started_at, 2)
    (folder / "seconds.json").write_text(json.dumps(seconds))


class Pictures:
    def __init__(self, folder):
        self.folder = folder
        self.seconds = json.loads((folder / "seconds.json").read_text())
        """Stage -> seconds of its `dvc repro`; publish -> seconds of the flow that publishes."""

    @functools.cached_property
    def digests(self):
        return digests(self.folder / "work")

    def digests_after(self, stage):
        return digests(self.after(stage))

    def kilobytes_added(self, stage):
        after, before = (
            sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
            for folder in (self.after(stage), self.folder / "before" / stage)
        )
        return (after - before) // 1024

    def after(self, stage):
        later = [*self.seconds][[*self.seconds].index(stage) + 1 :]
        return self.folder / "before" / later[0] if later else self.folder / "work"

    def project_before(self, stage, to, later_from_cache=False):
        shutil.copytree(self.folder / "before" / stage, to, symlinks=True)
        after = self.after(stage)
        for path in (self.folder / "work/.dvc/cache").rglob("*") if later_from_cache else ():
            name = path.relative_to(self.folder / "work")
            if path.is_file() and not (after / name).exists():
                (to / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(path, to / name)
        return to


@pytest.fixture
def new_case(tmp_path):
    return lambda project: Case(project, tmp_path)


@pytest.fixture
def new_flow(tmp_path, server):
    return lambda project: Case(project, tmp_path, server)
