"""Resource usage of a command, over all of its processes."""

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

SAMPLES_PER_SECOND = 5


@dataclass(frozen=True)
class Usage:
    """Resource usage of a command."""

    code: int
    """Exit code."""
    cpu_s: float
    """User and system seconds of all processes."""
    wall_s: float
    peak_mb: float
    """Highest sampled sum of the processes' PSS (resident pages, shared ones counted once), MB of 2**20 bytes."""


def run_measured(command: Sequence[str], folder: Path, environment: Mapping[str, str], log: Path) -> Usage:
    """Run a command and measure it; its output goes to `log`."""
    started_at = time.perf_counter()
    with log.open("w", encoding="utf-8") as stream:
        process = subprocess.Popen(command, cwd=folder, env=dict(environment), stdout=stream, stderr=stream)
    sampler = _MemorySampler(process.pid)
    sampler.start()
    try:
        _, status, used = os.wait4(process.pid, 0)  # includes children that the process waited for
    except BaseException:
        process.kill()
        process.wait()
        raise
    finally:
        sampler.stop()
    process.returncode = os.waitstatus_to_exitcode(status)
    wall = time.perf_counter() - started_at
    return Usage(process.returncode, used.ru_utime + used.ru_stime, wall, sampler.peak_kb / 1024)


class _MemorySampler(threading.Thread):
    """Thread that samples the memory of a process and its descendants."""

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self._pid, self._ended = pid, threading.Event()
        self.peak_kb = 0

    def run(self) -> None:
        while not self._ended.wait(1 / SAMPLES_PER_SECOND):
            self.peak_kb = max(self.peak_kb, measure_pss_kb(self._pid))

    def stop(self) -> None:
        """Stop sampling."""
        self._ended.set()
        self.join()


def measure_pss_kb(pid: int) -> int:
    """Return the PSS of a process and its descendants in units of 1024 bytes; ended processes count 0."""
    total = 0
    with contextlib.suppress(psutil.NoSuchProcess):
        top = psutil.Process(pid)
        for process in (top, *top.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess):
                total += process.memory_full_info().pss // 1024
    return total
