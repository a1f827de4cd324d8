"""What was foretold of device jobs beside what they took: the ledger of this host, and results in run folders."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from flows.checkout import own_folder
from flows.report import read_json_object
from tasks.host import ledger
from tasks.host.ledger import Record
from tasks.project import artifacts

RESULT = "result.json"


def records_of(project: Path | None) -> list[Record]:
    """All records, oldest first: of the ledger, and of results in this project that it does not hold.

    Runs that were removed stay in the ledger; what another host computed, or one without a ledger, is in the runs.
    """
    kept = ledger.read(ledger.ledger_file())
    known = {_identity(one) for one in kept}
    others = [one for one in _of_runs(project) if _identity(one) not in known] if project is not None else []
    return sorted([*kept, *others], key=lambda one: str(one["at"]))


def _identity(record: Record) -> tuple[Any, ...]:
    return record["at"], record["device"], record["kind"], record.get("update_seconds", {}).get("measured")


def _of_runs(project: Path) -> Iterator[Record]:
    checkouts = own_folder(project, "")
    roots = [project, *(checkouts.iterdir() if checkouts.is_dir() else ())]
    for root in roots:
        for path in sorted((root / artifacts.RUNS).glob(f"*/*/{RESULT}")):
            found = (read_json_object(path) or {}).get("foretold")
            if ledger.is_record(found):
                yield found


def summary(records: Sequence[Record]) -> list[dict[str, Any]]:
    """For each device and kind of job: how many, and of each figure measured over foretold, lowest, middle, highest."""
    groups: dict[tuple[str, str], list[Record]] = {}
    for one in records:
        groups.setdefault((one["device"], one["kind"]), []).append(one)
    return [
        {
            "device": device,
            "kind": kind,
            "jobs": len(found),
            "newest": found[-1]["at"],
            "ratios": {figure: _spread(ledger.ratios(found, figure)) for figure in ledger.FIGURES},
            "gflops": None if (speed := ledger.speed(found)) is None else [value / 1e9 for value in speed],
        }
        for (device, kind), found in sorted(groups.items())
    ]


def _spread(ratios: Sequence[float]) -> dict[str, float] | None:
    if not ratios:
        return None
    return {"low": min(ratios), "middle": statistics.median(ratios), "high": max(ratios), "jobs": len(ratios)}
