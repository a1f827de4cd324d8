"""The ledger of this host: what was foretold of its device jobs, beside what they took.

One JSON file in the folder where programs keep their state, so that it outlives runs, checkouts and `podium clean`, and
no stage depends on it: PODIUM_LEDGER, else $XDG_STATE_HOME/podium/ledger.json, else ~/.local/state/podium/ledger.json.
PODIUM_LEDGER set to nothing keeps none.
"""

from __future__ import annotations

import math
import os
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeGuard

from ipu_model.files import find_object, locked, write_json

LEDGER = "PODIUM_LEDGER"
FIGURES = ("memory", "update_seconds", "tokens_per_second")
"""As ipu_model/estimates/record.py calls them."""
KEPT = 50
"""Newest records of each device and kind of job."""
KEPT_IN_ALL = 1000

ENDS = ("low", "likely", "high")
SPEEDS = 20
"""Newest records that say how fast a device is."""
ALIKE = 10.0
"""How many times as much work, or as little, an update of another job may be whose time says something of this one: in
far smaller ones the time goes by with starting operations, and says nothing of how fast they are."""
SPREAD = 1.25
"""How many times slower than the slowest of them, or faster than the fastest, a job may be: sizes and shapes differ."""

Record = dict[str, Any]
"""at (when the job ended, ISO 8601), kind, head, runtime, precision, device, flops (of an update), and each of FIGURES
that was measured: measured and, where it was foretold, low, likely and high."""


def ledger_file(environ: Mapping[str, str] = os.environ) -> Path | None:
    """Where the ledger is; None where there is to be none, or no home."""
    if (stated := environ.get(LEDGER)) is not None:
        return Path(stated) if stated else None
    root = environ.get("XDG_STATE_HOME", "")
    if not os.path.isabs(root):  # the XDG specification has other values ignored
        root = os.path.expanduser("~/.local/state")
    return Path(root, "podium", "ledger.json") if os.path.isabs(root) else None


def read(path: Path | None) -> list[Record]:
    """The records of a ledger, oldest first; what is damaged is passed over."""
    if path is None:
        return []
    found = (find_object(path) or {}).get("records")
    return [one for one in found if is_record(one)] if isinstance(found, list) else []


def is_record(value: object) -> TypeGuard[Record]:
    """Whether a value read from a file is a record."""
    if not isinstance(value, dict) or not all(isinstance(value.get(name), str) for name in ("at", "kind", "device")):
        return False
    figures = [value[name] for name in FIGURES if name in value]
    return bool(figures) and all(_is_figure(figure) for figure in figures)


def _is_figure(value: object) -> bool:
    if not isinstance(value, dict):
        return False
    numbers = [value.get("measured"), *(value[end] for end in ENDS if end in value)]
    return len(numbers) in (1, 1 + len(ENDS)) and all(_is_positive(number) for number in numbers)


def _is_positive(value: object) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value) and value > 0


def enter(record: Record, path: Path | None) -> None:
    """Add a record, and let the oldest of its device and kind go.

    Raises:
        OSError: the ledger cannot be written.
    """
    if path is None or not is_record(record):
        return
    with locked(path.with_suffix(".lock")):  # no other job of this host enters its record meanwhile
        write_json(path, {"records": bounded([*read(path), record])})


def bounded(records: Sequence[Record]) -> list[Record]:
    """The newest of these records, KEPT of each device and kind, and KEPT_IN_ALL together; oldest first."""
    seen: Counter[tuple[str, str]] = Counter()
    kept: list[Record] = []
    for one in reversed(records):
        key = one["device"], one["kind"]
        seen[key] += 1
        if seen[key] <= KEPT and len(kept) < KEPT_IN_ALL:
            kept.append(one)
    return kept[::-1]


def of_kind(records: Sequence[Record], device: str, kind: str) -> list[Record]:
    """Those of this kind of job on this device, in their order."""
    return [one for one in records if (one["device"], one["kind"]) == (device, kind)]


def alike(records: Sequence[Record], flops: float) -> list[Record]:
    """Those whose updates are about as much work, in their order.

    Args:
        flops: of an update.
    """
    stated = [one for one in records if _is_positive(one.get("flops"))]
    return [one for one in stated if flops / ALIKE <= one["flops"] <= flops * ALIKE]


def ratios(records: Sequence[Record], figure: str) -> list[float]:
    """Measured over foretold, of those records that have both, in their order."""
    return [one[figure]["measured"] / one[figure]["likely"] for one in records if "likely" in one.get(figure, {})]


def speed(records: Sequence[Record]) -> tuple[float, float, float] | None:
    """FLOP/s of such jobs as these, going by the newest: low, likely and high; None where nobody knows."""
    timed = [one for one in records if "update_seconds" in one and _is_positive(one.get("flops"))]
    found = sorted(one["flops"] / one["update_seconds"]["measured"] for one in timed[-SPEEDS:])
    return (found[0] / SPREAD, statistics.median(found), found[-1] * SPREAD) if found else None


def with_times(record: Record, earlier: Sequence[Record]) -> Record:
    """The record of a job whose time nothing foretold, with what its device's earlier jobs of its kind would have."""
    seconds = record.get("update_seconds")
    if seconds is None or "likely" in seconds or not _is_positive(record.get("flops")):
        return record
    found = speed(alike(of_kind(earlier, record["device"], record["kind"]), record["flops"]))
    if found is None:
        return record
    of_update = [record["flops"] / one for one in reversed(found)]
    done = {**record, "update_seconds": {**seconds, **dict(zip(ENDS, of_update, strict=True))}}
    if tokens := record.get("tokens_per_second"):
        each = tokens["measured"] * seconds["measured"]  # of an update
        rates = [each / one for one in reversed(of_update)]
        done["tokens_per_second"] = {**tokens, **dict(zip(ENDS, rates, strict=True))}
    return done
