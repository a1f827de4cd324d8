"""The bound of memory on CPU and CUDA, held against peaks that were measured."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, Dict, Tuple

import pytest
from tiny_jobs import TINY, make_job

from ipu_model.core.errors import ConfigError
from ipu_model.estimates.estimate import (
    DOES_NOT_FIT,
    FITS,
    TIGHT,
    Interval,
    JobEstimate,
    MemoryEstimate,
    Term,
    TimeEstimate,
)
from ipu_model.estimates.host import MIB, estimate_host, memory_terms
from ipu_model.estimates.job import estimated_figures, finish_record, job_shape
from ipu_model.jobs.job import BatchGeometry, EvaluationConfig, Job
from ipu_model.jobs.plan import Choice, make_plan
from ipu_model.models.config import ModelConfig
from ipu_model.models.families import get_family
from ipu_model.rows.format import Manifest
from tests.optimizers import optimizer_config

SIZES = {"tiny": (2, 128, 2), "mini": (4, 256, 4), "small": (4, 512, 8), "base": (12, 768, 12)}
"""Layers, hidden size and heads."""
ROWS = {
    ("pretrain", 128): (3, 20, 22781, 28926, 2847023),
    ("pretrain", 512): (3, 76, 5998, 11524, 2884242),
    ("squad", 128): (3, 0, 12732, 13470, 1488556),
    ("squad", 384): (3, 0, 2999, 6000, 1093212),
}
"""Sequences of a row, masked slots, rows, sequences, and tokens that are not padding."""
PEAKS = [
    (("pretrain", "tiny", 128, 32, 1, "adamw", "fp32", ""), 564.1),
    (("pretrain", "mini", 512, 16, 1, "adamw", "fp32", ""), 1471.8),
    (("pretrain", "mini", 128, 128, 1, "adamw", "bf16", ""), 1952.2),
    (("pretrain", "small", 128, 16, 2, "lamb", "bf16", ""), 1256.6),
    (("pretrain", "small", 128, 16, 1, "adamw", "bf16", "recompute"), 1082.8),
    (("pretrain", "mini", 128, 32, 1, "lamb", "fp32", "evaluates"), 1159.5),
    (("squad", "tiny", 384, 64, 1, "lamb", "bf16", ""), 994.6),
    (("squad", "base", 128, 4, 1, "adamw", "fp32", "checkpoints"), 4608.7),
]
"""Peaks of processes with torch 2.13 on a CPU, MB: `measure` of tasks/estimates/job_estimates.py."""
OTHERS = [
    (("deberta-v2", "tiny", 4.0, 128100, 128, 32), 1167),
    (("deberta-v2", "small", 4.0, 128100, 512, 8), 5627),
    (("modernbert", "tiny", 1.5, 50368, 128, 32), 681),
    (("modernbert", "small", 1.5, 50368, 512, 16), 3130),
    (("xlm-roberta", "small", 4.0, 250002, 256, 8), 3677),
    (("roberta", "small", 4.0, 50265, 256, 16), 1984),
]
"""Peaks of fine-tuning other encoders in fp32 with adamw, one text of 0.8 of its length in a row, MB: `measure` of
tasks/estimates/job_estimates.py, with transformers 5.23 and the config.json of DeBERTa-v3."""


def job_of(task: str, size: str, length: int, micro_batch: int, accumulation: int, *words: str) -> Tuple[Job, Manifest]:
    sequences, masked, *counts = ROWS[task, length]
    manifest = Manifest(
        "pretrain" if masked else "question_answering", length, sequences, masked, 9034, "", 0, *counts, {}
    )
    layers, hidden, heads = SIZES[size]
    optimizer, precision, more = words
    changes: Any = {"checkpoint_every_updates": 2 if more == "checkpoints" else 0, "checkpoint_every_minutes": 0}
    job = make_job(
        Path("folder"),
        "pretrain" if task == "pretrain" else "finetune",
        Path("rows"),
        geometry=BatchGeometry(round(micro_batch * accumulation * manifest.packing_factor), micro_batch),
        model=ModelConfig(30522, hidden, layers, heads, 4 * hidden),
        optimizer=optimizer_config(name=optimizer),
        precision=precision,
        recompute=more == "recompute",
        evaluation=EvaluationConfig("rows", 3, keep="best") if more == "evaluates" else None,
        **changes,
    )
    return job, manifest


def bound(job: Job, manifest: Manifest, processes: int = 1, **changes: Any) -> float:
    assert job.model is not None
    changed = dataclasses.replace(job, **changes)
    return sum(term.amount for term in memory_terms(changed, job.model, manifest, processes))


@pytest.mark.parametrize(("configuration", "peak"), PEAKS)
def test_a_measured_peak_lies_between_what_is_certain_and_the_bound(configuration: Any, peak: float) -> None:
    job, manifest = job_of(*configuration)
    assert job.model is not None
    [memory] = estimate_host(job, job.model, manifest).memory
    assert memory.total.low < peak * MIB < memory.total.high < 2 * peak * MIB
    assert memory.total.high == pytest.approx(sum(term.amount for term in memory.terms))
    assert memory.total.low > 0.15 * peak * MIB


@pytest.mark.parametrize(("shape", "peak"), OTHERS)
def test_a_peak_of_another_encoder_lies_below_the_bound_too(shape: Any, peak: float) -> None:
    """What is certain is known on our own path alone: ALBERT has the weights of one layer, not of each."""
    family, size, wider, vocabulary, length, rows = shape
    layers, hidden, heads = SIZES[size]
    model = ModelConfig(vocabulary, hidden, layers, heads, int(wider * hidden), family=family)
    counts = (4096, 4096, 4096 * int(0.8 * length))
    manifest = Manifest("sequence_classification", length, 1, 0, vocabulary, "", 0, *counts, {}, num_labels=2)
    job = make_job(Path("folder"), "finetune", Path("rows"), geometry=BatchGeometry(rows, rows), model=model)
    job = dataclasses.replace(job, optimizer=optimizer_config(name="adamw"), checkpoint_every_minutes=0)
    [memory] = estimate_host(job, model, manifest).memory
    assert memory.total.low < peak * MIB < memory.total.high < 2 * peak * MIB
    floor = 0.2 if family == "modernbert" else 0.4
    assert (memory.total.low > floor * peak * MIB) == get_family(family).own
    albert = dataclasses.replace(model, family="albert", hidden_size=4096, intermediate_size=16384)
    assert estimate_host(job, albert, manifest, limit=8e9).verdict == TIGHT, "it is measured, not refused"


def test_what_certainly_does_not_fit_is_told_from_what_is_in_doubt() -> None:
    job, manifest = job_of(*PEAKS[0][0])
    model: Any = job.model
    [memory] = estimate_host(job, model, manifest).memory
    limits = {FITS: memory.total.high, TIGHT: memory.total.high - 1, DOES_NOT_FIT: memory.total.low - 1}
    for verdict, limit in limits.items():
        assert estimate_host(job, model, manifest, limit=limit).verdict == verdict
    assert estimate_host(job, model, manifest, 2, memory.total.high).verdict == TIGHT, "half of it for each"
    with pytest.raises(ConfigError, match="each process"):
        estimate_host(dataclasses.replace(job, geometry=BatchGeometry(64, 8, 4)), model, manifest, 2)


def test_the_bound_grows_with_what_takes_memory_and_the_largest_part_comes_first() -> None:
    job, manifest = job_of(*PEAKS[1][0])
    model: Any = job.model
    whole = bound(job, manifest)
    larger = dataclasses.replace(job.geometry, micro_batch_size=2, global_batch_size=job.geometry.global_batch_size)
    assert bound(job, manifest, geometry=larger) < bound(job, manifest, recompute=True) < whole
    assert whole < bound(job, manifest, checkpoint_every_minutes=15)
    short, rows = job_of(*PEAKS[2][0])
    assert bound(short, rows, kind="predict", optimizer=None, schedule=None) < bound(short, rows)
    assert bound(job, manifest, precision="bf16") < bound(job, manifest, precision="auto") == whole
    assert bound(job, manifest, runtime="cuda") < whole, "its kernels keep no attention scores"
    assert bound(job, manifest, 2) < whole, "each has half of the update"
    terms = memory_terms(job, model, manifest)
    assert [term.amount for term in terms] == sorted((term.amount for term in terms), reverse=True)
    assert len([term for term in terms if not term.knob]) == 1


MANIFEST = Manifest("pretrain", 16, 1, 2, TINY.vocab_size, "", 0, 10, 20, 200, {})
MEMORY = MemoryEstimate("the process", (Term("weights", 90.0),), Interval(80.0, 100.0, 120.0), 1000.0)
TIME = TimeEstimate((Term("all", 2.0),), 5, Interval(1.0, 2.0, 4.0), Interval(10.0, 20.0, 40.0))


def test_each_measured_figure_stands_beside_what_was_estimated() -> None:
    figures = estimated_figures(JobEstimate("IPU", (MEMORY,), TIME), 10.0)
    begun = {"device": "IPU", **{name: dataclasses.asdict(x) for name, x in figures.items()}}
    found = finish_record(begun, {"memory": 110.0, "update_seconds": 3.0, "tokens_per_second": 150.0})
    assert found == {
        "device": "IPU",
        "memory": {"low": 80.0, "likely": 100.0, "high": 120.0, "measured": 110.0},
        "update_seconds": {"low": 1.0, "likely": 2.0, "high": 4.0, "measured": 3.0},
        "tokens_per_second": {"low": 100.0, "likely": 200.0, "high": 400.0, "measured": 150.0},
    }
    found = finish_record({"device": "CPU", "memory": begun["memory"]}, {"memory": None, "update_seconds": 3.0})
    assert found == {"device": "CPU", "update_seconds": {"measured": 3.0}}


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
