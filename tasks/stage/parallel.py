"""Parallel map over processes: results in the order of the items, with a bounded number of items in progress.

The processes are those of this host, or of the cluster in PODIUM_DATA_CLUSTER (cluster.py). `PODIUM_WORKERS` sets their
number on this host (default: the cores this process may use). It depends on the host and must never change a result: an
item carries everything that its function needs, such as seeds.
"""

import contextlib
import functools
import itertools
import logging
import multiprocessing
import multiprocessing.connection
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any, TypeVar

from ipu_model.core.memory import free_memory
from ipu_model.core.units import format_duration
from tasks.stage.cluster import Pool, cluster_address, open_cluster
from tasks.stage.errors import ParamsError, PodiumError
from tasks.stage.events import report_progress
from tasks.stage.memory import watch_memory
from tasks.stage.process import MAPS, MapUsage

WORKERS = "PODIUM_WORKERS"
BYTES_OF_A_STAGE = 4e9
"""Memory of a stage without a device, all its processes together; docs/pretrain.md has half of it."""
BYTES_OF_A_FLOW = 4e8
"""Memory of a run that only dispatches stages and waits: twice the measured amount."""
MOST_FLOWS = 32
WAITING_PER_WORKER = 2
"""Items in progress per worker: enough to keep it busy, few enough to limit memory."""
PROGRESS_SECONDS = 5.0

Item = TypeVar("Item")
Result = TypeVar("Result")
logger = logging.getLogger(__name__)


def worker_count() -> int:
    """Return the number of data preparation processes: PODIUM_WORKERS, or the cores this process may use.

    Raises:
        ParamsError: PODIUM_WORKERS is not a positive integer.
    """
    text = os.environ.get(WORKERS, "").strip()
    if text and (not text.isdecimal() or int(text) < 1):
        raise ParamsError(f"{WORKERS}={text!r} must be a whole number of processes, at least 1 (or unset)")
    return int(text) if text else count_cores()


def count_cores() -> int:
    """Return the number of cores this process may use; on macOS, the number of all cores."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def runs_at_once(pool: str) -> int:
    """Return a worker's default number of parallel runs: one per device, otherwise what cores and memory allow."""
    if pool == "flows":
        return _count_fitting(BYTES_OF_A_FLOW, MOST_FLOWS)
    return _count_fitting(BYTES_OF_A_STAGE, count_cores()) if pool == "cpu" else 1


def _count_fitting(size: float, most: int) -> int:
    free = free_memory()
    return max(1, most if free is None else min(most, int(free / size)))


def useful_workers(items: int, least: int) -> int:
    """Return `worker_count()`, or 1 for fewer than `least` items.

    A process takes about 0.6 s to start (interpreter, imports, tokenizer) before it returns anything.

    Raises:
        ParamsError: PODIUM_WORKERS is invalid, for any number of items.
    """
    workers = _available_workers()
    return workers if items >= least else 1


def _available_workers() -> int:
    """Return `worker_count()`; at least 2 with a cluster, which is used however many cores this host has."""
    return max(worker_count(), 1 if cluster_address() is None else 2)


def ordered_map(
    function: Callable[[Item], Result], items: Iterable[Item], workers: int | None = None, folder: Path | None = None
) -> Iterator[Result]:
    """Yield `function` of every item, in order; read `items` only a few items ahead.

    With one worker or a single item, everything runs in this process. Otherwise `function` must be importable (defined
    at a module's top level, or functools.partial of such a function), items and results must be picklable, and paths
    absolute.

    Args:
        workers: number of processes here; None: `worker_count()`. 1 does not use a cluster either.
        folder: absolute path of the folder that `function` writes to.

    Raises:
        PodiumError: a process died, for example because it was killed for memory. Errors of `function` are passed on.
    """
    usage, started_at = MapUsage(), time.perf_counter()
    with contextlib.closing(_map(functools.partial(_time, function), iter(items), workers, folder, usage)) as results:
        for result, seconds in results:
            usage.add(seconds)
            given_at = time.perf_counter()
            yield result
            usage.merge_seconds += time.perf_counter() - given_at
    usage.seconds, usage.merge_seconds = round(time.perf_counter() - started_at, 3), round(usage.merge_seconds, 3)
    MAPS.append(usage)


def _map(
    function: Callable[[Item], Result],
    source: Iterator[Item],
    workers: int | None,
    folder: Path | None,
    usage: MapUsage,
) -> Generator[Result]:
    workers = _available_workers() if workers is None else workers
    ahead = list(itertools.islice(source, 2))
    source = itertools.chain(ahead, source)
    if workers == 1:
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    if workers == 1 or len(ahead) < 2:
        yield from map(function, source)
        return
    waiting: deque[Future[Any]] = deque()
    address = cluster_address()
    with open_pool(workers) if address is None else open_cluster(address, folder) as pool:
        for item in source:
            waiting.append(pool.submit(function, item))
            usage.processes = max(usage.processes, pool.count())
            if len(waiting) >= pool.count() * WAITING_PER_WORKER:
                yield _wait_for(waiting.popleft(), pool)
        while waiting:
            yield _wait_for(waiting.popleft(), pool)


def _time(function: Callable[[Item], Result], item: Item) -> tuple[Result, float]:
    started_at = time.perf_counter()
    return function(item), time.perf_counter() - started_at


def _wait_for(future: Future[Any], pool: Pool) -> Any:
    while not wait([future], PROGRESS_SECONDS).done:
        pool.count()  # raises an error if the scheduler is gone, whose futures may never end
    return pool.receive(future.result())


@contextlib.contextmanager
def open_pool(workers: int) -> Iterator[Pool]:
    """Yield processes on this host.

    Raises:
        PodiumError: a process died.
    """
    # spawn, not fork: Arrow and the tokenizers run threads, which a fork would leave in an undefined state.
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_prepare_worker)
    try:
        yield Pool(pool.submit, lambda: workers, lambda result: result)
    except BrokenProcessPool:
        raise PodiumError(
            f"a data preparation process died, most likely killed for memory; {workers} were running. "
            f"Set {WORKERS} to a smaller number and run again"
        ) from None
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _prepare_worker() -> None:
    """Limit the worker to one tokenizer thread and to its memory, and end it when the parent ends."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    watch_memory("a data preparation process")
    if (parent := multiprocessing.parent_process()) is not None:
        threading.Thread(target=_end_with, args=(parent.sentinel,), daemon=True).start()


def _end_with(sentinel: int) -> None:
    # A killed parent cannot stop its workers; without this they would wait forever.
    multiprocessing.connection.wait([sentinel])
    os._exit(1)


class StageProgress:
    """Log a plain progress line every few seconds: units done, speed and, if their total is known, remaining time."""

    def __init__(self, what: str, unit: str, total: int | None = None) -> None:
        self.what, self.unit, self.total = what, unit, total
        self.started_at = time.perf_counter()
        self._last = self.started_at
        self._done = 0

    @property
    def elapsed_s(self) -> float:
        """Seconds since this object was created."""
        return time.perf_counter() - self.started_at

    def add(self, more: int) -> None:
        """Add `more` units and log them as `update` does."""
        self._done += more
        self.update(self._done)

    def update(self, done: int, note: str = "") -> None:
        """Log `done` units so far, unless a line was logged in the last PROGRESS_SECONDS."""
        now = time.perf_counter()
        if now - self._last >= PROGRESS_SECONDS:
            self._last = now
            share, text = self.describe(done, now - self.started_at, note)
            if share is None or not report_progress(share, text):
                logger.info("%s", text)

    def describe(self, done: int, elapsed_s: float, note: str = "") -> tuple[float | None, str]:
        """Return the share that is done, if known, and the progress line for `done` units after `elapsed_s` seconds."""
        rate = done / elapsed_s
        if not self.total or not done:
            return None, f"{self.what}: {done} {self.unit}, {rate:.0f} per second{note}"
        share, left = min(done / self.total, 1.0), format_duration(round(max(self.total - done, 0) / rate))
        return share, f"{self.what}: {done} of {self.total} {self.unit}, {rate:.0f} per second{note}, {left} left"
