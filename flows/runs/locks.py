"""Which runs are at work on this host: each holds a lock, which the system takes back however its process ends."""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from tasks.stage import artifacts

FOLDER = artifacts.RUNS / "locks"
HERE, SENT = ".lock", ".sent"
"""How the locks of a name end: of whoever works in its checkout, and of the run that has sent its stages to workers,
one of which may work in that same folder."""
CACHE = "cache"
"""Held by every run together, or alone by whoever removes objects from DVC's cache."""

_held: set[Path] = set()
"""By this process: what it holds already it need not wait for."""


@contextlib.contextmanager
def held(project: Path, name: str, say: Callable[[str], None], kind: str = HERE) -> Iterator[None]:
    """Hold a run: two of one name take turns.

    Args:
        name: of its checkout, "." for the project's own folder.
        say: told that another one has to end first.
        kind: HERE or SENT.
    """
    path = project / FOLDER / f"{name}{kind}"
    if path in _held:
        yield
        return
    with contextlib.ExitStack() as stack:
        for file, how, who in ((path.with_name(CACHE), fcntl.LOCK_SH, "podium clean"), (path, fcntl.LOCK_EX, "a run")):
            lock = stack.enter_context(_opened(file))
            if not _take(lock, how):
                where = "on DVC's cache" if file.name == CACHE else f"in the checkout {name}"
                say(f"waiting: {who} is at work {where}")
                fcntl.flock(lock, how)
        _held.add(path)
        try:
            yield
        finally:
            _held.remove(path)


@contextlib.contextmanager
def taken(project: Path, name: str) -> Iterator[bool]:
    """Hold a run if nobody else does; whether it is held now."""
    with contextlib.ExitStack() as stack:
        locks = [stack.enter_context(_opened(project / FOLDER / f"{name}{kind}")) for kind in (HERE, SENT)]
        yield all(_take(lock, fcntl.LOCK_EX) for lock in locks)


@contextlib.contextmanager
def cache_taken(project: Path) -> Iterator[bool]:
    """Hold DVC's cache if no run is at work; whether it is held now."""
    with _opened(project / FOLDER / CACHE) as lock:
        yield _take(lock, fcntl.LOCK_EX)


def at_work(project: Path, name: str) -> bool:
    """Whether a run of that name is at work on this host, or waits for its workers."""
    paths = [project / FOLDER / f"{name}{kind}" for kind in (HERE, SENT)]
    return any(path in _held or (path.is_file() and not _is_free(path)) for path in paths)


def _is_free(path: Path) -> bool:
    with path.open("rb") as lock:  # shared, so that two who look do not take each other for a run
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
