"""`podium ledger`: compare past estimates of this host with measurements."""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from flows.commands import options
from flows.commands.project import CommandContext
from flows.runs.checkout import checkout_folder
from flows.runs.report import read_json_object
from tasks.host import ledger
from tasks.host.ledger import FIGURES, Record, ledger_file
from tasks.params.tables import format_table
from tasks.stage import artifacts

COLUMN_TITLES = ("memory", "seconds", "tokens/s")
"""Column titles of FIGURES."""
RESULT = "result.json"


@click.command(
    help="Compare past estimates with measurements: median, lowest and highest ratio measured / estimated of the "
    "device jobs on this host, by device and kind of job. For IPUs, podium plan widens its intervals by these ratios. "
    "For CPUs and GPUs, it estimates from the measurements.",
    epilog="The ledger belongs to this host (PODIUM_LEDGER, else podium/ledger.json in the user's state folder), so "
    "podium clean keeps it. Results in the run folders of this project are also counted.",
)
@options.json_option
@click.pass_context
def command(ctx: click.Context, as_json: bool) -> None:
    context: CommandContext = ctx.obj
    records = collect_records(context.project)
    found = summarize(records)
    values = {"file": str(ledger_file() or ""), "devices": found, "records": records}
    text = "no device jobs recorded yet\n"
    if found:
        text = format_table([("device", "kind", "jobs", *COLUMN_TITLES), *map(_format_row, found)])
        text += "measured / estimated; 1 is exact, - is not estimated or not measured\n"
    after = f"podium ledger --json prints every record; the ledger is {ledger_file() or 'disabled (PODIUM_LEDGER)'}"
    options.print_result(as_json, values, text, after)


def _format_row(one: Mapping[str, Any]) -> tuple[str, ...]:
    return one["device"], one["kind"], str(one["jobs"]), *(_format_spread(one["ratios"][figure]) for figure in FIGURES)


def _format_spread(spread: Mapping[str, float] | None) -> str:
    return "-" if spread is None else f"{spread['middle']:.2f} ({spread['low']:.2f}-{spread['high']:.2f})"


def collect_records(project: Path | None) -> list[Record]:
    """Return all records, oldest first: those of the ledger, and results in this project that the ledger lacks.

    The ledger keeps records of removed runs. Runs from other hosts, or without a ledger, are in the run folders only.
    """
    kept = ledger.read(ledger.ledger_file())
    known = {_identity(one) for one in kept}
    others = [one for one in _run_records(project) if _identity(one) not in known] if project is not None else []
    return sorted([*kept, *others], key=lambda one: str(one["at"]))


def _identity(record: Record) -> tuple[Any, ...]:
    return record["at"], record["device"], record["kind"], record.get("update_seconds", {}).get("measured")


def _run_records(project: Path) -> Iterator[Record]:
    checkouts = checkout_folder(project, "")
    roots = [project, *(checkouts.iterdir() if checkouts.is_dir() else ())]
    for root in roots:
        for path in sorted((root / artifacts.RUNS).glob(f"*/*/{RESULT}")):
            found = (read_json_object(path) or {}).get("foretold")
            if ledger.is_record(found):
                yield found


def summarize(records: Sequence[Record]) -> list[dict[str, Any]]:
    """Return, for each device and kind of job, the number of jobs and the spread of measured / estimated per figure."""
    groups: dict[tuple[str, str], list[Record]] = {}
    for one in records:
        if not one.get("measurement"):  # podium plan --measure records measurements that are not jobs
            groups.setdefault((one["device"], one["kind"]), []).append(one)
    return [
        {
            "device": device,
            "kind": kind,
            "jobs": len(found),
            "newest": found[-1]["at"],
            "ratios": {figure: _spread(ledger.ratios(found, figure)) for figure in ledger.FIGURES},
        }
        for (device, kind), found in sorted(groups.items())
    ]


def _spread(ratios: Sequence[float]) -> dict[str, float] | None:
    if not ratios:
        return None
    return {"low": min(ratios), "middle": statistics.median(ratios), "high": max(ratios), "jobs": len(ratios)}
