"""Work on what comes next in another thread."""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Callable, Deque, Generator, Iterable, TypeVar

Item = TypeVar("Item")
Made = TypeVar("Made")


def prefetch(make: Callable[[Item], Made], items: Iterable[Item], depth: int) -> Generator[Made, None, None]:
    """make(item) for each item, in order; while one is used, up to `depth` more are made in one other thread.

    What `make` raises comes out where its result would have. Close the iterator (contextlib.closing) to stop: what is
    under way is finished, what waits is dropped, and the thread has ended when close returns.

    Args:
        depth: 0 makes each when it is asked for, without a thread.
    """
    if not depth:
        yield from map(make, items)
        return
    waiting: Deque[Future[Made]] = deque()
    with ThreadPoolExecutor(1, thread_name_prefix="prefetch") as pool:
        try:
            for item in items:
                waiting.append(pool.submit(make, item))
                if len(waiting) > depth:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()
