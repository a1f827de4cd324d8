"""Dynamic masking: what an epoch masks depends on seed, epoch and row alone, and a resumed training sees the same."""

from pathlib import Path

import numpy as np
import pytest
from tiny_jobs import MASK, TINY, make_columns, make_job, pausing, run_here, write_rows

from ipu_model.core.errors import ConfigError, RowsError
from ipu_model.jobs.job import EvaluationConfig
from ipu_model.rows.masking import DynamicMasking
from ipu_model.rows.row_folder import NO_ROW, RowFolder
from tests.optimizers import optimizer_config

SPECIAL = (0, 1, 2, 3, 4)


def text_of(columns):
    text = columns["input_ids"].astype(int)
    row, slot = np.nonzero(columns["masked_labels"] != -100)
    text[row, columns["masked_positions"][row, slot]] = columns["masked_labels"][row, slot]
    return text


def masks_of_sequences(columns):
    """Masked tokens of every sequence, [R, S]."""
    row, slot = np.nonzero(columns["masked_labels"] != -100)
    counts = np.zeros(columns["cls_positions"].shape, int)
    np.add.at(counts, (row, columns["sequence_ids"][row, columns["masked_positions"][row, slot]] - 1), 1)
    return counts


def bytes_of(batch):
    return {name: values.tobytes() for name, values in batch.columns.items()}


@pytest.mark.parametrize("kind", ["pretrain", "masked_lm"])
def test_every_epoch_masks_as_many_other_tokens_of_the_same_text(tmp_path, kind):
    write_rows(tmp_path / "rows", kind, make_columns(kind, 40), files=2)
    rows = RowFolder(tmp_path / "rows", kind, TINY, masking_seed=7)
    numbers = np.array([5, 0, NO_ROW, 39, 5])
    stored = rows.take(numbers)
    epochs = [rows.take(numbers, np.full(5, epoch)) for epoch in range(20)]
    for batch in epochs:
        columns = batch.columns
        assert {name: x.dtype for name, x in columns.items()} == {n: x.dtype for n, x in stored.columns.items()}
        np.testing.assert_array_equal(text_of(columns), text_of(stored.columns))
        np.testing.assert_array_equal(masks_of_sequences(columns), masks_of_sequences(stored.columns))
        assert not np.isin(columns["masked_labels"], SPECIAL).any()
        assert (columns["masked_labels"][2] == -100).all()
        for name in ("input_ids", "masked_positions", "masked_labels"):  # row 5 twice in one epoch
            np.testing.assert_array_equal(columns[name][0], columns[name][4])
    places = np.stack([batch.columns["masked_positions"][[0, 1, 3]] for batch in epochs])
    assert len({place.tobytes() for place in places}) == len(epochs)
    again = RowFolder(tmp_path / "rows", kind, TINY, masking_seed=7)
    alone = again.take(numbers[3:4], np.array([4]))
    assert bytes_of(alone) == bytes_of(epochs[4].part(3, 4))  # whatever else is in the batch
    other = RowFolder(tmp_path / "rows", kind, TINY, masking_seed=8).take(numbers, np.full(5, 4))
    assert bytes_of(other) != bytes_of(epochs[4])


def test_chosen_tokens_are_spread_evenly_and_replaced_80_10_10():
    rows, length, most, vocabulary = 4000, 64, 10, 1000
    text = np.random.Generator(np.random.PCG64(0)).integers(5, vocabulary, (rows, length)).astype(np.uint16)
    text[:, 0], text[:, -1] = 2, 3
    columns = {
        "input_ids": text,
        "sequence_ids": np.ones((rows, length), np.uint8),
        "cls_positions": np.zeros((rows, 1), np.int16),
        "masked_positions": np.tile(np.arange(1, most + 1, dtype=np.int16), (rows, 1)),
        "masked_labels": text[:, 1 : most + 1].astype(np.int32),
    }
    masking = DynamicMasking(3, MASK, SPECIAL, vocabulary)
    first, second = (masking.mask(columns, np.arange(rows), np.full(rows, epoch)) for epoch in (0, 1))
    row, slot = np.nonzero(first["masked_labels"] != -100)
    assert len(row) == rows * most
    position, label = first["masked_positions"][row, slot], first["masked_labels"][row, slot]
    after = first["input_ids"][row, position]
    for share, wanted in (((after == MASK).mean(), 0.8), ((after == label).mean(), 0.1 + 0.1 / 995)):
        assert abs(share - wanted) < 4 * np.sqrt(wanted * (1 - wanted) / len(row))
    drawn = after[(after != MASK) & (after != label)]
    assert len(set(drawn.tolist())) > 900
    assert not set(drawn.tolist()) & set(SPECIAL)
    per_position = np.bincount(position, minlength=length)
    assert per_position[[0, length - 1]].tolist() == [0, 0]
    mean = rows * most / (length - 2)
    assert (abs(per_position[1:-1] - mean) < 5 * np.sqrt(mean)).all()
    # The tokens of two epochs are chosen independently: a share of most / 62 is in both.
    masked = [np.zeros((rows, length), bool) for _ in range(2)]
    for flags, columns in zip(masked, (first, second)):
        np.put_along_axis(flags, columns["masked_positions"].astype(int), True, axis=1)
    assert (masked[0] & masked[1]).sum() / (rows * most) == pytest.approx(most / (length - 2), abs=0.01)


def test_a_resumed_training_masks_as_one_that_was_not_paused_and_held_out_rows_stay_as_they_are(tmp_path):
    """Six updates of about seven rows are several epochs of ten, in which nothing is learned."""
    for name, rows, seed in (("rows", 10, 0), ("held-out", 8, 3)):
        write_rows(tmp_path / name, "masked_lm", make_columns("masked_lm", rows, seed=seed))
    settings = {"head": "masked_lm", "evaluation": EvaluationConfig(str(tmp_path / "held-out"), every_updates=2)}
    settings["optimizer"] = optimizer_config(learning_rate=0.0, weight_decay=0.0)
    straight, paused, static = (
        make_job(tmp_path / name, "pretrain", tmp_path / "rows", masking=masking, **settings)
        for name, masking in (("a", "dynamic"), ("b", "dynamic"), ("c", "static"))
    )
    pausing(paused, "saved")
    tables = []
    for job in (straight, paused, static):
        run_here(job)
        tables.append([(Path(job.run_folder) / name).read_bytes() for name in ("history.csv", "evaluations.csv")])
    assert tables[0] == tables[1]
    assert tables[0][0] != tables[2][0]
    assert tables[0][1] == tables[2][1]


def test_what_cannot_be_masked_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="masking='dynamic'"):
        make_job(tmp_path, "finetune", tmp_path, masking="dynamic")
    write_rows(tmp_path / "rows", "question_answering", make_columns("question_answering", 4))
    with pytest.raises(RowsError, match="mask_id .*pretrain.masking"):
        RowFolder(tmp_path / "rows", "question_answering", TINY, masking_seed=0)
