"""The processes of one run, found by a mark in their environment that every child inherits (Linux)."""

import contextlib
import os
import signal
import threading
import time
from pathlib import Path

MARK = "PODIUM_FAULT_CASE"
SECONDS_TO_END = 20.0
"""What a run may take to end after its parent died or it was told to: a checkpoint is written meanwhile."""


def of_case(mark):
    """Process id -> command line of every living process that carries the mark."""
    commands = {}
    wanted = f"{MARK}={mark}\0".encode()
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit() or int(folder.name) == os.getpid():
            continue
        with contextlib.suppress(FileNotFoundError, ProcessLookupError, PermissionError):  # it ended meanwhile
            if wanted in (folder / "environ").read_bytes() + b"\0":
                command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
                if command:  # a dead process that no one has waited for has none
                    commands[int(folder.name)] = command
    return commands


def trainers(mark):
    running = [process for process, command in of_case(mark).items() if " -m ipu_model " in f"{command} "]
    return [process for process in running if _parent(process) not in running]


def _parent(process):
    try:
        return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
    except (FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
        return 0


def kill_all(mark):
    wait_for(lambda: not _kill_once(mark), 10.0, "killed processes are still there")


def _kill_once(mark):
    living = of_case(mark)
    for process in living:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    return living


def require_none(mark, seconds=SECONDS_TO_END):
    wait_for(lambda: not of_case(mark), seconds, "processes are left")


def wait_for(condition, seconds, what):
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, f"{what}, {seconds:.0f} s later"
        time.sleep(0.02)


@contextlib.contextmanager
def one_trainer(mark):
    """Fail at the end of the body if a run had two trainers at once in it."""
    over, counts = threading.Event(), [0]

    def watch():
        while not over.wait(0.1):
            counts.append(len(trainers(mark)))

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
    assert max(counts) <= 1
