"""What a run would do and take, in words for a terminal of 80 columns."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Iterator

from flows.forecast import StageForecast
from flows.foretold import RUNS, Foresight
from tasks.preflight.foretelling import Foretold, Interval, MemoryEstimate, Term, in_bytes, in_seconds, total
from tasks.project.params_command import table

SHOWN = 3
"""Reasons of a stage on the screen; --json has all."""
WIDTH, INDENT = 80, 12
"""Columns of a line, and of the words that begin one."""
Unit = Callable[[float], str]


def stages_in_words(found: Foresight) -> str:
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


def jobs_in_words(found: Foresight) -> str:
    """A table of the device jobs that would run, what decides each of them, and the whole."""
    if not found.running:
        return ""
    head = ("device job", "memory", "", "time", "sequences/s")
    told = [_table_row(job) for job in found.running]
    parts = [table([head, *told]), *("".join(_paragraph(job, found)) for job in found.running)]
    return "\n" + "\n".join([*parts, "".join(_whole(found))])


def in_short(job: Foretold) -> str:
    """A line of what a device job will need."""
    return f"{job.name}: {', '.join(_short(job))}"


def _short(job: Foretold) -> Iterator[str]:
    if job.estimate is None:
        yield f"no estimate ({job.problem})"
        return
    yield job.estimate.device
    if job.estimate.memory:
        memory = job.estimate.memory[0]
        yield f"{in_bytes(memory.total.likely)}{_of_limit(memory)} ({job.verdict})"
    if job.seconds is not None:
        yield f"{in_seconds(job.seconds.likely)} ({between(job.seconds, in_seconds)})"


def _table_row(job: Foretold) -> tuple[str, str, str, str, str]:
    if job.estimate is None:
        return job.name, "not known", "", "", ""
    memory = job.estimate.memory[0] if job.estimate.memory else None
    held = "" if memory is None else f"{in_bytes(memory.total.likely)}{_of_limit(memory)}"
    speed = "" if job.time is None else f"{job.time.sequences_per_second.likely:,.0f}"
    return job.name, held, job.verdict, "not known" if job.seconds is None else in_seconds(job.seconds.likely), speed


def _of_limit(memory: MemoryEstimate) -> str:
    return "" if math.isinf(memory.limit) else f" of {in_bytes(memory.limit)}"


def _paragraph(job: Foretold, found: Foresight) -> Iterator[str]:
    """What decides a job, and what was assumed of it."""
    yield f"{job.name}{'' if job.estimate is None else f' on {job.estimate.device}'}\n"
    if job.estimate is None:
        yield _line("problem", job.problem)
        return
    for memory in job.estimate.memory[:1]:
        yield _line("memory", f"{between(memory.total, in_bytes)}, {memory.where}; {_most(memory.largest, in_bytes)}")
    if job.seconds is None or job.time is None:
        yield _line("time", "not known before a probe of a few updates on real rows")
    else:
        what = "calls" if job.planned.job.kind == "predict" else "updates"
        updates = f"{job.time.updates:,} {what} of {in_seconds(job.time.update_seconds.likely)}"
        yield _line("time", f"{between(job.seconds, in_seconds)}, {updates}; {_most(job.time.largest, in_seconds)}")
    if (cost := found.cost(job.seconds)) is not None:
        yield _line("cost", between(cost, "{:,.2f}".format))
    if job.better:
        yield _line("faster" if job.runtime == "ipu" else "room", job.better)
    if job.records:
        yield _line("ledger", f"{job.records} such jobs of this host widen these intervals (podium ledger)")
    if job.assumed:
        yield _line("assumed", ", ".join(job.assumed))


def _most(term: Term, unit: Unit) -> str:
    knob = f" (to lower it: {term.knob})" if term.knob else ""
    return f"most of it {term.name}, {unit(term.amount)}{knob}"


def _whole(found: Foresight) -> Iterator[str]:
    """Time, disk and cost of everything that would run."""
    yield "in all\n"
    if any(job.seconds is not None for job in found.running):
        yield _line("devices", _with_ends(found.device_seconds))
    if found.other_seconds:
        yield _line("others", f"{_with_ends(total(found.other_seconds.values()))}, stages without a device")
    if found.unknown:
        more = f" and {len(found.unknown) - SHOWN} more" if len(found.unknown) > SHOWN else ""
        yield _line("not in it", f"{', '.join(found.unknown[:SHOWN])}{more}: nothing is known of their time")
    yield _line("disk", f"some {in_bytes(found.disk_bytes)} will be written, {in_bytes(found.free_bytes)} are free")
    if (cost := found.cost(found.device_seconds)) is not None:
        yield _line("cost", f"{cost.likely:,.2f} ({between(cost, '{:,.2f}'.format)}) at {found.price:g} a device hour")


def _with_ends(seconds: Interval) -> str:
    return f"{in_seconds(seconds.likely)} ({between(seconds, in_seconds)})"


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
