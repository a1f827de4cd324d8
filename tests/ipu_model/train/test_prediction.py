"""Logits of all features in one file, in order, however the rows mix them; and batches made ready in a thread."""

import threading
from collections import Counter
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
from tiny_jobs import TINY, make_columns, make_job, run_here, write_rows

from ipu_model.core.errors import RowsError
from ipu_model.distributed.process import StopRequest
from ipu_model.models.head import Logits
from ipu_model.rows.row_folder import RowFolder, prefetch
from ipu_model.runtimes.torch_device import Device
from ipu_model.train import job_runner
from ipu_model.train.job_runner import logits_schema, predict

ROWS, KIND = 40, "question_answering"
FEATURES = int((make_columns(KIND, ROWS)["feature_ids"] >= 0).sum())


def answer(batch):
    """Logits of feature n are n, n + 1, ... and their negatives."""
    ids = batch.columns["feature_ids"]
    values = [(int(n), n + np.arange(1 + n % 7, dtype=np.float32)) for n in ids[ids >= 0][::-1]]
    return [Logits(n, {"start_logits": x, "end_logits": -x}) for n, x in values]


def predict_rows(folder, ids):
    """Predict rows whose features have these ids, in order of their places; the events."""
    columns = make_columns(KIND, ROWS)
    columns["feature_ids"][columns["feature_ids"] >= 0] = ids
    write_rows(folder / "rows", KIND, columns, files=2)
    events = []
    rows = RowFolder(folder / "rows", KIND, TINY)
    runtime = SimpleNamespace(reads_ahead=0, prepare=lambda batch: batch, predict=answer)
    emit = lambda event, **fields: events.append(fields)  # noqa: E731
    totals = predict(runtime, rows, KIND, 6, folder / "logits.arrow", emit, StopRequest())
    assert (totals.sequences, totals.real_tokens) == (rows.manifest.sequences, rows.manifest.real_tokens)
    return events


@pytest.mark.parametrize("batch", [5, 1024])
def test_features_come_in_order_however_the_rows_mix_them(tmp_path, monkeypatch, batch):
    monkeypatch.setattr(job_runner, "FEATURES_PER_RECORD_BATCH", batch)
    events = predict_rows(tmp_path, np.random.default_rng(3).permutation(FEATURES))
    with pa.memory_map(str(tmp_path / "logits.arrow")) as source:
        file = pa.ipc.open_file(source)
        sizes = [file.get_batch(number).num_rows for number in range(file.num_record_batches)]
        table = file.read_all()
    assert sizes == [batch] * (FEATURES // batch) + [FEATURES % batch] * (FEATURES % batch > 0)
    assert table.schema == logits_schema(KIND)
    assert table["feature_id"].to_pylist() == list(range(FEATURES))
    expected = [[float(n + k) for k in range(1 + n % 7)] for n in range(FEATURES)]
    assert table["start_logits"].to_pylist() == expected
    assert table["end_logits"].to_pylist() == [[-x for x in logits] for logits in expected]
    assert events[-1] == {"rows": ROWS, "of": ROWS, "eta_seconds": 0.0}


@pytest.mark.parametrize(
    ("place", "value", "message"), [(4, 3, "contains feature 3 twice"), (7, 500, "lacks feature 7 of 0..500")]
)
def test_a_feature_that_is_missing_or_there_twice_is_named_and_nothing_written(tmp_path, place, value, message):
    ids = np.arange(FEATURES)
    ids[place] = value
    with pytest.raises(RowsError, match=message):
        predict_rows(tmp_path, ids)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rows"]


def test_no_more_than_asked_for_are_made_before_their_turn():
    begun, third = [], threading.Event()

    def make(item):
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


@pytest.mark.parametrize("depth", [0, 1, 7])
def test_results_come_in_order_and_an_error_where_its_result_would_have(depth):
    assert list(prefetch(lambda x: x * x, range(5), depth)) == [0, 1, 4, 9, 16]
    assert list(prefetch(lambda x: x, [], depth)) == []
    taken = []
    with closing(prefetch(lambda x: 6 / (2 - x), range(5), depth)) as made, pytest.raises(ZeroDivisionError):
        taken.extend(made)
    assert taken == [3, 6]


def test_jobs_that_read_ahead_compute_the_same_bits(tmp_path, answer_rows, monkeypatch):
    """Dropout included: the thread draws nothing."""
    readers, written, take = Counter(), {}, RowFolder.take

    def counted(*arguments):
        readers[threading.current_thread().name] += 1
        return take(*arguments)

    monkeypatch.setattr(RowFolder, "take", counted)
    for depth in (0, 2):
        monkeypatch.setattr(Device, "reads_ahead", depth)
        folder = tmp_path / str(depth)
        trained = make_job(folder / "a", "finetune", answer_rows)
        run_here(trained)
        predicted = make_job(folder / "b", "predict", answer_rows, init_checkpoint=trained.output)
        run_here(predicted)
        files = (Path(trained.output) / "model.safetensors", folder / "a/run/history.csv", Path(predicted.output))
        written[depth] = [file.read_bytes() for file in files]
        assert depth or set(readers) == {"MainThread"}
    assert written[2] == written[0]
    assert readers["prefetch_0"] >= 7  # six updates and a call of predict
