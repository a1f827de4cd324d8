"""Hand-worked plans."""

from pathlib import Path

import pytest
from tiny_jobs import make_job

from ipu_model.core.errors import ConfigError, RowsError
from ipu_model.jobs.job import BatchGeometry, Division, Job, ScheduleConfig
from ipu_model.jobs.plan import Choice, count_updates, divide, make_plan
from ipu_model.rows.format import Manifest
from ipu_model.train.training import learning_rate

CPU, FP32 = Choice("cpu", "as requested"), Choice("fp32", "as requested")


def manifest(rows, sequences):
    return Manifest("pretrain", 64, 3, 10, 2000, "t", 0, rows, sequences, rows * 60, {"rows-00000.arrow": rows})


@pytest.mark.parametrize(
    ("geometry", "packing_factor", "expected"),
    [
        ((64, 32, 1), 1.0, (64, 32, 2)),
        ((64, 64, 1), 1.5, (43, 43, 1)),  # 42.67 rows; the micro-batch shrinks to them
        ((64, 32, 1), 1.5, (44, 22, 2)),  # 43 rows do not halve: one more
        ((256, 8, 4), 2.0, (128, 8, 4)),  # 128 rows = 4 micro-batches of 8 on each of 4 replicas
        ((2, 8, 4), 2.0, (4, 1, 1)),  # one row per replica is the least
        ((1, 32, 1), 3.0, (1, 1, 1)),  # a third of a row: one row
    ],
)
def test_an_update_is_cut_into_equal_micro_batches_near_the_sequences_asked_for(geometry, packing_factor, expected):
    division = divide(BatchGeometry(*geometry), packing_factor)
    assert division == Division(*expected)
    assert division.rows_per_update == division.micro_batch_size * division.gradient_accumulation_steps * geometry[2]


@pytest.mark.parametrize(
    ("schedule", "per_call", "expected"),
    [
        (ScheduleConfig(epochs=4.0), 1, (125, 4000)),
        (ScheduleConfig(epochs=1.0), 1, (32, 1000)),  # 31.25: the last update has 8 rows
        (ScheduleConfig(epochs=1.5), 1, (47, 1500)),
        (ScheduleConfig(epochs=0.001), 1, (1, 1)),
        (ScheduleConfig(epochs=1.0), 8, (32, 1000)),
        (ScheduleConfig(epochs=1.0), 5, (35, 35 * 32)),  # 3 updates more than the epoch has: they are whole
        (ScheduleConfig(steps=0), 1, (0, 0)),
        (ScheduleConfig(steps=3), 1, (3, 96)),
    ],
)
def test_epochs_end_with_their_last_row(schedule, per_call, expected):
    assert count_updates(schedule, rows=1000, rows_per_update=32, per_call=per_call) == expected


@pytest.mark.parametrize(("warmup", "decay", "expected"), [(0.25, 0.25, (2, 2)), (0.25, 0.75, (2, 8)), (0, 1, (0, 10))])
def test_a_decay_at_the_end_leaves_the_warm_up(tmp_path, warmup, decay, expected):
    schedule = ScheduleConfig(steps=10, warmup_fraction=warmup, shape="trapezoid", decay_fraction=decay)
    plan = make_plan(make_job(tmp_path, "pretrain", tmp_path, schedule=schedule), manifest(1000, 1500), CPU, FP32)
    assert (plan.warmup_updates, plan.decay_updates) == expected


def test_a_schedule_without_a_late_decay_is_written_as_before(tmp_path):
    written = make_job(tmp_path, "pretrain", tmp_path).fields
    assert "decay_fraction" not in written["schedule"]
    late = ScheduleConfig(steps=10, shape="1-sqrt", decay_fraction=0.5)
    job = make_job(tmp_path, "pretrain", tmp_path, schedule=late)
    assert Job.from_json(job.to_json()) == job


def test_data_smaller_than_one_update_is_refused_with_a_setting_that_works(tmp_path):
    job = make_job(tmp_path, "pretrain", tmp_path, geometry=BatchGeometry(64, 32))
    with pytest.raises(RowsError, match="64 / 1.50 = 44 rows.*at most 30") as caught:
        make_plan(job, manifest(rows=20, sequences=30), CPU, FP32)
    assert "use more data" in str(caught.value)
    works = make_job(tmp_path, "pretrain", tmp_path, geometry=BatchGeometry(30, 32))
    plan = make_plan(works, manifest(rows=20, sequences=30), CPU, FP32)
    assert (plan.rows_per_update, plan.sequences_per_update, plan.packing_efficiency) == (20, 30.0, 0.9375)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: ScheduleConfig(steps=10, shape="trapezoid"), ConfigError, "decay_fraction=null"),
        (lambda: ScheduleConfig(steps=10, shape="1-sqrt", decay_fraction=0.0), ConfigError, "above 0 and at most 1"),
        (lambda: ScheduleConfig(steps=10, shape="1-sqrt", decay_fraction=0.95), ConfigError, "more than all"),
        (lambda: ScheduleConfig(steps=10, shape="cosine", decay_fraction=0.5), ConfigError, "no effect on cosine"),
        (lambda: BatchGeometry(0), ConfigError, "global_batch_size=0"),
        (lambda: BatchGeometry(4, 0), ConfigError, "micro_batch_size=0"),
        (lambda: count_updates(ScheduleConfig(epochs=0.0), 10, 2), ConfigError, "schedule"),
        (lambda: count_updates(ScheduleConfig(steps=-1), 10, 2), ConfigError, "schedule"),
        (lambda: make_plan(make_job(Path(), "pretrain", Path()), manifest(0, 0), CPU, FP32), RowsError, "no rows"),
    ],
)
def test_what_is_no_training_is_refused(make, error, message):
    with pytest.raises(error, match=message):
        make()


@pytest.mark.parametrize(
    ("run", "shape", "expected"),
    [
        # Up in quarters of the peak, then down in sixths: the last update still learns.
        ((10, 4, 1.0), (), [0.25, 0.5, 0.75, 1.0, 1.0, 5 / 6, 4 / 6, 3 / 6, 2 / 6, 1 / 6]),
        ((4, 0, 8.0), (), [8.0, 6.0, 4.0, 2.0]),
        ((6, 2, 8.0), ("constant",), [4.0, 8.0, 8.0, 8.0, 8.0, 8.0]),
        # 4 + 4 cos(0, 45, 90, 135 degrees)
        ((6, 2, 8.0), ("cosine",), [4.0, 8.0, 8.0, 4.0 + 4.0 * 0.5**0.5, 4.0, 4.0 - 4.0 * 0.5**0.5]),
        # the root of what is left of all 6 updates
        ((6, 2, 8.0), ("square_root",), [4.0, 8.0, *(8.0 * (share / 6) ** 0.5 for share in (4, 3, 2, 1))]),
        ((8, 2, 8.0), ("trapezoid", 4), [4.0, 8.0, 8.0, 8.0, 8.0, 6.0, 4.0, 2.0]),
        # 1 minus the roots of 0, 1/4, 1/2, 3/4
        ((8, 2, 8.0), ("1-sqrt", 4), [4.0, 8.0, 8.0, 8.0, 8.0, 4.0, 8.0 * (1 - 0.5**0.5), 8.0 * (1 - 0.75**0.5)]),
        ((4, 0, 8.0), ("1-sqrt", 4), [8.0, 4.0, 8.0 * (1 - 0.5**0.5), 8.0 * (1 - 0.75**0.5)]),
    ],
)
def test_every_shape_rises_and_decays_as_its_source_says(run, shape, expected):
    """Updates, those of the warm-up and the peak; the shape, and the updates of a late decay."""
    assert [learning_rate(step, *run, *shape) for step in range(run[0])] == pytest.approx(expected)


@pytest.mark.parametrize(("step", "warm_up", "word"), [(0, 11, "warmup_fraction"), (10, 0, "outside")])
def test_a_long_warm_up_and_an_update_outside_the_run_are_refused(step, warm_up, word):
    with pytest.raises(ConfigError, match=word):
        learning_rate(step, 10, warm_up, 1.0)
