"""The processes of one run, found by a mark in their environment that every child inherits (Linux)."""

import os
import signal
import threading
import time
from pathlib import Path

from tests.faults.table import Leak

MARK = "PODIUM_FAULT_CASE"
SECONDS_TO_END = 20.0
"""What a run may take to end after its parent died or it was told to: a checkpoint is written meanwhile."""


def of_case(mark):
    """Process id -> command line of every living process that carries the mark."""
    found = {}
    wanted = f"{MARK}={mark}\0".encode()
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit() or int(folder.name) == os.getpid():
            continue
        try:
            if wanted not in (folder / "environ").read_bytes() + b"\0":
                continue
            command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue  # it ended meanwhile
        if command:  # a dead process that no one has waited for has none
            found[int(folder.name)] = command
    return found


def trainers(mark):
    found = [process for process, command in of_case(mark).items() if " -m ipu_model " in f"{command} "]
    return [process for process in found if _parent(process) not in found]


def _parent(process):
    try:
        return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
    except (FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
        return 0


def kill_all(mark):
    wait_for(lambda: not _kill_once(mark), 10.0, "killed processes are still there")


def _kill_once(mark):
    found = of_case(mark)
    for process in found:
        try:
            os.kill(process, signal.SIGKILL)
        except ProcessLookupError:
            continue
    return bool(found)


def require_none(mark, seconds=SECONDS_TO_END):
    """Wait until all have ended."""
    until = time.monotonic() + seconds
    while left := of_case(mark):
        if time.monotonic() > until:
            raise Leak(f"{len(left)} processes are left {seconds:.0f} s later: " + "; ".join(left.values()))
        time.sleep(0.05)


def wait_for(condition, seconds, what):
    """Look every 20 ms until the condition is true."""
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            raise TimeoutError(f"{what}, {seconds:.0f} s later")
        time.sleep(0.02)


class TrainerCount:
    """Counts the trainers of a run while the body runs: `most` is how many there were at once."""

    def __init__(self, mark):
        self._mark, self._over, self.most = mark, threading.Event(), 0
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def _watch(self):
        while not self._over.wait(0.1):
            self.most = max(self.most, len(trainers(self._mark)))

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *error):
        self._over.set()
        self._thread.join()
