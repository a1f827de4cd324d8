"""The ledger of this host: what was estimated of its device jobs, next to what they took.

It also answers what a job on CPU or CUDA will take, from jobs of the same shape that ran on this host or were measured
(`podium plan --measure`).

One JSON file in the folder where programs keep their state, so that it outlives runs, checkouts and `podium clean`, and
no stage depends on it: PODIUM_LEDGER, else $XDG_STATE_HOME/podium/ledger.json, else ~/.local/state/podium/ledger.json.
PODIUM_LEDGER set to nothing keeps none.
"""

from __future__ import annotations

import contextlib
import math
import os
import platform
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeGuard

from ipu_model.files import exclusive_lock, find_object, write_json

LEDGER = "PODIUM_LEDGER"
FIGURES = ("memory", "update_seconds", "tokens_per_second")
"""As ipu_model/estimates/record.py calls them."""
KEPT = 50
"""Newest records of each device and kind of job."""
KEPT_IN_ALL = 1000

ENDS = ("low", "likely", "high")
NEWEST = 20
"""Records of a shape that say what a job takes."""
ERRORS = {"memory": 0.15, "update_seconds": 0.2, "tokens_per_second": 0.2}
"""Figure -> how far off, as a share, a job may be from what was measured of its shape (docs/plan.md)."""
SIZES_DIFFER = 0.1
"""Share by which sizes of a shape may differ that are assumed of rows before they are there."""
ALIKE = 10.0
"""How many times as much work, or as little, an update of another job may be whose time says something of this one: in
far smaller ones the time goes by with starting operations, and says nothing of how fast they are."""

Record = dict[str, Any]
"""at (when the job ended, ISO 8601), kind, head, runtime, precision, device, flops (of an update), and each of FIGURES
that was measured: measured and, where it was estimated, low, likely and high. On CPU and CUDA also shape
(estimates/record.py: job_shape) and host (host_name); of a measurement also `measurement` and the free_memory of a GPU.
"""


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
    with exclusive_lock(path.with_suffix(".lock")):  # no other job of this host enters its record meanwhile
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
    """Measured over estimated, of those records that have both, in their order."""
    return [one[figure]["measured"] / one[figure]["likely"] for one in records if "likely" in one.get(figure, {})]


def host_name(runtime: str) -> str:
    """Return what jobs of this host run on, in words: a shared home may hold the ledger of several hosts."""
    if runtime == "cuda":
        files = sorted(Path("/proc/driver/nvidia/gpus").glob("*/information"))
        return ", ".join(_value_of("Model", file) for file in files) or "GPU"
    threads = os.environ.get("PODIUM_THREADS") or len(os.sched_getaffinity(0))
    return f"{_value_of('model name', Path('/proc/cpuinfo')) or platform.machine()}, {threads} threads"


def _value_of(name: str, file: Path) -> str:
    """Return the first value of this name in a file of the kernel; empty where there is none."""
    with contextlib.suppress(OSError):
        for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
            key, _, value = line.partition(":")
            if key.strip() == name:
                return value.strip()
    return ""


def of_shape(
    records: Sequence[Record], shape: Mapping[str, Any], runtime: str, precision: str, host: str
) -> list[Record]:
    """Return the newest records of jobs of one shape on one host, their times scaled to the tokens of this one.

    Args:
        shape: see ipu_model/estimates/record.py.
        precision: auto: any.
    """
    found = []
    for one in records:
        same = (one.get("runtime"), one.get("host")) == (runtime, host) and precision in ("auto", one.get("precision"))
        if same and _is_like(one.get("shape"), shape):
            factor = shape["sizes"]["tokens"] / one["shape"]["sizes"]["tokens"]
            seconds = one.get("update_seconds", {})
            scaled = {"measured": seconds["measured"] * factor} if seconds else {}
            found.append({**one, **({"update_seconds": scaled} if scaled else {})})
    return found[-NEWEST:]


def _is_like(one: Any, other: Mapping[str, Any]) -> bool:
    """Whether two shapes are the same, but for sizes that differ a little."""
    if not isinstance(one, dict) or {**one, "sizes": None} != {**other, "sizes": None}:
        return False
    sizes = one.get("sizes")
    if not isinstance(sizes, dict) or sizes.keys() != other["sizes"].keys():
        return False
    pairs = [(sizes[name], other["sizes"][name]) for name in sizes]
    return all(_is_positive(size) and abs(size - value) <= SIZES_DIFFER * value for size, value in pairs)


def expected(records: Sequence[Record], figure: str) -> tuple[float, float, float] | None:
    """Return low, likely and high of a figure, going by these records of one shape; None where none has it."""
    found = sorted(one[figure]["measured"] for one in records if figure in one)
    if not found:
        return None
    likely, error = statistics.median(found), ERRORS[figure]
    return min(found[0], likely / (1 + error)), likely, max(found[-1], likely * (1 + error))


def with_expected(record: Record, earlier: Sequence[Record]) -> Record:
    """Return the record of a job with what earlier records of its shape on its host had let expect of it."""
    if not isinstance(record.get("shape"), dict):
        return record
    found = of_shape(earlier, record["shape"], record["runtime"], record["precision"], record["host"])
    done = dict(record)
    for figure in FIGURES:
        ends = expected(found, figure)
        if figure in record and ends is not None:
            done[figure] = {**record[figure], **dict(zip(ENDS, ends, strict=True))}
    return done
