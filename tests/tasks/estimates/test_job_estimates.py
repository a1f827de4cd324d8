"""What jobs need: a bound or a measurement on CPUs and GPUs, formulas on IPUs, and what the ledger says of both."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from ipu_model.core.errors import OutOfMemory
from tasks.estimates import job_estimates
from tasks.estimates.job_estimates import (
    DOES_NOT_FIT,
    EstimatedJob,
    EstimateOptions,
    NotMeasured,
    choose_runtime,
    estimate_jobs,
)
from tasks.host import ledger
from tests.places import ROOT
from tests.plans import params_of

DEMO = ["pretrain@phase1"]
DEVICE = "CPU, 1 process"


def record(**figures: Any) -> ledger.Record:
    return {"at": "2026-01-01T00:00:00", "kind": "pretrain", "device": DEVICE, **figures}


def figure(low: float, likely: float, high: float, measured: float) -> dict[str, float]:
    return {"low": low, "likely": likely, "high": high, "measured": measured}


def demo(tmp_path: Path, *records: ledger.Record, **more: Any) -> EstimatedJob:
    [found] = estimate_jobs(params_of(None), ROOT, tmp_path, DEMO, options=EstimateOptions(records, **more))
    assert found.estimate is not None
    return found


def memory(found: EstimatedJob) -> job_estimates.Interval:
    assert found.estimate is not None
    return found.estimate.memory[0].total


def of_demo(tmp_path: Path, **figures: Any) -> ledger.Record:
    """A record of the very job."""
    one = demo(tmp_path)
    assert one.plan is not None
    shape = job_estimates._job_shape(one, one.plan)
    known = {"runtime": "cpu", "precision": "fp32", "host": ledger.host_name("cpu"), "shape": shape}
    return record(**{**known, **{name: {"measured": value} for name, value in figures.items()}})


def test_a_cpu_answers_from_the_records_of_the_shape_and_else_says_that_nothing_was_measured(tmp_path: Path) -> None:
    plain = demo(tmp_path)
    assert (plain.seconds, plain.records, plain.basis) == (None, 0, "not measured; a bound from the sizes of tensors")
    told = demo(tmp_path, of_demo(tmp_path, memory=6e8, update_seconds=0.1, tokens_per_second=9.0))
    assert told.time is not None
    assert told.seconds is not None
    assert (told.time.updates, told.records, told.basis) == (1500, 1, "")
    assert told.seconds.likely == pytest.approx(150.0)
    assert told.seconds.low < told.seconds.likely < told.seconds.high
    assert (memory(told).low, memory(told).likely, memory(told).high) == pytest.approx((6e8 / 1.15, 6e8, 6.9e8))
    rows = told.planned.rows.manifest
    sequences = round(32 / rows.packing_factor) * rows.packing_factor
    assert told.time.sequences_per_second.likely == pytest.approx(sequences / told.time.update_seconds.likely)
    for change in ({"host": "another"}, {"shape": {"kind": "pretrain"}}, {"precision": "bf16"}):
        other = demo(tmp_path, {**of_demo(tmp_path, memory=6e8), **change})
        assert (memory(other), other.records) == (memory(plain), 0)


def test_an_ipu_widens_its_intervals_by_the_ledger_and_never_narrows_them(tmp_path: Path) -> None:
    params = params_of("ipu-base-pod16-examples")

    def found(*records: ledger.Record) -> EstimatedJob:
        [one] = estimate_jobs(params, ROOT, tmp_path, DEMO, options=EstimateOptions(records))
        assert one.estimate is not None
        return one

    plain = found()
    assert plain.estimate is not None
    device = plain.estimate.device
    wide = found(*({**record(memory=figure(9, 10, 11, most)), "device": device} for most in (20, 5)))
    assert (memory(wide).low, memory(wide).high) == (memory(plain).likely * 0.5, memory(plain).likely * 2.0)
    assert (memory(wide).likely, wide.records) == (memory(plain).likely, 2)
    assert memory(found({**record(memory=figure(9, 10, 11, 10)), "device": device})) == memory(plain)
    for other in ({"device": "16 IPUs Bow, 4 replicas of 4"}, {"device": device, "kind": "predict"}):
        assert memory(found({**record(memory=figure(9, 10, 11, 20)), **other})) == memory(plain)
    toy = {**record(update_seconds=figure(0.1, 0.1, 0.1, 9)), "device": device}
    assert found(toy).seconds == plain.seconds, "of what is far less work its time says nothing"
    alike = {**record(update_seconds=figure(6, 6, 6, 30)), "device": device}
    assert plain.seconds is not None
    assert found(alike).seconds == dataclasses.replace(plain.seconds, high=pytest.approx(5 * plain.seconds.likely))


MEASURED = {"runtime": "cpu", "precision": "bf16", "memory": 3e8, "free_memory": None}
MEASURED |= {"update_seconds": 0.2, "tokens_per_second": 9.0}


@pytest.fixture
def own_ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The ledger of a test."""
    path = tmp_path / "state" / "ledger.json"
    monkeypatch.setenv(ledger.LEDGER, str(path))
    return path


def measured_demo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, result: Any, limit: float | None = None, **choices: Any
) -> tuple[EstimatedJob, list[str]]:
    """The demo's pre-training with a measurement that ends like this, and its output."""
    said: list[str] = []

    def measure(*args: Any) -> Any:
        said.append("measured")
        if isinstance(result, Exception):
            raise result
        return result

    monkeypatch.setattr(job_estimates, "measure", measure)
    params = params_of(None, "device.precision=auto")
    asked = EstimateOptions(limit=limit, measured=DEMO, say=said.append, **choices)
    [one] = estimate_jobs(params, ROOT, tmp_path, DEMO, options=asked)
    return one, said


def test_a_measurement_is_the_estimate_and_stays_in_the_ledger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_ledger: Path
) -> None:
    one, said = measured_demo(tmp_path, monkeypatch, MEASURED)
    assert said == ["pretrain@phase1: measuring a few updates", "measured"]
    assert one.seconds is not None
    assert (one.seconds.likely, one.precision, one.records) == (pytest.approx(300.0), "bf16", 1)
    assert job_estimates.MEASURED_LATER not in one.assumed
    [kept] = ledger.read(own_ledger)
    assert kept["measurement"]
    [again] = estimate_jobs(
        params_of(None, "device.precision=auto"), ROOT, tmp_path, DEMO, options=EstimateOptions([kept])
    )
    assert (again.seconds, memory(again)) == (one.seconds, memory(one))


def test_jobs_of_one_shape_are_measured_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_ledger: Path) -> None:
    monkeypatch.setattr(job_estimates, "measure", lambda *args: MEASURED)
    said: list[str] = []
    stages = ["pretrain@phase1", "pretrain@phase1"]
    for precision, records in (("fp32", 0), ("bf16", 1)):
        params = params_of(None, f"device.precision={precision}")
        options = EstimateOptions(measured=stages, say=said.append)
        found = estimate_jobs(params, ROOT, tmp_path, stages, options=options)
        assert [one.records for one in found] == [records] * 2, "it took bf16"
    assert len(said) == 3


@pytest.mark.parametrize(("share", "measures"), [(2.0, False), (0.9, True), (0.01, False)])
def test_before_a_run_only_jobs_are_measured_whose_memory_is_in_doubt(
    share: float, measures: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_ledger: Path
) -> None:
    bound = memory(demo(tmp_path)).high
    one, said = measured_demo(tmp_path, monkeypatch, MEASURED, share * bound, in_doubt=True)
    assert ("measured" in said) == measures
    assert bool(one.refusal) == (share == 0.01), "what certainly does not fit needs no measurement"


def test_a_job_that_runs_out_of_memory_when_it_is_measured_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_ledger: Path
) -> None:
    limit = 0.9 * memory(demo(tmp_path)).high
    why = OutOfMemory("it ran out of memory when a few of its updates were measured")
    one, _ = measured_demo(tmp_path, monkeypatch, why, limit, in_doubt=True)
    assert one.verdict == DOES_NOT_FIT
    assert one.refusal.startswith(f"pretrain@phase1 does not fit: {why}. The largest part is ")
    assert ledger.read(own_ledger) == []


def test_a_job_that_cannot_be_measured_is_not_refused_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_ledger: Path
) -> None:
    one, said = measured_demo(tmp_path, monkeypatch, NotMeasured("it took too long"))
    assert said[-1] == "pretrain@phase1: not measured (it took too long)"
    assert (one.seconds, one.refusal) == (None, "")


def test_a_gpu_has_the_memory_that_was_free_when_one_was_measured(tmp_path: Path) -> None:
    params = params_of(None, "device.runtime=cuda")
    known = record(memory={"measured": 1.0}, host=ledger.host_name("cuda"), free_memory=1e7)
    for records, verdict in (((), ""), ((known,), DOES_NOT_FIT)):
        [one] = estimate_jobs(params, ROOT, tmp_path, DEMO, options=EstimateOptions(records))
        assert one.verdict == verdict


def test_rows_that_are_estimated_to_be_too_few_leave_the_time_unknown(tmp_path: Path) -> None:
    few = params_of(None, "pretrain.phase1.global_batch_size=1000000")
    known = of_demo(tmp_path, update_seconds=0.1)
    [found] = estimate_jobs(few, ROOT, tmp_path, DEMO, options=EstimateOptions((known,)))
    assert (found.seconds, found.problem) == (None, "")


def test_a_refusal_names_what_was_found_what_there_is_the_largest_part_and_its_knob(tmp_path: Path) -> None:
    fits = demo(tmp_path)
    assert fits.refusal == ""
    small = demo(tmp_path, limit=1e8)
    assert small.verdict == DOES_NOT_FIT
    assert small.refusal.startswith("pretrain@phase1 does not fit: the process needs ")
    assert "and 100 MB are available besides the memory of the command, Prefect and DVC. The largest" in small.refusal


def test_a_job_that_cannot_be_says_why(tmp_path: Path) -> None:
    [found] = estimate_jobs(params_of(None, "device.precision=fp16"), ROOT, tmp_path, DEMO)
    assert (found.estimate, found.verdict, found.seconds) == (None, "", None)
    assert "has no fp16" in found.problem
    assert job_estimates.as_values(found)["problem"] == found.problem


@pytest.mark.parametrize(
    ("there", "expected"), [((), "cpu"), (("/dev/nvidia0",), "cuda"), (("/dev/ipu0",), "cpu"), (("/dev/dxg",), "cuda")]
)
def test_auto_is_taken_as_what_this_host_has(
    there: tuple[str, ...], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job cannot use an IPU without PopTorch."""
    monkeypatch.setattr(job_estimates.importlib.util, "find_spec", lambda name: None)
    device = params_of(None, "device.runtime=auto").device
    runtime, why = choose_runtime(device, exists=lambda path: path in there)
    assert runtime == expected
    assert f"device.runtime=auto is {expected}" in why
    assert choose_runtime(params_of(None).device) == ("cpu", "")
