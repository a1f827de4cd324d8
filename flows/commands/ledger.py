"""`podium plan --ledger`: compare past estimates of this host with measurements."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from flows.commands import options
from tasks.host import ledger
from tasks.host.ledger import FIGURES, Record, ledger_file
from tasks.params.tables import format_table

COLUMN_TITLES = ("memory", "seconds", "tokens/s")
"""Column titles of FIGURES."""


def print_ledger(as_json: bool) -> None:
    """Print median, lowest and highest ratio measured / estimated of the device jobs on this host."""
    records = ledger.read(ledger_file())
    devices = summarize(records)
    values = {"file": str(ledger_file() or ""), "devices": devices, "records": records}
    text = "no device jobs recorded yet\n"
    if devices:
        text = format_table([("device", "kind", "jobs", *COLUMN_TITLES), *map(_format_row, devices)])
        text += "measured / estimated; 1 is exact, - is not estimated or not measured\n"
    after = (
        f"podium plan --ledger --json prints every record; the ledger is {ledger_file() or 'disabled (PODIUM_LEDGER)'}"
    )
    options.print_result(as_json, values, text, after)


def _format_row(row: Mapping[str, Any]) -> tuple[str, ...]:
    return row["device"], row["kind"], str(row["jobs"]), *(_format_spread(row["ratios"][figure]) for figure in FIGURES)


def _format_spread(spread: Mapping[str, float] | None) -> str:
    return "-" if spread is None else f"{spread['middle']:.2f} ({spread['low']:.2f}-{spread['high']:.2f})"


def summarize(records: Sequence[Record]) -> list[dict[str, Any]]:
    """Return, for each device and kind of job, the number of jobs and the spread of measured / estimated per figure."""
    groups: dict[tuple[str, str], list[Record]] = {}
    for record in records:
        if not record.get("measurement"):  # podium plan --measure records measurements that are not jobs
            groups.setdefault((record["device"], record["kind"]), []).append(record)
    return [
        {
            "device": device,
            "kind": kind,
            "jobs": len(alike),
            "newest": alike[-1]["at"],
            "ratios": {figure: _spread(ledger.ratios(alike, figure)) for figure in ledger.FIGURES},
        }
        for (device, kind), alike in sorted(groups.items())
    ]


def _spread(ratios: Sequence[float]) -> dict[str, float] | None:
    if not ratios:
        return None
    return {"low": min(ratios), "middle": statistics.median(ratios), "high": max(ratios), "jobs": len(ratios)}
