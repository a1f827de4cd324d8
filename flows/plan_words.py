"""What a run would do and take, in words for a terminal of 80 columns."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Iterator

from flows.run_estimate import RUNS, RunEstimate
from ipu_model.units import format_bytes, format_seconds
from tasks.preflight.job_estimates import EstimatedJob, Interval, MemoryEstimate, Term, total
from tasks.project.dvc_records import StageForecast
from tasks.project.params_command import table

SHOWN = 3
"""Reasons of a stage on the screen; --json has all."""
WIDTH, INDENT = 80, 12
"""Columns of a line, and of the words that begin one."""
NO_TIME = "not measured; --measure"
Unit = Callable[[float], str]


def stages_in_words(found: RunEstimate) -> str:
    """A table of the stages, and how many there are of each kind."""
    rows = [("stage", "would be", "why"), *map(_row, found.stages)]
    counts = {status: sum(one.status == status for one in found.stages) for status in ("skipped", "restored", RUNS)}
    return (
        f"{table(rows)}{counts['skipped']} stages are up to date, {counts['restored']} would be restored, "
        f"{counts[RUNS]} run\n"
    )


def _row(one: StageForecast) -> tuple[str, str, str]:
    status = {RUNS: "run"}.get(one.status, one.status)
    more = f", and {len(one.why) - SHOWN} more" if len(one.why) > SHOWN else ""
    return one.stage, status, ", ".join(one.why[:SHOWN]) + more


def jobs_in_words(found: RunEstimate) -> str:
    """A table of the device jobs that would run, what decides each of them, and the whole."""
    if not found.running:
        return ""
    head = ("device job", "memory", "", "time")
    told = [_table_row(job) for job in found.running]
    parts = [table([head, *told]), *("".join(_paragraph(job, found)) for job in found.running)]
    return "\n" + "\n".join([*parts, "".join(_whole(found))])


def in_short(job: EstimatedJob) -> str:
    """A line of what a device job will need."""
    return f"{job.name}: {', '.join(_short(job))}"


def _short(job: EstimatedJob) -> Iterator[str]:
    if job.estimate is None:
        yield f"no estimate ({job.problem})"
        return
    yield job.estimate.device
    if job.estimate.memory:
        memory = job.estimate.memory[0]
        yield f"{memory_range(memory)} ({job.verdict})"
    if job.seconds is not None:
        yield between(job.seconds, format_seconds)
    if job.basis:
        yield job.basis.partition(";")[0]


def _table_row(job: EstimatedJob) -> tuple[str, str, str, str]:
    if job.estimate is None:
        return job.name, "not known", "", ""
    memory = memory_range(job.estimate.memory[0]) if job.estimate.memory else ""
    return job.name, memory, job.verdict, "not known" if job.seconds is None else between(job.seconds, format_seconds)


def memory_range(memory: MemoryEstimate) -> str:
    """Return the ends of an estimate of memory, and how much there is where that is known."""
    limit = "" if math.isinf(memory.limit) else f" of {format_bytes(memory.limit)}"
    return f"{between(memory.total, format_bytes)}{limit}"


def _paragraph(job: EstimatedJob, found: RunEstimate) -> Iterator[str]:
    """What decides a job, and what was assumed of it."""
    yield f"{job.name}{'' if job.estimate is None else f' on {job.estimate.device}'}\n"
    if job.estimate is None:
        yield _line("problem", job.problem)
        return
    for memory in job.estimate.memory[:1]:
        total_bytes = with_likely(memory.total, format_bytes)
        yield _line("memory", f"{total_bytes}, {memory.where}; {_most(memory.largest, format_bytes)}")
    if job.seconds is None or job.time is None:
        yield _line("time", NO_TIME)
    else:
        what = "calls" if job.planned.job.kind == "predict" else "updates"
        updates = f"{job.time.updates:,} {what} of {format_seconds(job.time.update_seconds.likely)}"
        seconds = with_likely(job.seconds, format_seconds)
        yield _line("time", f"{seconds}, {updates}; {_most(job.time.largest, format_seconds)}")
        yield _line("speed", f"{with_likely(job.time.sequences_per_second, '{:,.0f}'.format)} sequences/s")
    if (cost := found.cost(job.seconds)) is not None:
        yield _line("cost", between(cost, "{:,.2f}".format))
    if job.better:
        yield _line("faster", job.better)
    if job.records:
        yield _line("ledger", ledger_line(job))
    if job.basis:
        yield _line("basis", job.basis)
    if job.assumed:
        yield _line("assumed", ", ".join(job.assumed))


def ledger_line(job: EstimatedJob) -> str:
    """Say what the ledger of this host has of such jobs."""
    if job.runtime == "ipu":
        return f"{job.records} such jobs of this host widen these intervals (podium ledger)"
    return f"{job.records} record{'s' if job.records > 1 else ''} of this shape on this host"


def _most(term: Term, unit: Unit) -> str:
    knob = f" (to lower it: {term.knob})" if term.knob else ""
    return f"most of it {term.name}, {unit(term.amount)}{knob}"


def _whole(found: RunEstimate) -> Iterator[str]:
    """Time, disk and cost of everything that would run."""
    yield "in all\n"
    if any(job.seconds is not None for job in found.running):
        yield _line("devices", with_likely(found.device_seconds, format_seconds))
    if found.other_seconds:
        others = with_likely(total(found.other_seconds.values()), format_seconds)
        yield _line("others", f"{others}, stages without a device")
    if found.unknown:
        more = f" and {len(found.unknown) - SHOWN} more" if len(found.unknown) > SHOWN else ""
        yield _line("not in it", f"{', '.join(found.unknown[:SHOWN])}{more}: nothing is known of their time")
    yield _line(
        "disk", f"some {format_bytes(found.disk_bytes)} will be written, {format_bytes(found.free_bytes)} are free"
    )
    if (cost := found.cost(found.device_seconds)) is not None:
        yield _line("cost", f"{with_likely(cost, '{:,.2f}'.format)} at {found.price:g} a device hour")


def _line(name: str, text: str) -> str:
    first, others = f"  {name:<{INDENT - 2}}", " " * INDENT
    return textwrap.fill(text, WIDTH, initial_indent=first, subsequent_indent=others, break_on_hyphens=False) + "\n"


def between(interval: Interval, unit: Unit) -> str:
    """Both ends of an interval, a unit that is the same stated once: 1.2 to 1.5 GB."""
    low, high = unit(interval.low), unit(interval.high)
    if low == high:
        return low
    number, _, name = low.rpartition(" ")
    return f"{number if name and high.endswith(f' {name}') else low} to {high}"


def with_likely(interval: Interval, unit: Unit) -> str:
    """Return both ends of an interval, then the likely figure: 1.2 to 1.5 GB (likely 1.3 GB)."""
    ends, likely = between(interval, unit), unit(interval.likely)
    return ends if ends == likely else f"{ends} (likely {likely})"
