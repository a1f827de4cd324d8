"""What a command uses, all of its processes together."""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

LOOKS_PER_SECOND = 5


@dataclass(frozen=True)
class Usage:
    """Of a command from its start to its end."""

    code: int
    """Its exit code."""
    cpu_s: float
    """User and system seconds of all its processes."""
    wall_s: float
    peak_mb: float
    """The most seen of the sum of their PSS: resident pages, those that several share counted once. 2**20 bytes."""


def run_measured(command: Sequence[str], folder: Path, environment: Mapping[str, str], log: Path) -> Usage:
    """Run a command to its end; what it prints goes to `log`."""
    started_at = time.perf_counter()
    with log.open("w", encoding="utf-8") as stream:
        process = subprocess.Popen(command, cwd=folder, env=dict(environment), stdout=stream, stderr=stream)
    looker = _Looker(process.pid)
    looker.start()
    try:
        _, status, used = os.wait4(process.pid, 0)  # of the process and of those it waited for
    except BaseException:
        process.kill()
        process.wait()
        raise
    finally:
        looker.stop()
    process.returncode = os.waitstatus_to_exitcode(status)
    wall = time.perf_counter() - started_at
    return Usage(process.returncode, used.ru_utime + used.ru_stime, wall, looker.peak_kb / 1024)


class _Looker(threading.Thread):
    """Looks at the memory of a process and its descendants again and again."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self._pid, self._ended = pid, threading.Event()
        self.peak_kb = 0

    def run(self) -> None:
        while not self._ended.wait(1 / LOOKS_PER_SECOND):
            self.peak_kb = max(self.peak_kb, sum(pss_kb(pid) for pid in process_tree(self._pid)))

    def stop(self) -> None:
        """Look no more."""
        self._ended.set()
        self.join()


def process_tree(pid: int) -> Iterator[int]:
    """The process and all below it; those that end meanwhile are left out."""
    yield pid
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = task.read_text(encoding="ascii").split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        for child in children:
            yield from process_tree(int(child))


def pss_kb(pid: int) -> int:
    """Proportional set size in units of 1024 bytes; 0 of a process that has ended."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("Pss:")), 0)
