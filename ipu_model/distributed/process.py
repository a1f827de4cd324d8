"""Process control of a job: end with the parent, stop on SIGTERM or at PODIUM_STOP_AT, lock the run folder."""

from __future__ import annotations

import contextlib
import ctypes
import datetime
import errno
import fcntl
import math
import os
import resource
import signal
import sys
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Callable, Dict, Iterator, List, Optional, Sequence, Tuple

from ipu_model.core.errors import ConfigError

PAUSED = 4
"""Exit code of a job that stopped early on purpose and continues when started again."""
STOP_AT = "PODIUM_STOP_AT"
PATIENCE_SECONDS = 5.0
"""Time that the current update may still take after SIGTERM, before it is aborted between two micro-batches. The sender
of SIGTERM usually follows up with SIGKILL (Slurm after 30 s), and the checkpoint needs time as well."""
PR_SET_PDEATHSIG = 1
LOCK = "lock"
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
SPINS = "10000"
"""Some hundreds of microseconds of spinning. That is longer than the pauses between the operations of a step, so that
threads need not be woken for each (with a tenth of it, an update of 2 layers on 2 idle cores took 1.5 to 1.7 times as
long), and far shorter than a time slice of the scheduler."""


class Terminated(Exception):
    """An early stop on purpose, after saving a checkpoint if possible. The message says why and after which update."""


class StopRequest:
    """State of SIGTERM, Ctrl-C and PODIUM_STOP_AT; times are seconds since 1970."""

    def __init__(self, stop_at: Optional[float] = None, clock: Callable[[], float] = time.time) -> None:
        self.requested = False
        self.agree: Callable[[Sequence[bool]], List[bool]] = list
        """Combines the votes of all processes of a training: True if any process votes True, one result per vote. All
        must stop after the same update, because one that continued would wait for the others forever."""
        self._stop_at, self._clock = stop_at, clock
        self._requested_at: Optional[float] = None
        self._time_was_up = False

    def listen(self) -> None:
        """Install handlers for SIGTERM and SIGINT."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, frame: Optional[FrameType]) -> None:
        self.requested = True
        if self._requested_at is None:
            self._requested_at = time.monotonic()

    def decide(self, seconds_needed: float = 0.0, save: bool = False) -> Tuple[bool, bool]:
        """Return whether to stop now, and whether to save a checkpoint. Every process calls this once per update.

        It needs `seconds_needed` for one more update and the checkpoint after it. `save`: a checkpoint is due by the
        clock of this process; clocks differ, so only one process votes.
        """
        stopping, saving = self.agree([self.requested or self._time_is_up(seconds_needed), save])
        return stopping, saving

    def time_is_up(self, seconds_needed: float) -> bool:
        """Return whether any process has less time left than that; every process must call this."""
        return self.agree([self._time_is_up(seconds_needed)])[0]

    def _time_is_up(self, seconds_needed: float) -> bool:
        if self._stop_at is not None and self._clock() + seconds_needed >= self._stop_at:
            self._time_was_up = True
        return self._time_was_up

    def deadline_near(self) -> bool:
        """Return whether SIGTERM came more than PATIENCE_SECONDS ago, so that the current update should be aborted."""
        return self._requested_at is not None and time.monotonic() - self._requested_at > PATIENCE_SECONDS

    def reason(self) -> str:
        """Return the reason why this process stops, for messages."""
        if self.requested:
            return "stopped on request"
        if self._time_was_up and self._stop_at is not None:
            ends = datetime.datetime.fromtimestamp(self._stop_at, datetime.timezone.utc)
            return f"stopped because of {STOP_AT} ({ends:%Y-%m-%d %H:%M:%S} UTC)"
        return "another process of this training received a stop request"

    def check(self) -> None:
        """Raises: Terminated, if SIGTERM came."""
        if self.requested:
            raise Terminated(self.reason())


@contextlib.contextmanager
def exit_on_signals() -> Iterator[None]:
    """Restore the default action of SIGTERM and SIGINT inside: a process that waits for others, or compiles, does not
    run Python handlers.

    Use it only while there is nothing to save.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, signal.SIG_DFL) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)  # None: set outside Python


def parse_stop_time(setting: Optional[str]) -> Optional[float]:
    """Parse PODIUM_STOP_AT into seconds since 1970; None: no limit.

    It is a point in time, not a duration: the stages of a run, their restarts and the hosts of a training share one
    reservation, and none of them knows when it started. It is 2026-11-20T18:00:00Z, 2026-11-20T18:00:00+01:00, or
    seconds since 1970 (date +%s); otherwise ConfigError is raised.
    """
    if not setting:
        return None
    text = setting.strip()
    seconds = math.nan
    with contextlib.suppress(ValueError):
        moment = datetime.datetime.fromisoformat(text[:-1] + "+00:00" if text.endswith("Z") else text)
        seconds = moment.timestamp() if moment.tzinfo is not None else math.nan
    with contextlib.suppress(ValueError):
        seconds = float(text)
    if not math.isfinite(seconds):
        raise ConfigError(
            f"{STOP_AT}={setting!r} is not a valid time: use date, time and zone (2026-11-20T18:00:00+01:00, or Z for "
            "UTC), or seconds since 1970; in a shell $(date -d '+8 hours' +%s)"
        )
    return seconds


def die_with_parent(number: int = signal.SIGTERM) -> None:
    """Ask the kernel to send a signal when the parent ends, so that no training outlives its flow (Linux).

    Raises:
        Terminated: the parent has already ended.
    """
    if not sys.platform.startswith("linux"):
        return
    parent = os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, number)
    # If it ended before the call above, this process already belongs to init (or a reaper).
    if os.getppid() != parent:
        raise Terminated("the process that started this one has ended")


def limit_spinning() -> None:
    """Make waiting OpenMP threads sleep sooner; call it before importing torch.

    By default a waiting thread spins for milliseconds. On a busy host it spins on the very core that the awaited
    thread needs: an update of a small model on 2 shared cores took 2 to 60 times as long. On an idle host the
    difference is a few percent. A setting of the user is not changed.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", SPINS)


@contextlib.contextmanager
def lock_run_folder(run_folder: Path) -> Iterator[None]:
    """Lock the run folder for this process; the kernel releases the lock however the process ends.

    Only the lock counts, not the file, so the file of a killed process blocks no one. On a shared disk the lock works
    between hosts if the file system forwards flock. NFS does; after the loss of a host it waits until the server
    notices.

    Raises:
        ConfigError: another process holds the lock, or the file system has no locks.
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
                f"{run_folder} is in use by {owner}: wait for it, stop it, or set another run_folder for this job"
            ) from None
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise
            raise ConfigError(
                f"{run_folder} is on a file system without locks ({error.strerror}), where two jobs could write to it "
                "at the same time: put runs on another disk"
            ) from None
        stream.seek(0)
        stream.truncate()
        since = datetime.datetime.now(datetime.timezone.utc)
        stream.write(f"process {os.getpid()} on {os.uname().nodename} since {since:%Y-%m-%d %H:%M:%S} UTC\n")
        stream.flush()
        yield


def measure_memory() -> Dict[str, float]:
    """Return memory_mb, the resident memory of this process in MB of 2**20 bytes; empty if the system has no /proc."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return {}
    return {"memory_mb": round(pages * resource.getpagesize() / 2**20, 1)}


def peak_memory_mb() -> float:
    """Return the peak resident memory of this process in MB of 2**20 bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 2**20 if sys.platform == "darwin" else peak / 2**10
