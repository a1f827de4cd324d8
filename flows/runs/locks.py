"""Locks of the runs on this host. The operating system releases a lock when its process ends for any reason."""

import contextlib
import fcntl
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from tasks.stage import artifacts

FOLDER = artifacts.RUNS / "locks"
CHECKOUT_LOCK, DISPATCH_LOCK = ".lock", ".sent"
"""Suffixes of a run's locks: of the process that works in the checkout, and of the run that has sent its stages to
workers, one of which may work in that same folder."""
CACHE = "cache"
"""Lock that all runs share, and that `podium clean` takes exclusively to remove objects from DVC's cache."""

_held: set[Path] = set()
"""Locks of this process, which it does not need to wait for."""


@contextlib.contextmanager
def hold_run(project: Path, name: str, say: Callable[[str], None], kind: str = CHECKOUT_LOCK) -> Iterator[None]:
    """Hold the lock of a run; wait while another run of the same name has it.

    Args:
        name: name of the checkout, "." for the project folder.
        say: called with a message before waiting.
        kind: CHECKOUT_LOCK or DISPATCH_LOCK.
    """
    path = project / FOLDER / f"{name}{kind}"
    if path in _held:
        yield
        return
    with contextlib.ExitStack() as stack:
        cleaning, running = "DVC's cache is being cleaned", f"run {name} is already in progress"
        for file, how, why in ((path.with_name(CACHE), fcntl.LOCK_SH, cleaning), (path, fcntl.LOCK_EX, running)):
            lock = stack.enter_context(_opened(file))
            if not _take(lock, how):
                say(f"{why}; waiting")
                fcntl.flock(lock, how)
        _held.add(path)
        try:
            yield
        finally:
            _held.remove(path)


@contextlib.contextmanager
def try_lock_run(project: Path, name: str) -> Iterator[bool]:
    """Try to lock a run; yield whether that succeeded."""
    with contextlib.ExitStack() as stack:
        locks = [stack.enter_context(_opened(path)) for path in _paths(project, name)]
        yield all(_take(lock, fcntl.LOCK_EX) for lock in locks)


@contextlib.contextmanager
def try_lock_cache(project: Path) -> Iterator[bool]:
    """Try to lock DVC's cache, which fails during a run; yield whether that succeeded."""
    with _opened(project / FOLDER / CACHE) as lock:
        yield _take(lock, fcntl.LOCK_EX)


def is_running(project: Path, name: str) -> bool:
    """Return whether a run of that name is active on this host, or waits for its workers."""
    return any(path in _held or (path.is_file() and not _is_free(path)) for path in _paths(project, name))


def _paths(project: Path, name: str) -> list[Path]:
    return [project / FOLDER / f"{name}{kind}" for kind in (CHECKOUT_LOCK, DISPATCH_LOCK)]


def _is_free(path: Path) -> bool:
    with path.open("rb") as lock:  # shared, so that two checks at the same time do not see each other as a run
        return _take(lock, fcntl.LOCK_SH)


def _opened(path: Path) -> IO[bytes]:
    path.parent.mkdir(parents=True, exist_ok=True)
    return path.open("ab")


def _take(lock: IO[bytes], how: int) -> bool:
    try:
        fcntl.flock(lock, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
