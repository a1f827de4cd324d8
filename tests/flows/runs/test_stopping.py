import subprocess
import sys

import pytest

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


def run(*arguments):
    return subprocess.run([sys.executable, "-c", *arguments], capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("hook", ["before", "after_in_parent"])
def test_a_signal_during_a_fork_is_raised_after_it(hook):
    done = run(WITH_A_SIGNAL, hook)
    assert (done.stdout, done.stderr) == ("Ctrl-C\n", "")


def test_a_second_ctrl_c_ends_the_process():
    done = run(TWICE)
    assert (done.returncode, done.stdout) == (130, "")
