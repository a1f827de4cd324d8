import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tasks.stage import parallel, process
from tasks.stage.errors import InputError, ParamsError, PodiumError
from tasks.stage.parallel import (
    WAITING_PER_WORKER,
    StageProgress,
    ordered_map,
    runs_at_once,
    useful_workers,
    worker_count,
)
from tests.faults.processes import wait_for
from tests.places import ROOT
from tests.tasks.stage.mapped import dies_on_three, fails_on_three, process_id, slow_first


def sleep_a_tenth(item: int) -> None:
    time.sleep(0.1)


def test_results_come_in_the_order_of_the_items_with_any_number_of_processes() -> None:
    expected = [item * 10 for item in range(7)]
    assert list(ordered_map(slow_first, range(7), workers=1)) == expected
    assert list(ordered_map(slow_first, range(7), workers=2)) == expected
    assert list(ordered_map(process_id, [0], workers=4)) == [os.getpid()], "one item starts no process"
    assert os.getpid() not in list(ordered_map(process_id, [0, 1], workers=2))


def test_a_map_measures_its_items_and_what_its_reader_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "MAPS", [])
    monkeypatch.setattr(parallel, "MAPS", process.MAPS)
    for _ in ordered_map(sleep_a_tenth, range(4), workers=2):
        time.sleep(0.05)
    (usage,) = process.MAPS
    assert (usage.items, usage.processes, len(usage.item_seconds)) == (4, 2, 4)
    assert all(0.1 <= seconds < 1 for seconds in usage.item_seconds)
    assert 0.2 <= usage.merge_seconds < usage.seconds


def test_only_a_bounded_number_of_items_is_read_ahead() -> None:
    taken = 0

    def items() -> Iterator[int]:
        nonlocal taken
        for item in range(50):
            taken = item + 1
            yield item

    results = ordered_map(process_id, items(), workers=2)
    for done in range(1, 20):
        next(results)
        assert taken <= done + 2 * WAITING_PER_WORKER
    results.close()  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("function", "error", "words"),
    [(fails_on_three, InputError, "three was found"), (dies_on_three, PodiumError, "PODIUM_WORKERS")],
)
def test_an_error_of_the_function_and_a_killed_process_are_reported(function: Any, error: type, words: str) -> None:
    with pytest.raises(error, match=words):
        list(ordered_map(function, range(8), workers=2))


def test_workers_do_not_outlive_a_killed_parent() -> None:
    code = """
import time
from tests.tasks.stage.mapped import process_id
from tasks.stage.parallel import ordered_map
results = ordered_map(process_id, range(1000), workers=2)
print(next(results), flush=True)
time.sleep(600)
"""
    parent = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    worker = int(parent.stdout.readline())
    parent.kill()
    parent.wait()
    parent.stdout.close()
    wait_for(lambda: not is_running(worker), 10, "the worker ends with its parent")


def is_running(process: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{process}/status").read_text()
    except FileNotFoundError:
        return False


@pytest.mark.parametrize("text", ["0", "-1", "two", "1.5"])
def test_a_wrong_number_of_workers_is_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PODIUM_WORKERS", text)
    with pytest.raises(ParamsError, match="PODIUM_WORKERS"):
        useful_workers(0, least=5)


def test_few_items_are_done_without_more_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PODIUM_WORKERS", "3")
    assert [useful_workers(items, least=5) for items in (0, 4, 5, 100)] == [1, 1, 3, 3]
    monkeypatch.delenv("PODIUM_WORKERS")
    assert worker_count() == len(os.sched_getaffinity(0))
    monkeypatch.delattr("os.sched_getaffinity")
    monkeypatch.setattr("os.cpu_count", lambda: 3)
    assert worker_count() == 3


def test_progress_says_the_time_left() -> None:
    progress = StageProgress("rows", "questions", total=1000)
    text = "rows: 250 of 1000 questions, 50 per second, 15 s left"
    assert progress.describe(250, elapsed_s=5.0) == (0.25, text)
    assert StageProgress("rows", "questions").describe(250, 5.0) == (None, "rows: 250 questions, 50 per second")
    assert progress.describe(0, elapsed_s=5.0) == (None, "rows: 0 questions, 0 per second")


@pytest.mark.parametrize(
    ("pool", "cores", "free", "runs"),
    [("ipu", 64, 1e12, 1), ("cuda", 64, 1e12, 1), ("cpu", 8, 2.5e10, 6), ("cpu", 2, 2.5e10, 2), ("cpu", 8, 1e9, 1)]
    + [("flows", 2, 2.1e9, 5), ("flows", 2, 1e11, 32), ("cpu", 8, None, 8)],
)
def test_a_worker_takes_as_many_runs_as_its_host_has_room_for(
    monkeypatch: pytest.MonkeyPatch, pool: str, cores: int, free: float | None, runs: int
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(cores)))
    monkeypatch.setattr("tasks.stage.parallel.free_memory", lambda: free)
    assert runs_at_once(pool) == runs
