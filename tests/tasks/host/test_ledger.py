"""The ledger of a host: bounded, whole whatever happens, and what is read off it."""

from __future__ import annotations

import json
import multiprocessing
from pathlib import Path

import pytest

from tasks.host import ledger


def of(number: int, device: str = "CPU", kind: str = "pretrain", **more: object) -> ledger.Record:
    """A record that took `number` times what was foretold."""
    memory = {"low": 90.0, "likely": 100.0, "high": 110.0, "measured": 100.0 * number}
    return {"at": f"2026-01-01T00:00:{number:02d}", "kind": kind, "device": device, "memory": memory, **more}


def test_the_place_is_of_the_host_and_may_be_named_or_left_out(tmp_path: Path) -> None:
    assert ledger.ledger_file({"XDG_STATE_HOME": "/state"}) == Path("/state/podium/ledger.json")
    assert (
        ledger.ledger_file({"XDG_STATE_HOME": "relative", "PODIUM_LEDGER": str(tmp_path / "own")}) == tmp_path / "own"
    )
    assert ledger.ledger_file({"PODIUM_LEDGER": ""}) is None
    assert ledger.read(None) == []
    ledger.enter(of(1), None)


def test_records_are_kept_oldest_first_and_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "KEPT", 3)
    path = tmp_path / "state" / "ledger.json"
    for number in range(1, 6):
        ledger.enter(of(number), path)
    ledger.enter(of(9, kind="predict"), path)
    assert [(one["kind"], one["at"][-2:]) for one in ledger.read(path)] == [
        ("pretrain", "03"),
        ("pretrain", "04"),
        ("pretrain", "05"),
        ("predict", "09"),
    ]
    monkeypatch.setattr(ledger, "KEPT_IN_ALL", 2)
    assert len(ledger.bounded(ledger.read(path))) == 2


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"records": 3}', '{"records": [3, {"at": 1}, {"at": "x", "kind": "y", "device": "z"}]}']
)
def test_what_is_damaged_is_passed_over_and_written_anew(tmp_path: Path, text: str) -> None:
    path = tmp_path / "ledger.json"
    path.write_text(text)
    assert ledger.read(path) == []
    ledger.enter(of(1), path)
    assert ledger.read(path) == [of(1)]


@pytest.mark.parametrize("figure", [{"measured": float("nan")}, {"measured": 1.0, "low": 1.0}, {"likely": 1.0}, 3])
def test_a_figure_is_measured_alone_or_beside_all_that_was_foretold(figure: object) -> None:
    assert not ledger.is_record({**of(1), "memory": figure})
    assert ledger.is_record({**of(1), "memory": {"measured": 1.0}})


def _enter_ten(path: Path, device: str) -> None:
    for number in range(1, 11):
        ledger.enter(of(number, device), path)


def test_jobs_that_end_at_once_all_enter_their_records(tmp_path: Path) -> None:
    path = tmp_path / "ledger.json"
    jobs = [multiprocessing.Process(target=_enter_ten, args=(path, name)) for name in "abc"]
    for job in jobs:
        job.start()
    for job in jobs:
        job.join()
    assert len(ledger.read(path)) == 30
    assert json.loads(path.read_text())["records"]


def test_ratios_and_speeds_are_of_the_same_kind_of_job_on_the_same_device() -> None:
    timed = {"flops": 1e9, "update_seconds": {"measured": 0.5}}
    records = [of(1), of(2), of(3, device="GPU"), of(4, kind="predict"), of(5, **timed)]
    of_these = ledger.of_kind(records, "CPU", "pretrain")
    assert ledger.ratios(of_these, "memory") == [1.0, 2.0, 5.0]
    assert ledger.ratios(of_these, "update_seconds") == [], "nothing was foretold of it"
    assert ledger.speed(of_these) == (1.6e9, 2e9, 2.5e9)
    assert ledger.speed(ledger.of_kind(records, "GPU", "pretrain")) is None


def test_a_time_that_nothing_foretold_stands_beside_what_earlier_jobs_would_have_said() -> None:
    earlier = [of(1, flops=1e9, update_seconds={"measured": seconds}) for seconds in (0.25, 0.5, 1.0)]
    new = of(2, flops=2e9, update_seconds={"measured": 3.0}, tokens_per_second={"measured": 100.0})
    found = ledger.with_times(new, earlier)
    assert found["update_seconds"] == {"measured": 3.0, "low": 0.4, "likely": 1.0, "high": 2.5}
    assert found["tokens_per_second"] == {"measured": 100.0, "low": 120.0, "likely": 300.0, "high": 750.0}
    assert ledger.with_times(new, []) == new
    assert ledger.with_times(found, earlier) == found
    far = [{**one, "flops": 1e7} for one in earlier]
    assert ledger.with_times(new, [*far, *earlier]) == found, "what is far less work says nothing"
    assert ledger.with_times(new, far) == new


def test_alike_are_jobs_whose_updates_are_about_as_much_work() -> None:
    records = [of(number, flops=flops) for number, flops in enumerate((0.9e8, 1e8, 1e9, 1e10, 1.1e10), 1)] + [of(6)]
    assert ledger.alike(records, 1e9) == records[1:4]
    assert ledger.alike(records, 0.0) == []
