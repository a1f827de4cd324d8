"""The bound of memory on CPU and CUDA, held against peaks that were measured."""

import dataclasses
from pathlib import Path

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
from ipu_model.jobs.job import BatchGeometry, EvaluationConfig
from ipu_model.jobs.plan import Choice, make_plan
from ipu_model.models.config import ModelConfig
from ipu_model.models.families import get_family
from ipu_model.rows.format import Manifest
from tests.optimizers import optimizer_config

SIZES = {"tiny": (128, 2, 2), "mini": (256, 4, 4), "small": (512, 4, 8), "base": (768, 12, 12)}
"""Hidden size, layers and heads."""
ROWS = {
    ("pretrain", 128): (3, 20, 22781, 28926, 2847023),
    ("pretrain", 512): (3, 76, 5998, 11524, 2884242),
    ("finetune", 128): (3, 0, 12732, 13470, 1488556),
    ("finetune", 384): (3, 0, 2999, 6000, 1093212),
}
"""Sequences of a row, masked slots, rows, sequences, and tokens that are not padding."""
PEAKS = [
    (("pretrain", "tiny", 128, 32, 1, "adamw", "fp32", ""), 564.1),
    (("pretrain", "mini", 512, 16, 1, "adamw", "fp32", ""), 1471.8),
    (("pretrain", "mini", 128, 128, 1, "adamw", "bf16", ""), 1952.2),
    (("pretrain", "small", 128, 16, 2, "lamb", "bf16", ""), 1256.6),
    (("pretrain", "small", 128, 16, 1, "adamw", "bf16", "recompute"), 1082.8),
    (("pretrain", "mini", 128, 32, 1, "lamb", "fp32", "evaluates"), 1159.5),
    (("finetune", "tiny", 384, 64, 1, "lamb", "bf16", ""), 994.6),
    (("finetune", "base", 128, 4, 1, "adamw", "fp32", "checkpoints"), 4608.7),
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


def job_of(kind, size, length, micro_batch, accumulation, optimizer, precision, more):
    sequences, masked, *counts = ROWS[kind, length]
    of_rows = "pretrain" if masked else "question_answering"
    manifest = Manifest(of_rows, length, sequences, masked, 9034, "", 0, *counts, {})
    hidden, layers, heads = SIZES[size]
    job = make_job(
        Path("folder"),
        kind,
        Path("rows"),
        geometry=BatchGeometry(round(micro_batch * accumulation * manifest.packing_factor), micro_batch),
        model=ModelConfig(30522, hidden, layers, heads, 4 * hidden),
        optimizer=optimizer_config(name=optimizer),
        precision=precision,
        recompute=more == "recompute",
        evaluation=EvaluationConfig("rows", 3, keep="best") if more == "evaluates" else None,
        checkpoint_every_updates=2 if more == "checkpoints" else 0,
        checkpoint_every_minutes=0,
    )
    return job, manifest


def total_of(job, manifest, **limits):
    [memory] = estimate_host(job, job.model, manifest, **limits).memory
    return memory.total


@pytest.mark.parametrize(("configuration", "peak"), PEAKS)
def test_a_measured_peak_lies_between_what_is_certain_and_the_bound(configuration, peak):
    total = total_of(*job_of(*configuration))
    assert 0.15 * peak * MIB < total.low < peak * MIB < total.high < 2 * peak * MIB


@pytest.mark.parametrize(("shape", "peak"), OTHERS)
def test_a_peak_of_another_encoder_lies_below_the_bound_too(shape, peak):
    """What is certain is known on our own path alone: ALBERT has the weights of one layer, not of each."""
    family, size, wider, vocabulary, length, rows = shape
    hidden, layers, heads = SIZES[size]
    model = ModelConfig(vocabulary, hidden, layers, heads, int(wider * hidden), family=family)
    counts = (4096, 4096, 4096 * int(0.8 * length))
    manifest = Manifest("sequence_classification", length, 1, 0, vocabulary, "", 0, *counts, {}, num_labels=2)
    job = make_job(Path("folder"), "finetune", Path("rows"), geometry=BatchGeometry(rows, rows), model=model)
    job = dataclasses.replace(job, optimizer=optimizer_config(name="adamw"), checkpoint_every_minutes=0)
    total = total_of(job, manifest)
    assert total.low < peak * MIB < total.high < 2 * peak * MIB
    floor = 0.2 if family == "modernbert" else 0.4
    assert (total.low > floor * peak * MIB) == get_family(family).own
    albert = dataclasses.replace(model, family="albert", hidden_size=4096, intermediate_size=16384)
    assert estimate_host(job, albert, manifest, limit=8e9).verdict == TIGHT, "it is measured, not refused"


def test_what_certainly_does_not_fit_is_told_from_what_is_in_doubt():
    job, manifest = job_of(*PEAKS[0][0])
    total = total_of(job, manifest)
    limits = ((FITS, total.high), (TIGHT, total.high - 1), (TIGHT, total.low), (DOES_NOT_FIT, total.low - 1))
    for verdict, limit in limits:
        assert estimate_host(job, job.model, manifest, limit=limit).verdict == verdict
    assert estimate_host(job, job.model, manifest, 2, total.high).verdict == TIGHT, "half of it for each"
    with pytest.raises(ConfigError, match="each process"):
        estimate_host(dataclasses.replace(job, geometry=BatchGeometry(64, 8, 4)), job.model, manifest, 2)


def test_the_bound_grows_with_what_takes_memory_and_the_largest_part_comes_first():
    job, manifest = job_of(*PEAKS[1][0])

    def bound(processes=1, job=job, manifest=manifest, **changes):
        return sum(x.amount for x in memory_terms(dataclasses.replace(job, **changes), job.model, manifest, processes))

    whole = bound()
    smaller = dataclasses.replace(job.geometry, micro_batch_size=2)
    assert bound(geometry=smaller) < bound(recompute=True) < whole < bound(checkpoint_every_minutes=15)
    assert bound(precision="bf16") < bound(precision="auto") == whole
    assert bound(runtime="cuda") < whole, "its kernels keep no attention scores"
    assert bound(2) < whole < bound(evaluation=EvaluationConfig("rows", 3)), "each has half of the update"
    short, rows = job_of(*PEAKS[2][0])
    assert bound(1, short, rows, kind="predict", optimizer=None, schedule=None) < bound(1, short, rows)
    terms = memory_terms(job, job.model, manifest)
    assert [term.amount for term in terms] == sorted((term.amount for term in terms), reverse=True)
    assert len([term for term in terms if not term.knob]) == 1


MANIFEST = Manifest("pretrain", 16, 1, 2, TINY.vocab_size, "", 0, 1000, 2000, 20000, {})


def test_each_measured_figure_stands_beside_what_was_estimated():
    memory = MemoryEstimate("the process", (Term("weights", 90.0),), Interval(80.0, 100.0, 120.0), 1000.0)
    time = TimeEstimate((Term("all", 2.0),), 5, Interval(1.0, 2.0, 4.0), Interval(10.0, 20.0, 40.0))
    figures = estimated_figures(JobEstimate("IPU", (memory,), time), 10.0)
    begun = {"device": "IPU", **{name: dataclasses.asdict(x) for name, x in figures.items()}}
    assert finish_record(begun, {"memory": 110.0, "update_seconds": 3.0, "tokens_per_second": 150.0}) == {
        "device": "IPU",
        "memory": {"low": 80.0, "likely": 100.0, "high": 120.0, "measured": 110.0},
        "update_seconds": {"low": 1.0, "likely": 2.0, "high": 4.0, "measured": 3.0},
        "tokens_per_second": {"low": 100.0, "likely": 200.0, "high": 400.0, "measured": 150.0},
    }
    unestimated = finish_record({"device": "CPU", "memory": begun["memory"]}, {"memory": None, "update_seconds": 3.0})
    assert unestimated == {"device": "CPU", "update_seconds": {"measured": 3.0}}


def test_jobs_have_one_shape_whose_memory_and_time_nothing_tells_apart():
    job = make_job(Path("folder"), "pretrain", Path("rows"))

    def shape_of(model=TINY, processes=1, manifest=MANIFEST, **changes):
        changed = dataclasses.replace(job, **changes)
        plan = make_plan(changed, manifest, Choice("", ""), Choice("", ""))
        return job_shape(changed, plan, model, manifest, processes)

    shape = shape_of()
    assert shape_of(seed=9, rows="others", output="x", runtime="auto", log_every_updates=1) == shape
    assert shape["sizes"] == {"tokens": 6 * 20.0, "vocabulary": TINY.vocab_size}
    for change in (
        {"recompute": True},
        {"kind": "finetune"},
        {"head": "question_answering"},
        {"model": dataclasses.replace(TINY, num_layers=3)},
        {"manifest": dataclasses.replace(MANIFEST, row_length=32)},
        {"processes": 2},
    ):
        assert shape_of(**change) != shape
    longer = shape_of(manifest=dataclasses.replace(MANIFEST, real_tokens=21000))
    assert {**longer, "sizes": 0} == {**shape, "sizes": 0}
