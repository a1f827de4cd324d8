"""The fork server: what a forked module sees and returns, and that neither side outlives the other."""

import os
import signal
import socket
import subprocess
import sys

import pytest

from tasks.stage import start
from tests.faults.processes import wait_for
from tests.places import ROOT

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="descriptors of processes exist on Linux only")

WORK = """
import os, sys
print("imported by", __name__, flush=True)
def preload():
    import colorsys
if __name__ == "__main__":
    stage = os.environ["DVC_STAGE"]
    print(stage, sys.argv[1:], os.getcwd(), sys.stdin.read(), sys.modules["__main__"].__spec__.name, flush=True)
    print("colorsys" in sys.modules, os.getpgrp() == int(os.environ.get("GROUP", os.getpgrp())), flush=True)
    sys.stderr.write("to standard error\\n")
    if stage == "fails":
        sys.exit("no input")
    if stage == "crashes":
        raise ValueError("a bug")
    sys.exit({"pauses": 4}.get(stage))
"""
WAITS = """
import os, time
line = open(os.environ["LINE"], "w")
print("started", os.getpid(), os.getppid(), file=line, flush=True)
time.sleep(120)
"""
JOB = """
import os, sys
from tasks.stage.fork_server import take_reserve
job = take_reserve()
assert take_reserve() is None
os.mkdir("scratch")
os.chdir("scratch")
job.start("work", ["of the job"], {**os.environ, "DVC_STAGE": "pauses"})
sys.stdout.write(job.stdout.read())
print(job.wait(), job.poll())
"""


@pytest.fixture
def folder(tmp_path):
    for name, text in (("work", WORK), ("waits", WAITS), ("job", JOB)):
        (tmp_path / f"{name}.py").write_text(text)
    os.mkfifo(tmp_path / "line")
    return tmp_path


@pytest.fixture
def server(folder):
    """A fork server that listens, and the environment of its stages."""
    place = folder / "forks"
    group = {"GROUP": str(os.getpgrp()), start.FORKS: str(place)}
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}", "LINE": str(folder / "line"), **group}
    command = [sys.executable, "-m", "tasks.stage.fork_server", str(place), "work"]
    with open(folder / "imports", "w") as out:
        streams = {"stdin": subprocess.DEVNULL, "stdout": out}
        process = subprocess.Popen(command, cwd=folder, env=environment, process_group=0, **streams)
        wait_for(lambda: connects(place), 60, "the server listens")
        yield process, environment
        process.kill()
        process.wait()


def connects(place):
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as ours:
        return ours.connect_ex(str(place)) == 0


def command_of(module, stage):
    return [sys.executable, "-m", "tasks.stage.start", module, stage]


def run(folder, environment, stage, module="work"):
    streams = {"cwd": folder, "env": {**environment, "DVC_STAGE": stage}, "stdin": subprocess.DEVNULL}
    return subprocess.run(command_of(module, stage), check=False, **streams).returncode


def test_a_forked_module_does_what_python_m_does(server, folder, capfd):
    _, environment = server
    assert "imported by work" in (folder / "imports").read_text()
    for stage, code in (("works", 0), ("pauses", 4), ("fails", 1), ("crashes", 1)):
        assert run(folder, environment, stage) == code
        forked = capfd.readouterr()
        assert run(folder, {**environment, start.FORKS: ""}, stage) == code
        plain = capfd.readouterr()
        assert "False True" in plain.out
        assert forked.out == plain.out.replace("False True", "True True")  # what `preload` imports is there
        assert forked.err.splitlines()[-1] == plain.err.splitlines()[-1]


def test_code_that_changed_after_its_import_does_not_run_in_the_server(server, folder, capfd):
    assert run(folder, server[1], "works") == 0
    (folder / "work.py").write_text(WORK.replace("standard error", "nowhere"))
    capfd.readouterr()
    assert run(folder, server[1], "works") == 0
    printed = capfd.readouterr()
    assert "False True" in printed.out
    assert "to nowhere" in printed.err


def test_a_stage_whose_server_is_gone_runs_by_itself(server, folder, capfd):
    process, environment = server
    process.kill()
    process.wait()
    assert run(folder, environment, "pauses") == 4
    assert "False True" in capfd.readouterr().out


@pytest.mark.parametrize("ends", ["requester", "process"])
def test_neither_the_requester_nor_the_process_outlives_the_other_unnoticed(server, folder, ends):
    process, environment = server
    waiting = subprocess.Popen(command_of("waits", "waits"), cwd=folder, env=environment)
    with waiting as requester, open(folder / "line") as line:
        _, pid, parent = line.readline().split()
        assert int(parent) == process.pid
        if ends == "process":
            os.kill(int(pid), signal.SIGKILL)
            assert requester.wait(60) == -signal.SIGKILL
        else:
            requester.kill()
            assert line.read() == ""  # it got SIGTERM, long before its sleep ends
    assert run(folder, environment, "works") == 0, "the server stays"


def test_a_device_job_runs_in_the_reserve_of_its_stage_and_in_its_current_folder(server, folder, capfd):
    assert run(folder, server[1], "works", "job") == 0
    lines = capfd.readouterr().out.splitlines()
    assert lines[-4].startswith(f"pauses ['of the job'] {folder}/scratch ")
    assert lines[-3:] == ["True True", "to standard error", "4 4"]
