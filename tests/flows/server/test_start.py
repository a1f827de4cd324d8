"""The start of a run: its server starts first, and everything that needs no server is done before it answers."""

import contextlib
import signal
import subprocess

import pytest

from flows import cli, pipeline
from flows.commands import run as run_command
from flows.server import local_server
from tasks.stage.errors import InputError, PodiumError


@pytest.fixture
def order(toy_project, monkeypatch, capsys):
    """Steps of `podium run` in order, with a double of the server process that never answers."""
    seen = []

    class Server:
        def end(self):
            seen.append("server ends")

    def start(log):
        seen.append(f"server starts after: {capsys.readouterr().out.strip()}")
        (toy_project / log).touch()
        return Server()

    @contextlib.contextmanager
    def connect(log, started):
        processes = [pipeline._prepared.get()[1].start().process]
        seen.append(f"DVC: {processes[0].poll()}")
        try:
            raise PodiumError("Prefect's temporary server does not answer")
        finally:
            seen.append(processes)
        yield

    monkeypatch.setattr(run_command, "start_early", start)
    monkeypatch.setattr(run_command, "connect_server", connect)
    return seen


FIRST = "server starts after: checking the run and starting Prefect (a few seconds)"


def test_a_refused_run_ends_the_server_that_started_before_the_checks_and_leaves_no_log(
    order, toy_project, monkeypatch
):
    def refuse(request, meanwhile):
        order.append("checks")
        raise InputError("nothing was started: no disk")

    monkeypatch.setattr("flows.checks.preflight.require_runnable", refuse)
    with pytest.raises(SystemExit):
        cli.main(["run"])
    assert order == [FIRST, "checks", "server ends"]
    assert list((toy_project / "runs" / "logs").iterdir()) == []


def test_prefect_is_imported_while_probes_run_and_dvc_starts_before_the_server_answers(
    order, toy_project, monkeypatch, capsys
):
    def check(request, meanwhile):
        order.append("checks")
        meanwhile()

    monkeypatch.setattr("flows.checks.preflight.require_runnable", check)
    monkeypatch.setattr(run_command, "load_flow", lambda: order.append("Prefect"))
    with pytest.raises(SystemExit) as end:
        cli.main(["run", "--name", "one"])
    *steps, processes, last = order
    assert steps == [FIRST, "checks", "Prefect", "Prefect", "DVC: None"]
    assert last == "server ends"
    assert all(process.poll() is not None for process in processes), "they end with the run"
    assert end.value.code == 1
    assert capsys.readouterr().err.strip() == "error: Prefect's temporary server does not answer"
    assert (toy_project / "runs" / "checkouts" / "one" / "params.yaml").is_file(), "prepared, and nothing lost"


def test_a_server_that_does_not_stop_is_killed(monkeypatch):
    monkeypatch.setattr(local_server, "SECONDS_TO_STOP", 0.1)
    deaf = subprocess.Popen(["sh", "-c", "trap '' TERM; echo; exec sleep 60"], stdout=subprocess.PIPE)
    with deaf:
        deaf.stdout.readline()  # the signal is ignored from here
        local_server.LocalServer(deaf, "").end()
        assert deaf.returncode == -signal.SIGKILL
