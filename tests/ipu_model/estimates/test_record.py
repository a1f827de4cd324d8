"""What was estimated next to what was measured, and what tells the jobs of CPUs and GPUs apart."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, Dict

from tiny_jobs import TINY, make_job

from ipu_model.estimates.estimate import Interval, JobEstimate, MemoryEstimate, Term, TimeEstimate
from ipu_model.estimates.job import estimated_figures, finish_record, job_shape
from ipu_model.jobs.job import Job
from ipu_model.jobs.plan import Choice, make_plan
from ipu_model.models.config import ModelConfig
from ipu_model.rows.format import Manifest

MANIFEST = Manifest("pretrain", 16, 1, 2, TINY.vocab_size, "", 0, 10, 20, 200, {})
MEMORY = MemoryEstimate("the process", (Term("weights", 90.0),), Interval(80.0, 100.0, 120.0), 1000.0)
TIME = TimeEstimate((Term("all", 2.0),), 5, Interval(1.0, 2.0, 4.0), Interval(10.0, 20.0, 40.0))


def test_each_measured_figure_stands_beside_what_was_estimated() -> None:
    ends = {
        name: dataclasses.asdict(x) for name, x in estimated_figures(JobEstimate("IPU", (MEMORY,), TIME), 10.0).items()
    }
    found = finish_record(
        {"device": "IPU", **ends}, {"memory": 110.0, "update_seconds": 3.0, "tokens_per_second": 150.0}
    )
    assert found == {
        "device": "IPU",
        "memory": {"low": 80.0, "likely": 100.0, "high": 120.0, "measured": 110.0},
        "update_seconds": {"low": 1.0, "likely": 2.0, "high": 4.0, "measured": 3.0},
        "tokens_per_second": {"low": 100.0, "likely": 200.0, "high": 400.0, "measured": 150.0},
    }


def test_what_was_not_estimated_is_measured_alone_and_what_was_not_measured_is_left_out() -> None:
    begun = {"device": "CPU", "shape": {}, "memory": {"low": 80.0, "likely": 100.0, "high": 120.0}}
    found = finish_record(begun, {"memory": None, "update_seconds": 3.0})
    assert found == {"device": "CPU", "shape": {}, "update_seconds": {"measured": 3.0}}


def shape_of(job: Job, model: ModelConfig, manifest: Manifest, processes: int) -> Dict[str, Any]:
    return job_shape(job, make_plan(job, manifest, Choice("", ""), Choice("", "")), model, manifest, processes)


def test_jobs_have_one_shape_whose_memory_and_time_nothing_tells_apart() -> None:
    manifest = dataclasses.replace(MANIFEST, rows=1000, sequences=2000, real_tokens=20000)
    job = make_job(Path("folder"), "pretrain", Path("rows"))
    shape = shape_of(job, TINY, manifest, 1)
    alike = dataclasses.replace(job, seed=9, rows="others", output="x", runtime="auto", log_every_updates=1)
    assert shape_of(alike, TINY, manifest, 1) == shape
    assert shape["sizes"] == {"tokens": 6 * 20.0, "vocabulary": TINY.vocab_size}
    for change in ({"recompute": True}, {"kind": "finetune"}, {"head": "question_answering"}):
        assert shape_of(dataclasses.replace(job, **change), TINY, manifest, 1) != shape  # type: ignore[arg-type]
    assert shape_of(job, dataclasses.replace(TINY, num_layers=3), manifest, 1) != shape
    assert shape_of(job, TINY, dataclasses.replace(manifest, row_length=32), 1) != shape
    assert shape_of(job, TINY, manifest, 2) != shape
    longer = shape_of(job, TINY, dataclasses.replace(manifest, real_tokens=21000), 1)
    assert {**longer, "sizes": 0} == {**shape, "sizes": 0}
