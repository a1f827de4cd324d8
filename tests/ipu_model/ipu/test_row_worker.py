"""The process that makes rows ready while the IPUs work: the same tensors, in order; its errors and its end."""

import errno
import json
import os
import signal
import sys
from collections import deque
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from tiny_ipu import FOUR_LAYERS, rows_of
from tiny_jobs import MASKED_KINDS, head_of, labels_of, make_columns, start, wait_for_end, write_rows

from ipu_model import heads
from ipu_model.core.errors import RowsError, RowWorkerLost
from ipu_model.distributed.instances import Instances
from ipu_model.ipu.call_columns import ProgramInputs
from ipu_model.ipu.host_calls import (
    RowPrefetcher,
    TrainingFeed,
    prefetch_calls,
    read_calls,
    single_call,
    training_inputs,
)
from ipu_model.rows.format import MANIFEST, list_row_kinds
from ipu_model.rows.row_folder import RowFolder, UpdateRows

KINDS = [kind for kind in list_row_kinds() if kind != "sentence_embedding"]
ROWS, PER_UPDATE, UPDATES, MICRO_BATCHES = 90, 24, 2, 12
"""Rows of the folder and of an update, updates of a call, micro-batches of an update."""
STEPS = range(2, 10, UPDATES)
"""A resumed training; the first epoch ends in the middle of update 3."""
TOTAL = 9 * PER_UPDATE + 17
"""Rows of the training: the last update has 17, of which 5 in its second half."""
ORDER = UpdateRows(ROWS, PER_UPDATE, 7, slice(12, 24), TOTAL)


def open_rows(folder, kind="pretrain", **made):
    """Rows and the inputs of their program; those with masked tokens are masked in another way in every epoch."""
    if not folder.exists():
        rows_of(folder, kind, ROWS, **made)
    rows = RowFolder(folder, kind, FOUR_LAYERS, labels_of(kind), 5 if kind in MASKED_KINDS else None)
    return rows, training_inputs(heads.get_head(head_of(kind)), rows.take(np.arange(1)))


def feed(source, inputs):
    return TrainingFeed(source, len(STEPS), UPDATES, MICRO_BATCHES, 1, inputs, Instances())


@pytest.mark.parametrize("kind", KINDS)
def test_a_worker_makes_the_bits_that_this_process_would(kind, tmp_path):
    rows, inputs = open_rows(tmp_path / "rows", kind)
    wanted = feed(read_calls(rows, ORDER, STEPS, inputs), inputs)
    tokens = []
    with closing(RowPrefetcher(rows, ORDER, STEPS, inputs)) as source:
        for call, same in zip(feed(source, inputs), wanted):
            assert [x.dtype for x in call.tensors] == [x.dtype for x in same.tensors]
            for ours, theirs in zip(call.tensors, same.tensors):
                assert ours.is_contiguous()  # an executor reads it where it lies
                np.testing.assert_array_equal(ours.numpy(), theirs.numpy())
            tokens.append(int((call.tensors[inputs.columns.index("sequence_ids")] != 0).sum()))
            assert call.counts["real_tokens"] == same.counts["real_tokens"] == tokens[-1]
    assert len(tokens) == len(STEPS)


def test_where_there_is_no_memory_to_share_rows_are_made_in_turn(tmp_path, monkeypatch):
    rows, inputs = open_rows(tmp_path / "rows", "question_answering")

    def refuse(descriptor, offset, size):
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    lines = []
    source = prefetch_calls(rows, ORDER, STEPS, inputs, lines.append)
    assert not isinstance(source, RowPrefetcher)
    assert "Cannot allocate memory" in lines[0]
    assert len(list(feed(source, inputs))) == len(STEPS)


def test_damaged_rows_are_named_with_file_and_row_when_their_call_comes(tmp_path):
    columns = make_columns("pretrain", ROWS)
    damaged = int(UpdateRows(ROWS, PER_UPDATE, 7)(STEPS[1])[0])
    columns["token_type_ids"][damaged] = 9
    write_rows(tmp_path / "rows", "pretrain", columns)
    rows, _ = open_rows(tmp_path / "rows")
    inputs = ProgramInputs(("input_ids",), {"mlm_loss": "masked_labels"})
    order = UpdateRows(ROWS, PER_UPDATE, 7, slice(0, PER_UPDATE), TOTAL)
    with closing(RowPrefetcher(rows, order, STEPS, inputs)) as source:
        next(source)
        with pytest.raises(RowsError, match=rf"rows-00000.arrow, row {damaged}: token_type_ids\[0\] is 9"):
            next(source)


def test_rows_of_one_sequence_that_begin_elsewhere_are_refused(tmp_path):
    """Their positions are not read: a micro-batch has one row of them."""
    rows, inputs = open_rows(tmp_path / "rows", "question_answering", packed=False)
    batch = rows.take(np.arange(ROWS))

    def calls():
        return list(TrainingFeed(single_call(batch, inputs, 1), 1, 1, 45, 2, inputs, Instances()))

    positions = calls()[0].tensors[inputs.columns.index("position_ids")].numpy()
    assert (positions == np.arange(positions.shape[1])).all()
    assert len(positions) == ROWS // 2
    batch.columns["position_ids"][7, 1] = 5
    with pytest.raises(RowsError, match="row 7 .*position 5 at token 1"):
        calls()


def test_another_folder_in_the_place_of_the_first_is_refused(tmp_path):
    rows, inputs = open_rows(tmp_path / "rows")
    manifest = tmp_path / "rows" / MANIFEST
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "seed": 99}))
    with closing(RowPrefetcher(rows, ORDER, STEPS, inputs)) as source, pytest.raises(RowsError, match="was replaced"):
        next(source)


def test_a_worker_that_the_kernel_killed_is_explained(tmp_path):
    rows, inputs = open_rows(tmp_path / "rows")
    with closing(RowPrefetcher(rows, ORDER, STEPS, inputs)) as source:
        next(source)
        os.kill(source.process.pid, signal.SIGKILL)
        source.process.wait()
        with pytest.raises(RowWorkerLost, match="SIGKILL.*out of memory"):
            deque(source)  # what it answered before is still taken


STARTER = """
import os, signal, sys, time
from ipu_model.ipu.call_columns import ProgramInputs
from ipu_model.ipu.host_calls import RowPrefetcher
from ipu_model.models.config import ModelConfig
from ipu_model.rows.row_folder import RowFolder, UpdateRows

rows = RowFolder(sys.argv[1], "pretrain", ModelConfig(vocab_size=60, max_positions=32))
inputs = ProgramInputs(("input_ids",), {"mlm_loss": "masked_labels"})
source = RowPrefetcher(rows, UpdateRows(90, 24, 7), range(40), inputs)
for number in (signal.SIGINT, signal.SIGTERM):
    os.kill(source.process.pid, number)
for _ in range(10):
    next(source)
with open(f"/proc/{source.process.pid}/maps") as maps:
    print(source.process.pid, "libtorch" in maps.read(), flush=True)
time.sleep(600)
"""


def test_a_worker_ends_with_its_starter_and_by_no_signal_that_is_meant_for_it(tmp_path):
    """SIGKILL of the starter, of which no one can be told; the worker is small, as it never loads torch."""
    folder = rows_of(tmp_path / "rows", "pretrain", ROWS)
    starter = start([sys.executable, "-c", STARTER, str(folder)])
    worker, torch_is_loaded = starter.stdout.readline().split()
    assert torch_is_loaded == "False"
    assert Path(f"/proc/{worker}").exists()
    starter.kill()
    assert "Traceback" not in starter.communicate(timeout=60)[1]  # the worker holds the other end of its errors
    wait_for_end([int(worker)])
