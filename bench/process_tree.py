"""What a command uses, all of its processes together."""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

LOOKS_PER_SECOND = 5


@dataclass(frozen=True)
class Usage:
    """What a command took, from its start to its end."""

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
            self.peak_kb = max(self.peak_kb, pss_kb(self._pid))

    def stop(self) -> None:
        """Look no more."""
        self._ended.set()
        self.join()


def pss_kb(pid: int) -> int:
    """Proportional set size of a process and all below it, in units of 1024 bytes; what has ended counts nothing."""
    found = 0
    with contextlib.suppress(psutil.NoSuchProcess):
        top = psutil.Process(pid)
        for process in (top, *top.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess):
                found += process.memory_full_info().pss // 1024
    return found
