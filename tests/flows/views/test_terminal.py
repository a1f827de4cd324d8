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
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterState, FlowRunFilterStateType
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
RED = "\x1b[31m"
WAITS = """
import os, signal, sys, time
from tasks.stage.events import report
report("progress", percent=42, text="update 3/7  loss 5.1234  12 s left")
open("here", "w").write(str(os.getpid()))
"""
WORKS = "while True:\n    time.sleep(0.05)\n"
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
IS_DEAF = f"""{WAITS}
signal.signal(signal.SIGINT, signal.SIG_IGN)
open("deaf", "w").write("yes")
{WORKS}"""
ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
CTRL_C = b"\x03"


class Terminal:
    """A command in the foreground of a terminal of its own; the terminal is its standard input, output and error."""

    def __init__(self, words, cwd, environment):
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
        streams = dict.fromkeys(("stdin", "stdout", "stderr"), theirs)
        options = {"env": {**environment, "TERM": "xterm"}, "start_new_session": True, "preexec_fn": _at_a_terminal}
        self.process = subprocess.Popen(words, cwd=cwd, **streams, **options)
        os.close(theirs)
        self.raw = ""

    def type(self, keys):
        """Press keys; Ctrl-C reaches every process in the foreground, as the kernel does it."""
        os.write(self._ours, keys)

    def hang_up(self):
        """Close the terminal, as a lost connection does, which sends SIGHUP; returns the exit code of the command."""
        os.close(self._ours)
        return self.process.wait(timeout=120.0)

    def wait_for(self, pattern, seconds=120.0):
        """Read on until something was written that `pattern` finds; TimeoutError if it did not come."""
        until = time.monotonic() + seconds
        while not re.search(pattern, ESCAPE.sub("", self.raw)):
            if time.monotonic() > until or not self._read(until - time.monotonic()):
                raise TimeoutError(f"{pattern!r} did not come; the terminal shows:\n{self.plain()}")

    def end(self, seconds=120.0):
        """Read until the command ends; returns its exit code."""
        until = time.monotonic() + seconds
        while self._read(until - time.monotonic()):
            pass
        os.close(self._ours)
        return self.process.wait(timeout=max(1.0, until - time.monotonic()))

    def plain(self):
        """What was written, without escape codes; a line that was written over keeps its last words only."""
        lines = ESCAPE.sub("", self.raw).replace("\r\n", "\n").split("\n")
        return "\n".join(line.rsplit("\r", 1)[-1].rstrip() for line in lines)

    def _read(self, seconds):
        """Take what comes next; False where the command has closed the terminal, or nothing came in time."""
        ready, _, _ = select.select([self._ours], [], [], max(0.0, seconds))
        if not ready:
            return False
        try:
            found = os.read(self._ours, 65536)
        except OSError:  # Linux: everybody has closed the other end
            return False
        self.raw += found.decode(errors="replace")
        return bool(found)


def _at_a_terminal():
    """As a shell starts a command in its foreground, whatever started these tests."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture
def environment(prefect_session, toy_project):
    """Of commands on the server of this session, in colour."""
    kept = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "FORCE_COLOR")}
    # A busy host would have a note on what did not answer in time.
    return {**kept, "PREFECT_API_URL": PREFECT_API_URL.value(), "PODIUM_CHECK_SECONDS": "120"}


def words(*more):
    return [sys.executable, "-c", COMMAND, *more]


def wait_for_file(path, terminal):
    return wait_until(lambda: path.exists() and path.read_text(), f"{path.name} of {terminal}", 120)


HOSTILE = """
print('\\x1b]0;owned\\x07[red]x[/red] \\x9b2J')
import sys
from tasks.stage.events import report
report('failed', text='\\x1b[2J[bold]gone')
sys.exit(1)
"""


def test_a_failed_run_says_its_error_once_last_and_in_red_and_nothing_that_a_terminal_obeys(toy_project, environment):
    (toy_project / "stage.py").write_text(HOSTILE)
    terminal = Terminal(words("--verbose"), toy_project, environment)
    assert terminal.end() == 1, terminal.plain()
    *before, last = terminal.plain().strip().split("\n")
    assert last == "error: stage first failed (exit code 1): \\x1b[2J[bold]gone"
    assert terminal.plain().count("gone") == 1
    assert terminal.raw.rstrip().split("\n")[-1].startswith(RED), "in red"
    assert "\\x1b]0;owned\\x07[red]x[/red] \\x9b2J" in terminal.plain()
    for noise in ("NoneType", "Crash", "View at", " | INFO", "Traceback"):
        assert noise not in terminal.plain()
    (named,) = [line.removeprefix("log: ") for line in before if line.startswith("log: ")]
    log = (toy_project / named).read_text()
    assert "\\x1b]0;owned" in log, "which someone shows on a terminal later, and workers at once"
    for shown in (terminal.raw, log):
        assert "\x1b]0" not in shown
        assert "\x1b[2J" not in shown


@pytest.mark.parametrize(
    ("stage", "how", "code", "status"),
    [
        (TRAINS, "keys", 4, "paused"),
        *(
            pytest.param(*row, marks=pytest.mark.soak)
            for row in (
                (TRAINS, signal.SIGINT, 4, "paused"),  # as a batch system does, which knows this process only
                (TRAINS, signal.SIGTERM, 4, "paused"),
                (TRAINS, "lost", 4, "paused"),
                (WAITS + WORKS, "keys", 130, "cancelled"),
                (WAITS + WORKS, signal.SIGTERM, 143, "cancelled"),
                (WAITS + WORKS, "lost", 129, "cancelled"),
                (BEFORE_ANY_UPDATE, "keys", 130, "cancelled"),
            )
        ),
    ],
)
def test_a_stopped_run_waits_for_the_checkpoint_or_ends_as_the_signal_does(
    toy_project, environment, stage, how, code, status
):
    (toy_project / "stage.py").write_text(stage)
    terminal = Terminal(words(), toy_project, environment)
    terminal.wait_for(r"42% first .*12 s left")
    if how == "lost":
        assert terminal.hang_up() == code
    else:
        terminal.type(CTRL_C) if how == "keys" else os.kill(terminal.process.pid, how)
        assert terminal.end() == code, terminal.plain()
        last = terminal.plain().strip().split("\n")[-1]
        assert last == run_json(toy_project)["paused" if code == 4 else "error"]
        assert ("after update 3 of 7 (checkpoint saved)" if code == 4 else RESUME_HINT) in last
        assert "Crash" not in terminal.plain()
    assert run_json(toy_project)["stages"][-1]["status"] == status
    with get_client(sync_client=True) as client:
        [run] = client.read_flow_runs(sort=FlowRunSort.EXPECTED_START_TIME_DESC, limit=1)
    assert run.state.name.lower() == status


@pytest.mark.soak
@pytest.mark.parametrize(
    ("stage", "end"), [(WAITS + WORKS, "nothing half-written was kept"), (TRAINS, "checkpoint saved")]
)
def test_a_run_that_is_cancelled_in_prefect_stops_and_is_cancelled_everywhere(toy_project, environment, stage, end):
    (toy_project / "stage.py").write_text(stage)
    terminal = Terminal(words(), toy_project, environment)
    wait_for_file(toy_project / "here", terminal)
    with get_client(sync_client=True) as client:
        (run,) = client.read_flow_runs(
            flow_run_filter=FlowRunFilter(state=FlowRunFilterState(type=FlowRunFilterStateType(any_=["RUNNING"])))
        )
        client.set_flow_run_state(run.id, Cancelling())
        terminal.end()
        assert end in terminal.plain().strip().split("\n")[-1]
        assert client.read_flow_run(run.id).state.type == StateType.CANCELLED
    record = read_report(toy_project, toy_project)
    assert (run_outcome(record), record.interrupted) == ("cancelled", "a cancellation in Prefect")


@pytest.mark.soak
def test_a_command_in_the_background_of_a_script_hears_sigterm_and_its_stage_ends(toy_project, environment):
    """There the shell lets everything ignore SIGINT."""
    (toy_project / "stage.py").write_text(WAITS + WORKS)
    ignores = lambda: signal.signal(signal.SIGINT, signal.SIG_IGN)  # noqa: E731
    command = subprocess.Popen(words(), cwd=toy_project, env=environment, preexec_fn=ignores)
    wait_for_file(toy_project / "here", command)
    command.terminate()
    assert command.wait(60) == 143
    assert {one["status"] for one in run_json(toy_project)["stages"]} == {"cancelled"}
    wait_until(lambda: not is_alive(int((toy_project / "here").read_text())), "the end of the stage", 10)


@pytest.mark.soak
def test_a_second_ctrl_c_waits_for_nothing_and_leaves_nothing_behind(toy_project, environment):
    (toy_project / "stage.py").write_text(IS_DEAF)
    terminal = Terminal(words(), toy_project, environment)
    wait_for_file(toy_project / "deaf", terminal)
    stage = int((toy_project / "here").read_text())
    terminal.type(CTRL_C)
    with pytest.raises(TimeoutError):
        terminal.wait_for("Podium run", seconds=2.0)  # it waits for the stage
    terminal.type(CTRL_C)
    assert terminal.end(60) == 130, terminal.plain()
    # Prefect may warn of events that it did not send.
    own = [line for line in terminal.plain().strip().split("\n") if " | WARNING | EventsWorker - " not in line]
    assert "nothing half-written was kept" in own[-1]
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
        print(reason)
"""
TWICE = """
import os, signal
from flows.runs.stopping import Interrupted, stop

with stop.listen():
    try:
        os.kill(os.getpid(), signal.SIGINT)
    finally:
        os.kill(os.getpid(), signal.SIGINT)
        print("goes on")
"""


@pytest.mark.parametrize(
    ("arguments", "ended"),
    [
        ([WITH_A_SIGNAL, "before"], (0, "Ctrl-C\n", "")),
        ([WITH_A_SIGNAL, "after_in_parent"], (0, "Ctrl-C\n", "")),
        ([TWICE], (130, "", "")),
    ],
    ids=["before a fork", "after a fork", "twice"],
)
def test_a_signal_during_a_fork_is_raised_after_it_and_a_second_one_ends_the_process(arguments, ended):
    done = subprocess.run([sys.executable, "-c", *arguments], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == ended
