"""The last words of `podium run`: what came of it, where to look, and at the very end why it did not finish."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

from flows import report
from flows.screen import print_last, screen
from flows.stopping import stop
from tasks.project import streams
from tasks.project.errors import FAILED, PAUSED, REJECTED

CODES = {"failed": FAILED, "rejected": REJECTED, "paused": PAUSED}
"""Exit codes of outcomes; of the others, 0."""


def tell_end(run: report.RunReport, rows: Sequence[str], log: Path | None = None) -> int:
    """Print how a run ended; returns the exit code that says the same.

    Args:
        run: its report.
        rows: what the table of the stages still lacks.
        log: the file that holds what it printed.
    """
    screen().close()
    found = report.results(run)
    lines = [*rows, f"{'wall time':<{report.NAMES}} {'':<9} {seconds_since_start():7.1f}", "", report.headline(run), ""]
    lines += [*found, *([""] if found else []), report.to_look_at(run)]
    if log is not None:
        lines.append(f"log of this run: {log}")
    streams.say("\n".join(lines) + "\n")
    if run.error is not None:
        print_last(f"error: {run.error}" if run.interrupted is None else run.error, "red")
    elif run.paused is not None:
        print_last(run.paused, "yellow")
    return exit_code(run)


def exit_code(run: report.RunReport) -> int:
    """The exit code that says how a run ended."""
    if run.interrupted is not None and stop.number:
        return stop.exit_code()
    return CODES.get(report.outcome(run), FAILED if run.interrupted is not None else 0)


def seconds_since_start() -> float:
    """Since this process began, imports included (Linux; elsewhere since it first looked at the time)."""
    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return time.perf_counter()
    return time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[19]) / os.sysconf("SC_CLK_TCK")
