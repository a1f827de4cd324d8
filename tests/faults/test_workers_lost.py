"""Runs on workers when a worker, its whole host, or the Prefect server is lost in the middle of training.

What must hold: the run that sent the stages ends well by itself once there is a worker; the stage that was lost is run
again, by one process at a time; stages that were done are not run a second time; nothing runs on a lost host.
The stages are the toys of tests/flows/worker_hosts.py; hosts, queues, remote and server are real processes.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

import pytest
from tests.flows.worker_hosts import Team, is_alive, wait_until

from tests.faults import table

ROW = "worker lost"
SECONDS_TO_NOTICE = 240.0
"""A lost run is seen by its missing heartbeats, after 90 s and the server's next look."""


@pytest.fixture
def team(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Team]:
    team = Team(tmp_path_factory.mktemp("team"))
    team.host("preparing").start_worker("cpu", "default", "cpu")
    team.host("training").start_worker("cpu", "trainer", "cpu,cuda")
    yield team
    team.close()


def require_done_once(team: Team, code: int) -> None:
    """The run ended well; what the first host had made was made once."""
    if code:
        raise table.Lost(f"the run ended with exit code {code}:\n{team.office.said()[-3000:]}")
    assert team.hosts["preparing"].ran() == ["corpus", "validate@corpus", "evaluate", "gate"]
    assert team.report()["published"]["folder"] == "published/podium-demo"


@pytest.mark.faults
def test_the_training_host_is_lost_and_another_takes_over(team: Team) -> None:
    with table.case(ROW, "worker, flow and stage killed; another host") as notes:
        run, stage = team.start_training()
        team.hosts["training"].lose()
        wait_until(lambda: not is_alive(stage), "the stage of the lost host")
        spare = team.host("spare")
        spare.start_worker("cpu", "trainer", "cpu,cuda")
        team.office.hold.unlink()
        started_at = time.monotonic()
        code = run.wait(timeout=SECONDS_TO_NOTICE)
        notes.append(f"done {time.monotonic() - started_at:.0f} s after the loss")
        require_done_once(team, code)
        assert spare.ran() == ["pretrain@phase1"]
        assert team.hosts["training"].ran() == ["pretrain@phase1"]


@pytest.mark.faults
def test_only_the_worker_is_killed_and_started_again(team: Team) -> None:
    with table.case(ROW, "worker process killed; started again") as notes:
        training = team.hosts["training"]
        run, stage = team.start_training()
        assert training.worker is not None
        os.kill(training.worker.pid, signal.SIGKILL)
        training.worker.wait()
        training.start_worker("cpu", "trainer", "cpu,cuda")
        team.office.hold.unlink()
        started_at = time.monotonic()
        code = run.wait(timeout=SECONDS_TO_NOTICE)
        notes.append(f"done {time.monotonic() - started_at:.0f} s later, training ran {len(training.ran())} times")
        require_done_once(team, code)
        wait_until(lambda: not is_alive(stage), "the stage of the lost worker")


@pytest.mark.faults
def test_the_server_is_gone_for_a_minute(team: Team) -> None:
    with table.case("server lost", "run on workers, for 60 s") as notes:
        run, _ = team.start_training()
        team.server.stop()
        time.sleep(60)  # so long is it gone
        team.server.start()
        team.office.hold.unlink()
        started_at = time.monotonic()
        code = run.wait(timeout=SECONDS_TO_NOTICE)
        notes.append(f"done {time.monotonic() - started_at:.0f} s after it came back")
        require_done_once(team, code)
