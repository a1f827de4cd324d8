"""The Prefect server is killed in the middle of a run."""

import time

import pytest

from tests.faults import processes, small_run, table
from tests.faults.small_run import Case
from tests.flows.workers.worker_hosts import Server


@pytest.fixture
def server(tmp_path):
    running = Server(tmp_path / "server")
    yield running
    running.stop()


@pytest.mark.faults
@pytest.mark.parametrize("seconds", [5, 60, None])
def test_the_server_is_killed_while_a_stage_runs(seconds, tmp_path, pictures, server):
    name = "for good" if seconds is None else f"for {seconds} s"
    stage = "pretrain@phase1"
    with table.case("server lost", f"local flow, {name}") as notes:
        project = pictures.project_before(stage, tmp_path / "project", later_from_cache=True)
        case, log = Case(project, tmp_path, server.url), tmp_path / "flow.log"
        flow = case.start(*case.flow(stage, "gate@squad"), log=log)
        processes.wait_for(lambda: f"Running stage '{stage}'" in log.read_text(), 90.0, "the stage has not begun")
        server.stop()
        if seconds is not None:
            time.sleep(seconds)  # so long is it gone
            server.start()
        code = flow.wait(timeout=300)
        processes.require_none(case.mark)
        lines = [line for line in log.read_text().splitlines() if line.strip()]
        notes.append(f"exit code {code}: {lines[-1][:120]}")
        assert code in (0, 1), log.read_text()[-3000:]
        if code == 0:
            small_run.require_published_once(project)
        if seconds is None:
            server.start()
        again = case.run(*case.flow(stage, "gate@squad"))
        if again.returncode:
            raise table.Lost(f"the next run ended with exit code {again.returncode}:\n{again.stdout[-2500:]}")
        small_run.require_same(project, pictures.digests)
        small_run.require_whole(project)
        small_run.require_published_once(project)
