"""The ledger of a host: bounded, whole whatever happens, and what is read off it."""

import json
import multiprocessing
from pathlib import Path

import pytest

from ipu_model.estimates.estimate import Interval
from tasks.host import ledger


def of(number: int, device: str = "CPU", kind: str = "pretrain", **more: object) -> ledger.Record:
    """A record that took `number` times what was estimated."""
    memory = {"low": 90.0, "likely": 100.0, "high": 110.0, "measured": 100.0 * number}
    return {"at": f"2026-01-01T00:00:{number:02d}", "kind": kind, "device": device, "memory": memory, **more}


def test_the_place_is_of_the_host_and_may_be_named_or_left_out(tmp_path: Path) -> None:
    assert ledger.ledger_file({"XDG_STATE_HOME": "/state"}) == Path("/state/podium/ledger.json")
    named = {"XDG_STATE_HOME": "relative", "PODIUM_LEDGER": str(tmp_path / "mine")}
    assert ledger.ledger_file(named) == tmp_path / "mine"
    assert ledger.ledger_file({"PODIUM_LEDGER": ""}) is None
    assert ledger.read(None) == []
    ledger.add_record(of(1), None)


def test_records_are_kept_oldest_first_and_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "KEPT", 3)
    path = tmp_path / "state" / "ledger.json"
    for number in range(1, 6):
        ledger.add_record(of(number), path)
    assert [entry["at"][-2:] for entry in ledger.read(path)] == ["03", "04", "05"]


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"records": 3}', '{"records": [3, {"at": 1}, {"at": "x", "kind": "y", "device": "z"}]}']
)
def test_what_is_damaged_is_passed_over_and_written_anew(tmp_path: Path, text: str) -> None:
    path = tmp_path / "ledger.json"
    path.write_text(text)
    assert ledger.read(path) == []
    ledger.add_record(of(1), path)
    assert ledger.read(path) == [of(1)]
    for figure in ({"measured": float("nan")}, {"measured": 1.0, "low": 1.0}, {"likely": 1.0}, 3):
        assert not ledger.is_record({**of(1), "memory": figure})
    assert ledger.is_record({**of(1), "memory": {"measured": 1.0}})


def _enter_ten(path: Path, device: str) -> None:
    for number in range(1, 11):
        ledger.add_record(of(number, device), path)


def test_jobs_that_end_at_once_all_enter_their_records(tmp_path: Path) -> None:
    path = tmp_path / "ledger.json"
    jobs = [multiprocessing.Process(target=_enter_ten, args=(path, name)) for name in "abc"]
    for job in jobs:
        job.start()
    for job in jobs:
        job.join()
    assert len(ledger.read(path)) == 30
    assert json.loads(path.read_text())["records"]


SHAPE = {"hidden_size": 16, "sizes": {"tokens": 100.0, "vocabulary": 60}}


def measured(number: int, tokens: float = 100.0, vocabulary: int = 60, **more: object) -> ledger.Record:
    """A record of a job of SHAPE that took `number` seconds an update."""
    shape = {**SHAPE, "sizes": {"tokens": tokens, "vocabulary": vocabulary}}
    job = {"runtime": "cpu", "precision": "fp32", "host": "here", "shape": shape}
    figures = {figure: {"measured": float(number)} for figure in ("memory", "update_seconds")}
    return {**of(number), **job, **figures, **more}


def test_a_shape_is_answered_by_its_newest_records_of_this_host_scaled_to_its_tokens() -> None:
    others = [
        measured(9, host="there"),
        measured(9, runtime="cuda"),
        measured(9, shape={**SHAPE, "hidden_size": 32}),
        measured(9, tokens=111.0),
        measured(9, vocabulary=53),
        measured(9, shape=None),
        measured(9, shape={**SHAPE, "sizes": {"tokens": 0, "vocabulary": 60}}),
        of(9),
    ]
    same = [measured(2), measured(3, tokens=109.0), measured(4, vocabulary=57, precision="bf16")]
    records = ledger.select_shape([*others, *same], SHAPE, "cpu", "auto", "here")
    assert [entry["update_seconds"]["measured"] for entry in records] == pytest.approx([2.0, 300 / 109, 4.0])
    assert ledger.select_shape([*others, *same], SHAPE, "cpu", "bf16", "here") == [same[2]]
    many = [measured(number) for number in range(1, 40)]
    assert ledger.select_shape(many, SHAPE, "cpu", "fp32", "here") == many[-ledger.NEWEST :]


def approx(*ends: float) -> Interval:
    return Interval(*(pytest.approx(end) for end in ends))


def test_what_is_expected_holds_all_records_and_an_error_about_their_median() -> None:
    assert ledger.expected([], "update_seconds") is None
    assert ledger.expected([of(1)], "update_seconds") is None
    assert ledger.expected([measured(6)], "update_seconds") == approx(5.0, 6.0, 7.2)
    assert ledger.expected([measured(n) for n in (9, 6, 1)], "update_seconds") == approx(1.0, 6.0, 9.0)
    assert ledger.expected([measured(6)], "memory") == approx(6 / 1.15, 6.0, 6.9)
    record = ledger.add_estimate(measured(8), [measured(6)])
    assert record["update_seconds"] == pytest.approx({"measured": 8.0, "low": 5.0, "likely": 6.0, "high": 7.2})
    assert ledger.is_record(record)
    assert ledger.add_estimate(measured(8), [measured(6, host="there")]) == measured(8)
    assert ledger.add_estimate(of(1), [measured(6)]) == of(1), "of an IPU, whose formulas have said it"
