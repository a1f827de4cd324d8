"""What jobs need, widened by what such jobs took here before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tasks.host import ledger
from tasks.preflight import foretelling
from tasks.preflight.foretelling import DOES_NOT_FIT, Asked, Foretold, chosen_runtime, foretell
from tests.places import ROOT
from tests.tasks.preflight.test_foreseen_rows import params_of

DEMO = ["pretrain@phase1"]
DEVICE = "CPU, 1 process"


def record(**figures: Any) -> ledger.Record:
    return {"at": "2026-01-01T00:00:00", "kind": "pretrain", "device": DEVICE, **figures}


def figure(low: float, likely: float, high: float, measured: float) -> dict[str, float]:
    return {"low": low, "likely": likely, "high": high, "measured": measured}


def demo(tmp_path: Path, *records: ledger.Record, **more: Any) -> Foretold:
    [found] = foretell(params_of(None), ROOT, tmp_path, DEMO, asked=Asked(records, **more))
    assert found.estimate is not None
    return found


def memory(found: Foretold) -> foretelling.Interval:
    assert found.estimate is not None
    return found.estimate.memory[0].total


def test_the_ledger_widens_intervals_and_never_narrows_them(tmp_path: Path) -> None:
    plain = memory(demo(tmp_path))
    wide = demo(tmp_path, record(memory=figure(9, 10, 11, 20)), record(memory=figure(9, 10, 11, 5)))
    assert (memory(wide).low, memory(wide).high) == (plain.likely * 0.5, plain.likely * 2.0)
    assert memory(wide).likely == plain.likely
    assert wide.records == 2
    exact = demo(tmp_path, record(memory=figure(9, 10, 11, 10)))
    assert memory(exact) == plain
    other = demo(tmp_path, {**record(memory=figure(9, 10, 11, 90)), "device": "another"})
    assert (memory(other), other.records) == (plain, 0)


def test_a_cpu_takes_its_time_from_the_speed_of_earlier_jobs(tmp_path: Path) -> None:
    assert demo(tmp_path).seconds is None
    told = demo(tmp_path, record(flops=1e9, update_seconds={"measured": 0.1}))
    assert told.time is not None
    assert told.seconds is not None
    assert told.time.updates == 1500
    assert told.seconds.low < told.seconds.likely < told.seconds.high
    twice = demo(tmp_path, record(flops=1e9, update_seconds={"measured": 0.2}))
    assert twice.seconds is not None
    assert twice.seconds.likely == pytest.approx(2 * told.seconds.likely)
    assert "10 GFLOP/s" in told.time.largest.name
    rows = told.planned.rows.manifest
    sequences = round(32 / rows.packing_factor) * rows.packing_factor
    assert told.time.sequences_per_second.likely == pytest.approx(sequences / told.time.update_seconds.likely)


def test_a_toy_says_nothing_of_the_time_of_a_training_but_of_its_memory(tmp_path: Path) -> None:
    toy = record(flops=1e6, update_seconds=figure(0.001, 0.001, 0.001, 0.1), memory=figure(9, 10, 11, 20))
    assert demo(tmp_path, toy).seconds is None
    real = record(flops=4e9, update_seconds=figure(0.1, 0.1, 0.1, 0.2))
    told, alone = demo(tmp_path, toy, real), demo(tmp_path, real)
    assert told.seconds == alone.seconds
    assert told.seconds is not None
    assert memory(told).high == pytest.approx(2 * memory(told).likely)


def test_rows_that_are_foreseen_to_be_too_few_leave_the_time_unknown(tmp_path: Path) -> None:
    few = params_of(None, "pretrain.phase1.global_batch_size=1000000")
    known = record(flops=4e9, update_seconds={"measured": 0.1})
    [found] = foretell(few, ROOT, tmp_path, DEMO, asked=Asked((known,)))
    assert (found.seconds, found.problem) == (None, "")


def test_a_refusal_names_what_was_found_what_there_is_the_largest_part_and_its_knob(tmp_path: Path) -> None:
    fits = demo(tmp_path)
    assert fits.refusal == ""
    small = demo(tmp_path, limit=1e8)
    assert small.verdict == DOES_NOT_FIT
    assert small.refusal.startswith("pretrain@phase1 does not fit: the process, ")
    assert "and there are 100 MB. The largest part is Python, torch and its libraries, " in small.refusal


def test_a_job_that_cannot_be_says_why(tmp_path: Path) -> None:
    [found] = foretell(params_of(None, "device.precision=fp16"), ROOT, tmp_path, DEMO)
    assert (found.estimate, found.verdict, found.seconds) == (None, "", None)
    assert "has no fp16" in found.problem
    assert foretelling.as_values(found)["problem"] == found.problem


@pytest.mark.parametrize(
    ("there", "expected"), [((), "cpu"), (("/dev/nvidia0",), "cuda"), (("/dev/ipu0",), "cpu"), (("/dev/dxg",), "cuda")]
)
def test_auto_is_taken_as_what_this_host_has(
    there: tuple[str, ...], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An IPU without PopTorch is none that a job could use."""
    monkeypatch.setattr(foretelling.importlib.util, "find_spec", lambda name: None)
    device = params_of(None, "device.runtime=auto").device
    runtime, why = chosen_runtime(device, exists=lambda path: path in there)
    assert runtime == expected
    assert f"device.runtime=auto is {expected}" in why
    assert chosen_runtime(params_of(None).device) == ("cpu", "")
