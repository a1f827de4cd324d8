"""The job as a process: dies with its parent, stops on SIGTERM or at a given time, one per run folder."""

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

from ipu_model.errors import ConfigError

PAUSED = 4
"""Exit code: stopped before its end on purpose; started again it continues."""
STOP_AT = "PODIUM_STOP_AT"
PATIENCE_SECONDS = 5.0
"""How long an update under way may still take after SIGTERM, before it is aborted between two micro-batches. Whoever
sends SIGTERM kills after a while (Slurm after 30 s), and the checkpoint takes its time, too."""
PR_SET_PDEATHSIG = 1
LOCK = "lock"
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
SPINS = "10000"
"""Some hundreds of microseconds: longer than the pauses between the operations of a step, so that no thread has to be
woken for each of them (with a tenth of it an update of 2 layers on 2 idle cores took 1.5 to 1.7 times as long), and
far shorter than what the system lets a thread run."""


class Terminated(Exception):
    """The job stopped before its end on purpose; what could be kept was saved. The message says why and where."""


class StopRequest:
    """Remembers that SIGTERM (or Ctrl-C) came, and knows when the time of this host ends.

    Args:
        stop_at: From stop_time.
        clock: Seconds since 1970.
    """

    def __init__(self, stop_at: Optional[float] = None, clock: Callable[[], float] = time.time) -> None:
        self.requested = False
        self.agree: Callable[[Sequence[bool]], List[bool]] = list
        """Whether any of several processes that train together says so, one answer for each question. They must end
        with the same update, as one that went on would wait for the others forever."""
        self._stop_at, self._clock = stop_at, clock
        self._requested_at: Optional[float] = None
        self._time_was_up = False

    def listen(self) -> None:
        """Take over SIGTERM and SIGINT for this process."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, frame: Optional[FrameType]) -> None:
        self.requested = True
        if self._requested_at is None:
            self._requested_at = time.monotonic()

    def decide(self, seconds_needed: float = 0.0, save: bool = False) -> Tuple[bool, bool]:
        """Whether to stop now, and whether to make a checkpoint; called once per update, by every process.

        Args:
            seconds_needed: By one more update and the checkpoint after it.
            save: Whether one is due by the clock of this process; clocks differ, so one process asks for all.
        """
        stopping, saving = self.agree([self.requested or self._time_is_up(seconds_needed), save])
        return stopping, saving

    def time_is_up(self, seconds_needed: float) -> bool:
        """Whether any process has not that much time left; every process must ask."""
        return self.agree([self._time_is_up(seconds_needed)])[0]

    def _time_is_up(self, seconds_needed: float) -> bool:
        if self._stop_at is not None and self._clock() + seconds_needed >= self._stop_at:
            self._time_was_up = True
        return self._time_was_up

    def deadline_near(self) -> bool:
        """Whether SIGTERM came so long ago that the update under way should be aborted."""
        return self._requested_at is not None and time.monotonic() - self._requested_at > PATIENCE_SECONDS

    def reason(self) -> str:
        """Why this process stops, in words."""
        if self.requested:
            return "stopped on request"
        if self._time_was_up and self._stop_at is not None:
            ends = datetime.datetime.fromtimestamp(self._stop_at, datetime.timezone.utc)
            return f"the time of this host ends at {ends:%Y-%m-%d %H:%M:%S} UTC ({STOP_AT})"
        return "another process of this training was asked to stop"

    def check(self) -> None:
        """Raises: Terminated, if SIGTERM came."""
        if self.requested:
            raise Terminated(self.reason())


@contextlib.contextmanager
def ending_at_once() -> Iterator[None]:
    """Let SIGTERM and SIGINT end this process inside: what waits for other processes, or compiles, runs no Python that
    would listen.

    Only where there is nothing to keep yet.
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


def stop_time(asked: Optional[str]) -> Optional[float]:
    """When the time of this host ends, seconds since 1970; None: never.

    A moment and no duration: the stages of a run, their restarts and the hosts of a training share one booking, and
    none of them knows when it began.

    Args:
        asked: PODIUM_STOP_AT: 2026-11-20T18:00:00Z, 2026-11-20T18:00:00+01:00, or seconds since 1970 (date +%s).

    Raises:
        ConfigError: it is none of these.
    """
    if not asked:
        return None
    text = asked.strip()
    try:
        seconds = float(text)
    except ValueError:
        seconds = _moment(text)
    if not math.isfinite(seconds):
        raise ConfigError(
            f"{STOP_AT}={asked!r} is no moment: give date, time and zone (2026-11-20T18:00:00+01:00, or Z for UTC), or "
            "seconds since 1970; in a shell $(date -d '+8 hours' +%s)"
        )
    return seconds


def _moment(text: str) -> float:
    """Seconds since 1970 of a date with time and zone; NaN where it is none."""
    try:
        moment = datetime.datetime.fromisoformat(text[:-1] + "+00:00" if text.endswith("Z") else text)
    except ValueError:
        return math.nan
    return moment.timestamp() if moment.tzinfo is not None else math.nan


def die_with_parent(number: int = signal.SIGTERM) -> None:
    """Ask the kernel for a signal when the parent ends, so that no trainer outlives its flow (Linux).

    Raises:
        Terminated: the parent had ended already.
    """
    if not sys.platform.startswith("linux"):
        return
    parent = os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, number)
    # It may have ended before the call above; then this process already belongs to init (or a reaper).
    if os.getppid() != parent:
        raise Terminated("the process that started this one has ended")


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

    Only the lock counts, never what the file says, so that a file left by a process that was killed blocks nobody. On a
    disk that several hosts see it holds between them where the file system passes flock on (NFS does; after the
    loss of a host, once the server has noticed).

    Raises:
        ConfigError: another process holds it, or the file system has no locks.
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
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise
            raise ConfigError(
                f"{run_folder} lies on a file system without locks ({error.strerror}), where two trainers could write "
                "to it at once: put runs on another disk"
            ) from None
        stream.seek(0)
        stream.truncate()
        since = datetime.datetime.now(datetime.timezone.utc)
        stream.write(f"process {os.getpid()} on {os.uname().nodename} since {since:%Y-%m-%d %H:%M:%S} UTC\n")
        stream.flush()
        yield


def memory_now() -> Dict[str, float]:
    """memory_mb, resident memory of this process, MB of 2**20 bytes; empty where the system does not say."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return {}
    return {"memory_mb": round(pages * resource.getpagesize() / 2**20, 1)}


def peak_memory_mb() -> float:
    """Peak resident memory of this process, MB of 2**20 bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 2**20 if sys.platform == "darwin" else peak / 2**10
