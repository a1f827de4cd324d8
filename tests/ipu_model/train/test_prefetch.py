"""Batches made ready in another thread: the same ones, in the same order, and errors and ends arrive."""

from __future__ import annotations

import threading
from contextlib import closing
from pathlib import Path
from typing import Any, Dict, List

import numpy as np
import pytest
from tiny_jobs import make_job, run_here

from ipu_model.rows.row_folder import Batch, RowFolder, prefetch
from ipu_model.runtimes.torch_device import Device


def test_no_more_than_asked_for_are_made_before_their_turn() -> None:
    begun: List[int] = []
    third = threading.Event()

    def make(item: int) -> int:
        begun.append(item)
        if item == 2:
            third.set()
        return item

    with closing(prefetch(make, range(10), 2)) as made:
        assert next(made) == 0
        assert third.wait(30)  # made without being asked for
        assert next(made) == 1
    assert begun in ([0, 1, 2], [0, 1, 2, 3])  # 3 was allowed, as 1 was taken; nothing after it
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("prefetch")]


@pytest.fixture
def readers(monkeypatch: pytest.MonkeyPatch) -> Dict[str, int]:
    """Names of the threads that read rows, and how often."""
    seen: Dict[str, int] = {}
    real = RowFolder.take

    def take(self: RowFolder, rows: np.ndarray, epochs: Any = None) -> Batch:
        name = threading.current_thread().name
        seen[name] = seen.get(name, 0) + 1
        return real(self, rows, epochs)

    monkeypatch.setattr(RowFolder, "take", take)
    return seen


def test_jobs_that_read_ahead_compute_the_same_bits(
    tmp_path: Path, answer_rows: Path, monkeypatch: pytest.MonkeyPatch, readers: Dict[str, int]
) -> None:
    """Dropout included: the thread draws nothing."""
    written = {}
    for depth in (0, 2):
        monkeypatch.setattr(Device, "reads_ahead", depth)
        folder = tmp_path / str(depth)
        trained = make_job(folder / "a", "finetune", answer_rows)
        run_here(trained)
        predicted = make_job(folder / "b", "predict", answer_rows, init_checkpoint=trained.output)
        run_here(predicted)
        model = (Path(trained.output) / "model.safetensors").read_bytes()
        written[depth] = (
            model,
            (folder / "a" / "run" / "history.csv").read_bytes(),
            Path(predicted.output).read_bytes(),
        )
        if depth == 0:
            assert set(readers) == {"MainThread"}
    assert written[2] == written[0]
    assert readers["prefetch_0"] >= 7  # six updates and a call of predict


@pytest.mark.parametrize("depth", [0, 1, 7])
def test_results_come_in_order_and_an_error_where_its_result_would_have(depth: int) -> None:
    assert list(prefetch(lambda x: x * x, range(5), depth)) == [0, 1, 4, 9, 16]
    assert list(prefetch(lambda x: x, [], depth)) == []
    taken: List[float] = []
    with closing(prefetch(lambda x: 6 / (2 - x), range(5), depth)) as made, pytest.raises(ZeroDivisionError):
        taken.extend(made)
    assert taken == [3, 6]
