"""Human-readable sizes, times and lists, and versions. Standard library only."""

from __future__ import annotations

import re
from typing import Sequence, Tuple


def parse_version(text: str) -> Tuple[int, int]:
    """Return (3, 4) for 3.4.0-snapshot, and (0, 0) for text that is not a version, so that it counts as old."""
    match = re.match(r"(\d+)\.(\d+)", text)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def shorten(names: Sequence[str], most: int, separator: str = ", ") -> str:
    """Return the first `most` names and the number of the others: a, b, c and 2 more."""
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return separator.join(names[:most]) + more


def format_count(count: int, what: str) -> str:
    """Return a count with its noun, the first plural in `what`: 2 blank lines skipped, 1 blank line skipped."""
    if count == 1:
        what = re.sub(r"(?<=\w\w)(ies|(?<!s)s)\b", lambda end: "y" if len(end[0]) > 1 else "", what, count=1)
    return f"{count:,} {what}"


def format_bytes(size: float) -> str:
    """Return a size in decimal units: 840 MB."""
    for unit, base in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if size >= base:
            return f"{size / base:,.0f} {unit}" if size >= 100 * base or unit == "MB" else f"{size / base:,.1f} {unit}"
    return f"{size / 1e3:,.0f} kB" if size >= 1e3 else f"{size:.0f} B"


def format_seconds(seconds: float) -> str:
    """Return an estimated time: 5.3 h."""
    for unit, threshold in (("days", 2 * 86400.0), ("h", 5400.0), ("min", 100.0)):
        if seconds >= threshold:
            value = seconds / {"days": 86400.0, "h": 3600.0, "min": 60.0}[unit]
            return f"{value:,.1f} {unit}" if value < 100 else f"{value:,.0f} {unit}"
    if seconds >= 1:
        return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
    return f"{1000 * seconds:,.0f} ms"


def format_duration(seconds: float) -> str:
    """Return a measured time: 1.5 s, 15 s, 2 min 15 s or 2 h 05 min."""
    if seconds % 1 and seconds < 10:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02d} min"
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"
