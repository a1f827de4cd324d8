"""What calls of the Prefect server do when it is away, and how the server of a run ends."""

import logging
import signal
import subprocess
from unittest import mock

import httpx
import pytest

from flows import cli
from flows.commands import run as run_command
from flows.server import api, local_server
from tasks.stage.errors import InputError


def test_a_call_nobody_waits_for_leaves_a_lost_server_alone_for_a_while(monkeypatch):
    now, extra = 1000.0, api.OptionalCalls()
    server = mock.Mock(side_effect=[httpx.ConnectError("All connection attempts failed"), "answer"])
    monkeypatch.setattr(api.time, "monotonic", lambda: now)
    assert extra(server) is None
    now += api.QUIET_S - 1
    assert extra(server) is None, "it was not asked"
    now += 2
    assert extra(server) == "answer"


def test_a_defect_in_such_a_call_is_not_hidden():
    with pytest.raises(ZeroDivisionError):
        api.OptionalCalls()(lambda: 1 / 0)


@pytest.mark.parametrize(
    ("name", "text", "error", "stays"),
    [
        ("prefect.FlowRunSuspendingObserver", "The websocket failed with an exception", OSError(), False),
        ("prefect.events.clients", "Attaching only 10 related resources", None, True),
        ("prefect.events", "Service 'EventsWorker' failed to process item Event()", None, False),
        ("asyncio", "Exception in callback FlowRunCancellingObserver._handle(<Task cancelled>)", OSError(), False),
        ("asyncio", "Exception in callback of someone else", OSError(), True),
    ],
)
def test_what_services_of_prefect_say_of_a_lost_server_is_left_out_and_nothing_else(name, text, error, stays):
    about = None if error is None else (type(error), error, None)
    assert api.filter_outages(logging.LogRecord(name, logging.ERROR, "", 0, text, (), about)) is stays


def test_a_refused_run_ends_the_server_that_started_before_the_checks_and_leaves_no_log(toy_project, monkeypatch):
    calls = mock.Mock()
    calls.start.side_effect = lambda log: [(toy_project / log).touch(), mock.Mock(end=calls.end)][1]
    calls.check.side_effect = InputError("nothing was started: no disk")
    monkeypatch.setattr(run_command, "start_early", calls.start)
    monkeypatch.setattr("flows.checks.preflight.require_runnable", calls.check)
    with pytest.raises(SystemExit):
        cli.main(["run"])
    assert [name for name, _, _ in calls.mock_calls] == ["start", "check", "end"]
    assert list((toy_project / "runs" / "logs").iterdir()) == []


def test_a_server_that_does_not_stop_is_killed(monkeypatch):
    monkeypatch.setattr(local_server, "SECONDS_TO_STOP", 0.1)
    with subprocess.Popen(["sh", "-c", "trap '' TERM; echo; exec sleep 60"], stdout=subprocess.PIPE) as deaf:
        deaf.stdout.readline()  # the signal is ignored from here
        local_server.LocalServer(deaf, "").end()
        assert deaf.returncode == -signal.SIGKILL
