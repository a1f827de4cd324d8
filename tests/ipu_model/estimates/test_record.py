"""What was estimated next to what was measured, and the FLOPs that tell jobs of different sizes apart."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from tiny_jobs import TINY, make_job

from ipu_model.estimates.estimate import Interval, JobEstimate, MemoryEstimate, Term, TimeEstimate
from ipu_model.estimates.record import JobRecord, estimated_figures, job_shape, useful_flops
from ipu_model.rows.format import Manifest

MANIFEST = Manifest("pretrain", 16, 1, 2, TINY.vocab_size, "", 0, 10, 20, 200, {})
MEMORY = MemoryEstimate("the process", (Term("weights", 90.0),), Interval(80.0, 100.0, 120.0), 1000.0)
TIME = TimeEstimate((Term("all", 2.0),), 5, Interval(1.0, 2.0, 4.0), Interval(10.0, 20.0, 40.0))


def test_each_measured_figure_stands_beside_what_was_estimated() -> None:
    found = JobRecord("CPU", 7.0, estimated_figures(JobEstimate("CPU", (MEMORY,), TIME), 10.0)).finish(
        110.0, 3.0, 150.0
    )
    assert found == {
        "device": "CPU",
        "flops": 7.0,
        "memory": {"low": 80.0, "likely": 100.0, "high": 120.0, "measured": 110.0},
        "update_seconds": {"low": 1.0, "likely": 2.0, "high": 4.0, "measured": 3.0},
        "tokens_per_second": {"low": 100.0, "likely": 200.0, "high": 400.0, "measured": 150.0},
    }


def test_what_was_not_estimated_is_measured_alone_and_what_was_not_measured_is_left_out() -> None:
    found = JobRecord("CPU", 7.0, estimated_figures(JobEstimate("CPU", (MEMORY,), None), 10.0)).finish(None, 3.0, None)
    assert found == {"device": "CPU", "flops": 7.0, "update_seconds": {"measured": 3.0}}


def test_useful_flops_are_those_of_the_products_without_padding() -> None:
    """By hand, one layer: 2 sequences a row of 10 tokens each, of 16 that a row has, and 2 masked slots."""
    model = dataclasses.replace(TINY, num_layers=1)
    hidden, inner, words = model.hidden_size, model.intermediate_size, model.vocab_size
    layer = 10 * (8 * hidden * hidden + 4 * hidden * inner) + 4 * 10 * 10 * hidden
    decoder = 2 * 2 * hidden * (words + hidden)
    assert useful_flops(model, MANIFEST, 3, training=False) == pytest.approx(3 * (2 * layer + decoder))
    assert useful_flops(model, MANIFEST, 3, training=True) == pytest.approx(9 * (2 * layer + decoder))


def test_jobs_have_one_shape_whose_memory_and_time_nothing_tells_apart() -> None:
    manifest = dataclasses.replace(MANIFEST, rows=1000, sequences=2000, real_tokens=20000)
    job = make_job(Path("folder"), "pretrain", Path("rows"))
    shape = job_shape(job, TINY, manifest, 1)
    alike = dataclasses.replace(job, seed=9, rows="others", output="x", runtime="auto", log_every_updates=1)
    assert job_shape(alike, TINY, manifest, 1) == shape
    assert shape["sizes"] == {"tokens": 6 * 20.0, "vocabulary": TINY.vocab_size}
    for change in ({"recompute": True}, {"kind": "finetune"}, {"head": "question_answering"}):
        assert job_shape(dataclasses.replace(job, **change), TINY, manifest, 1) != shape  # type: ignore[arg-type]
    assert job_shape(job, dataclasses.replace(TINY, num_layers=3), manifest, 1) != shape
    assert job_shape(job, TINY, dataclasses.replace(manifest, row_length=32), 1) != shape
    assert job_shape(job, TINY, manifest, 2) != shape
    longer = job_shape(job, TINY, dataclasses.replace(manifest, real_tokens=21000), 1)
    assert {**longer, "sizes": 0} == {**shape, "sizes": 0}
