"""A flow without a server of its own is killed: nothing of it is left, not even the server it had started."""

import os
import signal

import pytest

from tests.faults import processes, table
from tests.faults.small_run import Case, make_project


@pytest.mark.faults
def test_the_temporary_server_ends_with_a_flow_that_is_killed(tmp_path):
    with table.case("SIGKILL, then again", "flow with a temporary server"):
        patience = {"PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "120"}  # a busy machine is not a fault
        case = Case(make_project(tmp_path / "project"), tmp_path, extra=patience)
        log = tmp_path / "flow.log"
        flow = case.start(*case.flow(), log=log)
        processes.wait_for(lambda: "Running stage 'corpus@text'" in log.read_text(), 120.0, log.read_text())
        assert any("uvicorn" in command for command in processes.of_case(case.mark).values()), "it has no server"
        os.kill(flow.pid, signal.SIGKILL)
        flow.wait()
        processes.require_none(case.mark)
