"""The fork server: what a forked module sees and returns, and that neither side outlives the other."""

import contextlib
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from flows.dvc.child import ForkServerClient, StageCmdFailedError
from tasks.stage import fork_server
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
    (tmp_path / "imported.py").write_text("")
    os.mkfifo(tmp_path / "line")
    return tmp_path


@pytest.fixture
def server(folder):
    """A client of a fork server that is ready, the server, and the environment of its stages."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}", "LINE": str(folder / "line"), "GROUP": str(os.getpgrp())}
    command = [sys.executable, "-m", "tasks.stage.fork_server", str(theirs.fileno()), "work"]
    with theirs, ours, open(folder / "imports", "w") as out:
        streams = {"stdin": subprocess.DEVNULL, "stdout": out, "pass_fds": [theirs.fileno()]}
        process = subprocess.Popen(command, cwd=folder, env=environment, process_group=0, **streams)
        theirs.close()
        assert select.select([ours], [], [], 60)[0]
        yield ForkServerClient(ours), process, environment
        process.kill()
        process.wait()


def run(server, stage, module="work"):
    """Run a stage in the server. The command that DVC would start instead fails with exit code 1."""
    client, _, environment = server
    client.run("/bin/false", f'python -m {module} "$DVC_STAGE"', {**environment, "DVC_STAGE": stage})


def test_a_forked_module_does_what_python_m_does(server, folder, capfd):
    assert "imported by work" in (folder / "imports").read_text()
    for stage, code in (("works", 0), ("pauses", 4), ("fails", 1), ("crashes", 1)):
        with contextlib.nullcontext() if code == 0 else pytest.raises(StageCmdFailedError) as failure:
            run(server, stage)
        forked = capfd.readouterr()
        assert code == 0 or str(failure.value).endswith(f", exited with {code}")
        command, environment = [sys.executable, "-m", "work", stage], {**server[2], "DVC_STAGE": stage}
        started = subprocess.run(command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, check=False)
        plain = capfd.readouterr()
        assert started.returncode == code
        assert forked.out == plain.out.replace("False True", "True True")  # what `preload` imports is there
        assert forked.err.splitlines()[-1] == plain.err.splitlines()[-1]


def test_code_that_changed_after_its_import_does_not_run_in_the_server(server, folder, capfd):
    run(server, "works")
    (folder / "work.py").write_text(WORK.replace("standard error", "nowhere"))
    with pytest.raises(StageCmdFailedError):  # of /bin/false, so the command was started as DVC does
        run(server, "works")
    assert "to nowhere" not in capfd.readouterr().err


def test_code_that_changed_while_the_server_was_importing_does_not_run_in_it(folder, monkeypatch):
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    importlib.import_module("imported")
    changed = (folder / "imported.py").stat().st_ctime_ns
    assert fork_server.SourceFiles(changed + 1).are_current()
    assert not fork_server.SourceFiles(changed).are_current()


def test_other_commands_and_a_missing_server_are_left_to_dvc(server, folder):
    client, process, environment = server
    client.run("/bin/true", "python work.py", environment)
    process.kill()
    process.wait()
    client.run("/bin/true", 'python -m work "$DVC_STAGE"', {**environment, "DVC_STAGE": "works"})


@pytest.mark.parametrize("ends", ["requester", "process"])
def test_neither_the_requester_nor_the_process_outlives_the_other_unnoticed(server, folder, ends):
    client, process, environment = server
    with ThreadPoolExecutor(1) as threads:
        command = {"module": "waits", "arguments": [], "environment": environment, "group": os.getpgrp()}
        requester = client._requests
        requester.recv(64)
        socket.send_fds(requester, [json.dumps(command).encode()], (0, 1, 2))
        with open(folder / "line") as line:
            _, pid, parent = line.readline().split()
            assert int(parent) == process.pid
            if ends == "process":
                os.kill(int(pid), signal.SIGKILL)
                assert threads.submit(requester.recv, 64).result(60) == b"-9"
            else:
                requester.close()
                assert line.read() == ""  # it got SIGTERM, long before its sleep ends
                assert process.wait(60) == 0


def test_a_device_job_runs_in_the_reserve_of_its_stage_and_in_its_current_folder(server, folder, capfd):
    run(server, "works", "job")
    lines = capfd.readouterr().out.splitlines()
    assert lines[-4].startswith(f"pauses ['of the job'] {folder}/scratch ")
    assert lines[-3:] == ["True True", "to standard error", "4 4"]
