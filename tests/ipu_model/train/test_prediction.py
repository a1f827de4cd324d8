"""Logits of all features in one file, in order, however the rows mix them; and batches made ready in a thread."""

from __future__ import annotations

import threading
from contextlib import closing
from pathlib import Path
from typing import Any, Dict, List

import numpy as np
import pyarrow as pa
import pytest
from tiny_jobs import TINY, make_columns, make_job, run_here, write_rows

from ipu_model.core.errors import RowsError
from ipu_model.distributed.process import StopRequest
from ipu_model.models.head import Logits
from ipu_model.rows.row_folder import Batch, RowFolder, prefetch
from ipu_model.runtimes.torch_device import Device
from ipu_model.train import job_runner
from ipu_model.train.job_runner import logits_schema, predict

ROWS = 40


class Counting:
    """A runtime whose logits of feature n are n, n + 1, ... and their negatives."""

    reads_ahead = 0

    def prepare(self, batch: Batch) -> Batch:
        return batch

    def predict(self, batch: Batch) -> List[Logits]:
        ids = batch.columns["feature_ids"]
        ids = ids[ids >= 0]
        values = [(int(i), i + np.arange(1 + i % 7, dtype=np.float32)) for i in ids[::-1]]
        return [Logits(i, {"start_logits": x, "end_logits": -x}) for i, x in values]


def run(folder: Path, ids: np.ndarray, size: int = 6) -> List[Dict[str, Any]]:
    """Predict rows whose features have these ids, in order of their places; the events."""
    columns = make_columns("question_answering", ROWS)
    places = columns["feature_ids"] >= 0
    columns["feature_ids"][places] = ids[: places.sum()]
    write_rows(folder / "rows", "question_answering", columns, files=2)
    events: List[Dict[str, Any]] = []
    rows = RowFolder(folder / "rows", "question_answering", TINY)
    runtime: Any = Counting()
    where = (rows, "question_answering", size, folder / "logits.arrow")
    totals = predict(runtime, *where, lambda kind, **x: events.append(x), StopRequest())
    assert (totals.sequences, totals.real_tokens) == (rows.manifest.sequences, rows.manifest.real_tokens)
    return events


def count() -> int:
    return int((make_columns("question_answering", ROWS)["feature_ids"] >= 0).sum())


@pytest.mark.parametrize("batch", [5, 1024])
def test_features_come_in_order_however_the_rows_mix_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batch: int
) -> None:
    monkeypatch.setattr(job_runner, "FEATURES_PER_RECORD_BATCH", batch)
    events = run(tmp_path, np.random.default_rng(3).permutation(count()))
    with pa.memory_map(str(tmp_path / "logits.arrow")) as source:
        file = pa.ipc.open_file(source)
        sizes = [file.get_batch(number).num_rows for number in range(file.num_record_batches)]
        table = file.read_all()
    assert sizes == [batch] * (count() // batch) + [count() % batch] * (count() % batch > 0)
    assert table.schema == logits_schema("question_answering")
    assert table["feature_id"].to_pylist() == list(range(count()))
    expected = [[float(n + k) for k in range(1 + n % 7)] for n in range(count())]
    assert table["start_logits"].to_pylist() == expected
    assert table["end_logits"].to_pylist() == [[-x for x in logits] for logits in expected]
    assert events[-1] == {"rows": ROWS, "of": ROWS, "eta_seconds": 0.0}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({4: 3}, "contains feature 3 twice"),
        ({7: 500}, "lacks feature 7 of 0..500"),
    ],
)
def test_a_feature_that_is_missing_or_there_twice_is_named_and_nothing_written(
    tmp_path: Path, change: Dict[int, int], message: str
) -> None:
    ids = np.arange(count())
    for place, value in change.items():
        ids[place] = value
    with pytest.raises(RowsError, match=message):
        run(tmp_path, ids)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rows"]


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
