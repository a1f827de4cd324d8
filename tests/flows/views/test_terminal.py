"""What someone sees of `podium run`, in a real terminal and in a pipe, with real keys; and how it ends."""

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time

import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import StateType
from prefect.client.schemas.sorting import FlowRunSort
from prefect.settings import PREFECT_API_URL
from prefect.states import Cancelling

from flows.runs.report import read_report, run_outcome
from flows.runs.stopping import RESUME_HINT
from tests.flows.conftest import TOY_PLAN
from tests.flows.toy_runs import run_json
from tests.flows.workers.worker_hosts import is_alive, wait_until
from tests.places import ROOT

COMMAND = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
from flows import cli
from flows.runs import checkout
checkout.CODE = ("stage.py", "tasks", ".dvcignore")
{TOY_PLAN}
cli.main(["run", *sys.argv[1:]])
"""
WAITS = """
import os, signal, sys, time
from tasks.stage.events import report
report("progress", percent=42, text="update 3/7  loss 5.1234  12 s left")
open("here", "w").write(str(os.getpid()))
"""
WORKS = f"{WAITS}while True:\n    time.sleep(0.05)\n"
"""In pieces: Python notices a signal that comes just before a sleep only after it."""
TRAINS = f"""{WAITS}
asked = []
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda number, frame: asked.append(number))
while not asked:
    time.sleep(0.05)
time.sleep(1.0)
where = "after update 3 of 7 (checkpoint saved)"
report("paused", text="pretrain job: stopped on request, " + where + "; run it again to continue")
sys.exit(4)
"""
BEFORE_ANY_UPDATE = TRAINS.replace("after update 3 of 7 (checkpoint saved)", "before the first update")
IS_DEAF = WORKS.replace("while", "signal.signal(signal.SIGINT, signal.SIG_IGN)\nopen('deaf', 'w').write('yes')\nwhile")


def at_a_terminal():
    """As a shell starts a command in its foreground, whatever started these tests."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


class Terminal:
    """A `podium run` in the foreground of a terminal of its own."""

    def __init__(self, project, environment, *words):
        self.end, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
        streams = dict.fromkeys(("stdin", "stdout", "stderr"), theirs)
        options = {"env": environment, "start_new_session": True, "preexec_fn": at_a_terminal, **streams}
        self.process = subprocess.Popen([sys.executable, "-c", COMMAND, *words], cwd=project, **options)
        os.close(theirs)
        self.raw = ""

    def press_ctrl_c(self):
        """It reaches every process in the foreground, as the kernel does it."""
        os.write(self.end, b"\x03")

    def hang_up(self):
        """Close the terminal, as a lost connection does, which sends SIGHUP; returns the exit code of the command."""
        os.close(self.end)
        return self.process.wait(timeout=120.0)

    def read(self, pattern=None, seconds=120.0):
        """Read until `pattern` was written, else to the end; whether it was."""
        until = time.monotonic() + seconds
        while pattern is None or not re.search(pattern, self.plain()):
            if not select.select([self.end], [], [], max(0.0, until - time.monotonic()))[0]:
                return False
            try:
                self.raw += os.read(self.end, 65536).decode(errors="replace")
            except OSError:  # Linux: everybody has closed the other end
                return False
        return True

    def wait(self):
        """Read until the command ends; its exit code."""
        self.read()
        return self.hang_up()

    def plain(self):
        """What was written, without escape codes; a line that was written over keeps its last words only."""
        lines = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self.raw).replace("\r\n", "\n").split("\n")
        return "\n".join(line.rsplit("\r", 1)[-1].rstrip() for line in lines)

    def last(self):
        # Prefect may warn of events that it did not send.
        lines = [line for line in self.plain().strip().split("\n") if " | WARNING | EventsWorker - " not in line]
        return lines[-1]


@pytest.fixture
def environment(prefect_session, toy_project):
    """Of commands on the server of this session, in colour."""
    kept = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "FORCE_COLOR")}
    # A busy host would have a note on what did not answer in time.
    return {**kept, "PREFECT_API_URL": PREFECT_API_URL.value(), "PODIUM_CHECK_SECONDS": "120", "TERM": "xterm"}


@pytest.fixture
def start(toy_project, environment):
    """Starts a run in a terminal, with this as each stage."""

    def start(stage, *words):
        (toy_project / "stage.py").write_text(stage)
        return Terminal(toy_project, environment, *words)

    return start


def wait_for_file(path):
    return wait_until(lambda: path.exists() and path.read_text(), path.name, 120)


HOSTILE = """
print('\\x1b]0;owned\\x07[red]x[/red] \\x9b2J')
import sys
from tasks.stage.events import report
report('failed', text='\\x1b[2J[bold]gone')
sys.exit(1)
"""


def test_a_failed_run_says_its_error_once_last_and_in_red_and_nothing_that_a_terminal_obeys(toy_project, start):
    terminal = start(HOSTILE, "--verbose")
    assert terminal.wait() == 1, terminal.plain()
    plain = terminal.plain().strip()
    assert plain.endswith("\nerror: stage first failed (exit code 1): \\x1b[2J[bold]gone")
    assert plain.count("gone") == 1
    assert terminal.raw.rstrip().split("\n")[-1].startswith("\x1b[31m"), "in red"
    assert "\\x1b]0;owned\\x07[red]x[/red] \\x9b2J" in plain
    assert not re.search(r"NoneType|Crash|View at| \| INFO|Traceback", plain)
    (named,) = re.findall(r"(?m)^log: (.*)$", plain)
    log = (toy_project / named).read_text()
    assert "\\x1b]0;owned" in log, "which someone shows on a terminal later, and workers at once"
    for shown in (terminal.raw, log):
        assert not re.search(r"\x1b\]0|\x1b\[2J", shown)


ENDS = (
    (TRAINS, "keys", 4, "paused"),
    (TRAINS, signal.SIGINT, 4, "paused"),  # as a batch system does, which knows this process only
    (TRAINS, signal.SIGTERM, 4, "paused"),
    (TRAINS, "lost", 4, "paused"),
    (WORKS, "keys", 130, "cancelled"),
    (WORKS, signal.SIGTERM, 143, "cancelled"),
    (WORKS, "lost", 129, "cancelled"),
    (BEFORE_ANY_UPDATE, "keys", 130, "cancelled"),
)


@pytest.mark.parametrize(
    ("stage", "how", "code", "status"), [ENDS[0], *(pytest.param(*row, marks=pytest.mark.soak) for row in ENDS[1:])]
)
def test_a_stopped_run_waits_for_the_checkpoint_or_ends_as_the_signal_does(
    toy_project, start, stage, how, code, status
):
    terminal = start(stage)
    assert terminal.read(r"42% first .*12 s left"), terminal.plain()
    if how == "lost":
        assert terminal.hang_up() == code
    else:
        terminal.press_ctrl_c() if how == "keys" else os.kill(terminal.process.pid, how)
        assert terminal.wait() == code, terminal.plain()
        assert terminal.last() == run_json(toy_project)["paused" if code == 4 else "error"]
        assert ("after update 3 of 7 (checkpoint saved)" if code == 4 else RESUME_HINT) in terminal.last()
        assert "Crash" not in terminal.plain()
    assert run_json(toy_project)["stages"][-1]["status"] == status
    with get_client(sync_client=True) as client:
        [run] = client.read_flow_runs(sort=FlowRunSort.EXPECTED_START_TIME_DESC, limit=1)
    assert run.state.name.lower() == status


@pytest.mark.soak
@pytest.mark.parametrize(("stage", "end"), [(WORKS, "nothing half-written was kept"), (TRAINS, "checkpoint saved")])
def test_a_run_that_is_cancelled_in_prefect_stops_and_is_cancelled_everywhere(toy_project, start, stage, end):
    terminal = start(stage)
    wait_for_file(toy_project / "here")
    with get_client(sync_client=True) as client:
        [run] = client.read_flow_runs(sort=FlowRunSort.EXPECTED_START_TIME_DESC, limit=1)
        client.set_flow_run_state(run.id, Cancelling())
        terminal.wait()
        assert end in terminal.last()
        assert client.read_flow_run(run.id).state.type == StateType.CANCELLED
    record = read_report(toy_project, toy_project)
    assert (run_outcome(record), record.interrupted) == ("cancelled", "a cancellation in Prefect")


@pytest.mark.soak
def test_a_command_in_the_background_of_a_script_hears_sigterm_and_its_stage_ends(toy_project, environment):
    """There the shell lets everything ignore SIGINT."""
    (toy_project / "stage.py").write_text(WORKS)
    words = ["/bin/sh", "-c", f"trap '' INT; exec {sys.executable} -c \"$0\"", COMMAND]
    command = subprocess.Popen(words, cwd=toy_project, env=environment)
    stage = int(wait_for_file(toy_project / "here"))
    command.terminate()
    assert command.wait(60) == 143
    assert {record["status"] for record in run_json(toy_project)["stages"]} == {"cancelled"}
    wait_until(lambda: not is_alive(stage), "the end of the stage", 10)


@pytest.mark.soak
def test_a_second_ctrl_c_waits_for_nothing_and_leaves_nothing_behind(toy_project, start):
    terminal = start(IS_DEAF)
    wait_for_file(toy_project / "deaf")
    stage = int((toy_project / "here").read_text())
    terminal.press_ctrl_c()
    assert not terminal.read("Podium run", seconds=2.0), "it waits for the stage"
    terminal.press_ctrl_c()
    assert terminal.wait() == 130, terminal.plain()
    assert "nothing half-written was kept" in terminal.last()
    wait_until(lambda: not is_alive(stage), "the end of the stage", 10)


WITH_A_SIGNAL = """
import os, signal, subprocess, sys

pending = [signal.SIGINT]
os.register_at_fork(**{sys.argv[1]: lambda: pending and os.kill(os.getpid(), pending.pop())})
from flows.runs.stopping import Interrupted, stop

with stop.listen():
    try:
        subprocess.run(["true"], preexec_fn=lambda: None)
        signal.pause()
    except Interrupted as reason:
        print(reason, flush=True)
        os.kill(os.getpid(), signal.SIGINT)
        print("goes on")
"""


@pytest.mark.parametrize("where", ["before", "after_in_parent"])
def test_a_signal_during_a_fork_is_raised_after_it_and_a_second_one_ends_the_process(where):
    done = subprocess.run([sys.executable, "-c", WITH_A_SIGNAL, where], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (130, "Ctrl-C\n", "")
