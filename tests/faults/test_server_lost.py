"""The Prefect server is killed in the middle of a run."""

import time

import pytest

from tests.faults import processes, small_run
from tests.faults.small_run import Case
from tests.flows.workers.worker_hosts import Server

STAGE = "pretrain@phase1"


@pytest.fixture
def server(tmp_path):
    running = Server(tmp_path / "server")
    yield running
    running.stop()


@pytest.mark.faults
@pytest.mark.parametrize("seconds", [5, 60, None], ids=["5 s", "60 s", "for good"])
def test_the_server_is_killed_while_a_stage_runs(seconds, tmp_path, pictures, server):
    project = pictures.project_before(STAGE, tmp_path / "project", later_from_cache=True)
    case, log = Case(project, tmp_path, server.url), tmp_path / "flow.log"
    words = case.flow(STAGE, "gate@squad")
    flow = case.start(*words, log=log)
    processes.wait_for(lambda: f"Running stage '{STAGE}'" in log.read_text(), 90.0, "the stage has not begun")
    server.stop()
    if seconds is not None:
        time.sleep(seconds)  # so long is it gone
        server.start()
    code = flow.wait(timeout=300)
    processes.require_none(case.mark)
    assert code in (0, 1), log.read_text()
    if code == 0:
        small_run.require_published_once(project)
    if seconds is None:
        server.start()
    case.succeed(*words)
    small_run.require_whole(project, pictures.digests, published=True)
