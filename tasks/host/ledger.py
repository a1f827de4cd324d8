"""Ledger of this host: estimates of its device jobs, next to measurements.

It also estimates jobs on CPU or CUDA, from jobs of the same shape that ran on this host or were measured (`podium plan
--measure`).

It is a JSON file in the state folder of the user, so that it outlives runs, checkouts and `podium clean`; no stage
depends on it. Its path is PODIUM_LEDGER, otherwise $XDG_STATE_HOME/podium/ledger.json, otherwise
~/.local/state/podium/ledger.json. Set PODIUM_LEDGER to an empty value to disable it.
"""

import dataclasses
import math
import os
import platform
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeGuard

from ipu_model.core.files import exclusive_lock, find_object, find_value, write_json
from ipu_model.estimates.estimate import FIGURES, MEMORY, SECONDS, TOKENS, Interval

LEDGER = "PODIUM_LEDGER"
KEPT = 1000
"""Maximum number of records; older ones are removed."""
ENDS = tuple(field.name for field in dataclasses.fields(Interval))
NEWEST = 20
"""Number of records of a shape that an estimate uses."""
ERRORS = {MEMORY: 0.15, SECONDS: 0.2, TOKENS: 0.2}
"""Figure -> relative deviation of a job from measurements of its shape (docs/plan.md)."""
SIZES_DIFFER = 0.1
"""Relative difference up to which sizes match, as sizes are assumed before the rows exist."""
ALIKE = 10.0
"""Maximum ratio of the estimated seconds of two jobs whose times are compared. In much smaller updates, launching
operations dominates the time, which then says nothing about compute speed."""

Record = dict[str, Any]
"""at (end of the job, ISO 8601), kind, head, runtime, precision, device, and each measured figure of FIGURES: measured
and, if it was estimated, low, likely and high. On CPU and CUDA also shape (estimates/job.py: job_shape) and host
(host_name); for a measurement also `measurement` and the free_memory of a GPU."""


def ledger_file(environ: Mapping[str, str] = os.environ) -> Path | None:
    """Return the path of the ledger; None if it is disabled, or there is no home folder."""
    if (named := environ.get(LEDGER)) is not None:
        return Path(named) if named else None
    root = environ.get("XDG_STATE_HOME", "")
    if not os.path.isabs(root):  # the XDG specification requires absolute paths
        root = os.path.expanduser("~/.local/state")
    return Path(root, "podium", "ledger.json") if os.path.isabs(root) else None


def read(path: Path | None) -> list[Record]:
    """Return the records of a ledger, oldest first; skip invalid ones."""
    if path is None:
        return []
    records = (find_object(path) or {}).get("records")
    return [record for record in records if is_record(record)] if isinstance(records, list) else []


def is_record(value: object) -> TypeGuard[Record]:
    """Return True if a value from a file is a valid record."""
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


def add_record(record: Record, path: Path | None) -> None:
    """Add a record, and remove the oldest if there are too many.

    Raises:
        OSError: the ledger cannot be written.
    """
    if path is None or not is_record(record):
        return
    with exclusive_lock(path.with_suffix(".lock")):  # so that no other job of this host writes meanwhile
        write_json(path, {"records": [*read(path), record][-KEPT:]})


def select_similar(records: Sequence[Record], seconds: float) -> list[Record]:
    """Return the records whose updates were estimated to take a similar time, in order."""
    return [
        record for record in records if seconds / ALIKE <= record.get(SECONDS, {}).get("likely", 0) <= seconds * ALIKE
    ]


def ratios(records: Sequence[Record], figure: str) -> list[float]:
    """Return measured over estimated of the records that have both, in order."""
    return [
        record[figure]["measured"] / record[figure]["likely"]
        for record in records
        if "likely" in record.get(figure, {})
    ]


def host_name(runtime: str) -> str:
    """Return a name of this host's hardware; a shared home folder may contain the ledger of several hosts."""
    if runtime == "cuda":
        files = sorted(Path("/proc/driver/nvidia/gpus").glob("*/information"))
        return ", ".join(find_value("Model", file) for file in files) or "GPU"
    threads = os.environ.get("PODIUM_THREADS") or len(os.sched_getaffinity(0))
    return f"{find_value('model name', Path('/proc/cpuinfo')) or platform.machine()}, {threads} threads"


def select_shape(
    records: Sequence[Record], shape: Mapping[str, Any], runtime: str, precision: str, host: str
) -> list[Record]:
    """Return the newest records of jobs of one shape (ipu_model/estimates/job.py) on one host, with times scaled to
    this job's tokens; precision auto matches any."""
    alike = []
    for record in records:
        same = (record.get("runtime"), record.get("host")) == (runtime, host) and precision in (
            "auto",
            record.get("precision"),
        )
        if same and _is_like(record.get("shape"), shape):
            factor = shape["sizes"]["tokens"] / record["shape"]["sizes"]["tokens"]
            scaled = {SECONDS: {"measured": record[SECONDS]["measured"] * factor}} if SECONDS in record else {}
            alike.append({**record, **scaled})
    return alike[-NEWEST:]


def _is_like(shape: Any, other: Mapping[str, Any]) -> bool:
    """Return True if two shapes are equal, except for small differences of sizes."""
    if not isinstance(shape, dict) or {**shape, "sizes": None} != {**other, "sizes": None}:
        return False
    sizes = shape.get("sizes")
    if not isinstance(sizes, dict) or sizes.keys() != other["sizes"].keys():
        return False
    pairs = [(sizes[name], other["sizes"][name]) for name in sizes]
    return all(_is_positive(size) and abs(size - value) <= SIZES_DIFFER * value for size, value in pairs)


def expected(records: Sequence[Record], figure: str) -> Interval | None:
    """Return the interval of a figure from records of one shape; None if no record has it."""
    measured = sorted(record[figure]["measured"] for record in records if figure in record)
    if not measured:
        return None
    likely, error = statistics.median(measured), ERRORS[figure]
    return Interval(min(measured[0], likely / (1 + error)), likely, max(measured[-1], likely * (1 + error)))


def add_estimate(record: Record, earlier: Sequence[Record]) -> Record:
    """Return a job's record with the estimate from earlier records of its shape on its host."""
    if not isinstance(record.get("shape"), dict):
        return record
    alike = select_shape(earlier, record["shape"], record["runtime"], record["precision"], record["host"])
    done = dict(record)
    for figure in FIGURES:
        if figure in record and (ends := expected(alike, figure)) is not None:
            done[figure] = {**record[figure], **dataclasses.asdict(ends)}
    return done
