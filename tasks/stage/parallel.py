"""Work spread over processes: results in the order of the items, a bounded number of them under way.

`PODIUM_WORKERS` says how many processes (default: the cores this process may use), and `PODIUM_STAGES_AT_ONCE` how many
stages without a device run at the same time. Both belong to the host, so they must never change a result: whatever a
function needs besides its item (seeds, numbers) travels with the item.
"""

from __future__ import annotations

import itertools
import logging
import multiprocessing
import multiprocessing.connection
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import TypeVar

from ipu_model.memory import free_memory
from tasks.stage.errors import ParamsError, PodiumError
from tasks.stage.memory import watch_memory

WORKERS = "PODIUM_WORKERS"
STAGES_AT_ONCE = "PODIUM_STAGES_AT_ONCE"
MOST_STAGES = 4
"""More branches than that are rare, and each stage has processes of its own (PODIUM_WORKERS)."""
BYTES_OF_A_STAGE = 4e9
"""What a stage without a device may take of memory, all its processes together: half of it in docs/data-scale.md."""
BYTES_OF_A_FLOW = 4e8
"""What a run that only sends stages and waits may take: twice what it was measured to hold."""
MOST_FLOWS = 32
WAITING_PER_WORKER = 2
"""Items handed out and not yet taken back, per worker: enough to keep it busy, few enough for memory."""
PROGRESS_SECONDS = 5.0

WORKER_STAGES = ("pretrain_rows@phase1", "pretrain_rows@phase2")
"""Stages whose work PODIUM_WORKERS processes share."""

Item = TypeVar("Item")
Result = TypeVar("Result")
logger = logging.getLogger(__name__)


def worker_count() -> int:
    """Data preparation processes: PODIUM_WORKERS, or the cores this process may use.

    Raises:
        ParamsError: PODIUM_WORKERS is no whole number of at least 1.
    """
    return _stated_number(WORKERS, "processes") or count_cores()


def count_cores() -> int:
    """Return how many cores this process may use; macOS knows only how many there are."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def stages_at_once() -> int:
    """Stages without a device that run at the same time here: PODIUM_STAGES_AT_ONCE, or what cores and memory allow.

    Raises:
        ParamsError: PODIUM_STAGES_AT_ONCE is no whole number of at least 1.
    """
    stated = _stated_number(STAGES_AT_ONCE, "stages")
    return stated or _count_fitting(BYTES_OF_A_STAGE, min(MOST_STAGES, count_cores()))


def runs_at_once(pool: str) -> int:
    """Return how many runs a worker takes at a time unless it is told: one a device, else what cores and memory allow.

    Args:
        pool: of the worker: cpu, cuda, ipu or flows.
    """
    if pool == "flows":
        return _count_fitting(BYTES_OF_A_FLOW, MOST_FLOWS)
    return _count_fitting(BYTES_OF_A_STAGE, count_cores()) if pool == "cpu" else 1


def _count_fitting(size: float, most: int) -> int:
    """Return how many times `size` bytes are free, at least 1 and at most `most`."""
    free = free_memory()
    return max(1, most if free is None else min(most, int(free / size)))


def _stated_number(name: str, counted: str) -> int | None:
    """The number that a variable of the environment states; None where it is not set."""
    text = os.environ.get(name, "").strip()
    if text and (not text.isdecimal() or int(text) < 1):
        raise ParamsError(f"{name}={text!r} must be a whole number of {counted}, at least 1 (or unset)")
    return int(text) if text else None


def useful_workers(items: int, least: int) -> int:
    """Processes that pay: `worker_count()`, or 1 for fewer than `least` items.

    A process costs about 0.6 s to start (interpreter, imports, tokenizer) before it gives anything back.

    Raises:
        ParamsError: from `worker_count`, however many items there are.
    """
    workers = worker_count()
    return workers if items >= least else 1


def ordered_map(
    function: Callable[[Item], Result], items: Iterable[Item], workers: int | None = None
) -> Iterator[Result]:
    """`function` of every item, in order; `items` is read only a few items ahead.

    With one worker, or a single item, everything happens in this process. Otherwise `function` must be
    importable (a module's top level, or functools.partial of one), and items and results must pickle.

    Args:
        workers: processes; None asks `worker_count()`.

    Raises:
        PodiumError: a process died, for instance killed for memory. What `function` raises is passed on.
    """
    workers = worker_count() if workers is None else workers
    source = iter(items)
    ahead = list(itertools.islice(source, 2))
    source = itertools.chain(ahead, source)
    if workers == 1:
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    if workers == 1 or len(ahead) < 2:
        yield from map(function, source)
    else:
        yield from _map_in_processes(function, source, workers)


def _map_in_processes(function: Callable[[Item], Result], items: Iterator[Item], workers: int) -> Iterator[Result]:
    # spawn, not fork: Arrow and the tokenizers hold threads, which a forked child would inherit half-way.
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_prepare_worker)
    waiting: deque[Future[Result]] = deque()
    try:
        for item in items:
            waiting.append(pool.submit(function, item))
            if len(waiting) >= workers * WAITING_PER_WORKER:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    except BrokenProcessPool:
        raise PodiumError(
            f"a data preparation process died, most likely killed for memory; {workers} were running: "
            f"set {WORKERS} to a smaller number and run again"
        ) from None
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _prepare_worker() -> None:
    """One thread of tokenization per process, a limit on its memory, and no life without the parent."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    watch_memory("a data preparation process")
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent.sentinel,), daemon=True).start()


def _end_with(sentinel: int) -> None:
    # A killed parent cannot tell its workers to stop; without this they would wait for work forever.
    multiprocessing.connection.wait([sentinel])
    os._exit(1)


class Progress:
    """A plain log line every few seconds: what was done so far, how fast, and how long the rest takes.

    Args:
        total: units in all, from which the time left follows at the speed so far; None if nobody knows.
    """

    def __init__(self, what: str, unit: str, total: int | None = None) -> None:
        self.what, self.unit, self.total = what, unit, total
        self.started_at = time.perf_counter()
        self._last = self.started_at
        self._done = 0

    @property
    def elapsed_s(self) -> float:
        """Seconds since this object was made."""
        return time.perf_counter() - self.started_at

    def add(self, more: int) -> None:
        """Log so many units more, as `update` does."""
        self._done += more
        self.update(self._done)

    def update(self, done: int, note: str = "") -> None:
        """Log `done` units so far, unless a line was logged in the last PROGRESS_SECONDS."""
        now = time.perf_counter()
        if now - self._last >= PROGRESS_SECONDS:
            self._last = now
            logger.info("%s", self.line(done, now - self.started_at) + note)

    def line(self, done: int, elapsed_s: float) -> str:
        """The line for `done` units after so many seconds."""
        rate = done / elapsed_s
        if self.total is None or not done:
            return f"{self.what}: {done} {self.unit}, {rate:.0f} a second"
        left = max(self.total - done, 0) / rate
        return f"{self.what}: {done} of {self.total} {self.unit}, {rate:.0f} a second, about {left:.0f} s left"
