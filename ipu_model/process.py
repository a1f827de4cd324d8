"""The job as a process: dies with its parent, stops on SIGTERM, one per run folder."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import resource
import signal
import socket
import sys
from pathlib import Path
from types import FrameType
from typing import Callable, Iterator, Optional

from ipu_model.errors import ConfigError

TERMINATED = 143
"""128 + SIGTERM, the exit code a shell gives such a process."""
PR_SET_PDEATHSIG = 1
LOCK = "lock"
SPINS = "10000"
"""Some hundreds of microseconds: longer than the pauses between the operations of a step, so that no thread has to be
woken for each of them (with a tenth of it an update of 2 layers on 2 idle cores took 1.5 to 1.7 times as long), and
far shorter than what the system lets a thread run."""


class Terminated(Exception):
    """SIGTERM was received; what could be kept was saved."""


class StopRequest:
    """Remembers that SIGTERM (or Ctrl-C) came, so that the update under way is finished first."""

    def __init__(self) -> None:
        self.requested = False
        self.agree: Callable[[bool], bool] = bool
        """Of several processes that train together: whether any of them was told to stop. They must end with the
        same update, as one that went on would wait for the others forever."""

    def listen(self) -> None:
        """Take over SIGTERM and SIGINT for this process."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, frame: Optional[FrameType]) -> None:
        self.requested = True

    def decide(self) -> bool:
        """Whether to stop after this update; called once per update, by every process."""
        return self.agree(self.requested)

    def check(self) -> None:
        """Raises: Terminated, if SIGTERM came."""
        if self.requested:
            raise Terminated


def die_with_parent() -> None:
    """Ask the kernel for SIGTERM when the parent ends, so that no trainer outlives its flow (Linux).

    Raises:
        Terminated: the parent had ended already.
    """
    if not sys.platform.startswith("linux"):
        return
    parent = os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    # It may have ended before the call above; then this process already belongs to init (or a reaper).
    if os.getppid() != parent:
        raise Terminated


def limit_spinning() -> None:
    """Let OpenMP threads sleep soon when they wait for each other; takes effect before torch is imported.

    By default a waiting thread spins for milliseconds. On a host that does other work too, it spins on the
    very core the awaited thread needs: an update of a small model on 2 shared cores took 2 to 60 times as long.
    On an idle host the difference is within a few percent. What the user set stays.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", SPINS)


@contextlib.contextmanager
def only_one(run_folder: Path) -> Iterator[None]:
    """Hold the run folder for this process; the kernel lets go of it however the process ends.

    Raises:
        ConfigError: another process holds it.
    """
    run_folder.mkdir(parents=True, exist_ok=True)
    path = run_folder / LOCK
    with path.open("a+", encoding="utf-8") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            stream.seek(0)
            owner = stream.read().strip() or "another process"
            raise ConfigError(
                f"{run_folder} is in use by {owner}: wait for it, stop it, or give this job another run_folder"
            ) from None
        stream.seek(0)
        stream.truncate()
        stream.write(f"process {os.getpid()} on {socket.gethostname()}\n")
        stream.flush()
        yield


def peak_memory_mb() -> float:
    """Peak resident memory of this process, MB of 2**20 bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 2**20 if sys.platform == "darwin" else peak / 2**10
