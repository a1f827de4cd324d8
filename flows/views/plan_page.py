"""Plan of a run: the page of `podium plan` and its text for terminals, two templates over one view."""

import math
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from flows.runs.run_estimate import RUNS, SKIPPED, RunEstimate
from flows.runs.run_request import RunRequest
from flows.views import placement
from flows.views.graph import StageBox, lay_out
from flows.views.page_links import make_head_links
from ipu_model.core.units import format_bytes, format_count, format_seconds, shorten
from tasks.estimates.job_estimates import EstimatedJob, Interval, MemoryEstimate, Term, add_intervals
from tasks.pages.render import render_html, render_text
from tasks.params.tables import format_table

MAX_SHOWN = 3
"""Maximum reasons of a stage, or stage names, on a terminal; --json lists all."""
STATUS_NAMES = {RUNS: "to run", SKIPPED: "up to date", "restored": "restored"}
Unit = Callable[[float], str]


def render_plan(estimate: RunEstimate, request: RunRequest, folder: Path, again: str) -> str:
    """Return the plan of a run as an HTML page in `folder`, with the command `again` that starts the run."""
    boxes = [StageBox(stage.stage, stage.status, ", ".join(stage.why)) for stage in estimate.stages]
    return render_html(
        __file__,
        "plan.html.j2",
        view=PlanView(estimate),
        links=make_head_links(folder, request.project, "plan.md", request.root),
        name=request.options.preset or "params.yaml",
        run=request.name,
        again=again,
        graph=lay_out(boxes, request.plan),
        words=STATUS_NAMES,
        format_memory=format_memory,
        size=format_bytes,
        seconds=format_seconds,
    )


def format_stages(estimate: RunEstimate) -> str:
    """Return the time and the memory of the run in one line, then its stages and their number by status."""
    view = PlanView(estimate)
    head = f"{view.headline}\n\n" if estimate.running else ""
    rows = [(stage.stage, STATUS_NAMES[stage.status], shorten(stage.why, MAX_SHOWN)) for stage in estimate.stages]
    count = view.count
    counts = f"{count[SKIPPED]} stages up to date, {count['restored']} restored, {count[RUNS]} to run"
    return f"{head}{format_table([('stage', 'status', 'reason'), *rows])}{counts}\n"


def format_jobs(estimate: RunEstimate) -> str:
    """Return the device jobs that would run, with their estimates and totals, for a terminal of 80 columns."""
    return render_text(__file__, "plan.txt.j2", view=PlanView(estimate), table=format_table) if estimate.running else ""


class PlanView:
    """View of a plan."""

    def __init__(self, estimate: RunEstimate) -> None:
        self.found, self.stages = estimate, estimate.stages
        self.count = Counter(stage.status for stage in estimate.stages)
        self.jobs = [JobView(job, estimate.cost(job.seconds)) for job in estimate.running]

    @property
    def headline(self) -> str:
        """Time of the whole run, and the memory of its largest job, as far as known."""
        estimate = self.found
        timed = any(job.seconds is not None for job in estimate.running)
        parts = [f"about {format_seconds(estimate.seconds.likely)}"] if timed else ["time not measured (--measure)"]
        memories = [view.estimates[0] for view in self.jobs if view.estimates]
        if largest := max(memories, key=lambda memory: memory.total.likely, default=None):
            parts.append(f"{format_memory(largest)} of memory")
        if timed and estimate.unknown:
            parts.append(f"{format_count(len(estimate.unknown), 'stages')} not timed")
        return ", ".join(parts)

    @property
    def rows(self) -> list[tuple[str, str, str, str]]:
        """Name, memory, verdict and time of each job."""
        return [
            (view.job.name, view.memory or "unknown", view.job.verdict, view.time or "unknown" * bool(view.device))
            for view in self.jobs
        ]

    @property
    def totals(self) -> Iterator[tuple[str, str, str]]:
        """Name, figure and note of each total over all stages that would run, of times only if a job has one."""
        estimate, device = self.found, self.found.device_seconds
        if any(job.seconds is not None for job in estimate.running):
            yield "devices", format_interval(device, format_seconds), f"likely {format_seconds(device.likely)}"
            if estimate.other_seconds:
                rest = add_intervals(estimate.other_seconds.values())
                likely = f"roughly; likely {format_seconds(rest.likely)}; stages that need no device"
                yield "others", format_interval(rest, format_seconds), likely
            if estimate.unknown:
                yield "not timed", format_count(len(estimate.unknown), "stages"), shorten(estimate.unknown, MAX_SHOWN)
        yield "disk", format_bytes(estimate.disk_bytes), f"to be written; {format_bytes(estimate.free_bytes)} free"
        if (cost := estimate.cost(device)) is not None:
            likely = f"likely {cost.likely:,.2f}, at {estimate.price:g} a device hour"
            yield "cost", format_interval(cost, "{:,.2f}".format), likely


class JobView:
    """View of a device job, with the cost of its device hours if a price is set."""

    def __init__(self, job: EstimatedJob, cost: Interval | None = None) -> None:
        self.job, self.cost = job, cost
        self.device, self.estimates = "", tuple[MemoryEstimate, ...]()
        if job.estimate is not None:
            self.device, self.estimates = job.estimate.device, job.estimate.memory

    @property
    def memory(self) -> str:
        """Memory of the fullest device, and its limit; empty if unknown."""
        return format_memory(self.estimates[0]) if self.estimates else ""

    @property
    def time(self) -> str:
        """Time of the whole job; empty if unknown."""
        return "" if self.job.seconds is None else format_interval(self.job.seconds, format_seconds)

    @property
    def summary(self) -> str:
        """One-line summary of the estimate."""
        job, verdict = self.job, f" ({self.job.verdict})"
        if not self.device:
            return f"{job.name}: no estimate ({job.problem})"
        parts = [self.device, self.memory and self.memory + verdict, self.time, job.basis.partition(";")[0]]
        return f"{job.name}: {', '.join(filter(None, parts))}"

    @property
    def facts(self) -> Iterator[tuple[str, str, str]]:
        """Name, figure and largest contribution of each estimate."""
        job, time = self.job, self.job.time
        for estimate in self.estimates[:1]:
            largest = f"{estimate.where}; {_format_largest(estimate.largest, format_bytes)}"
            yield "memory", format_likely(estimate.total, format_bytes), largest
        if job.seconds is not None and time is not None:
            what = "calls" if job.planned.job.kind == "predict" else "updates"
            each = format_likely(time.update_seconds, format_seconds)
            yield "time", format_likely(job.seconds, format_seconds), ""
            yield what, f"{time.updates:,} of {each}", _format_largest(time.largest, format_seconds)
            yield "speed", f"{format_likely(time.sequences_per_second, '{:,.0f}'.format)} sequences/s", ""
        if self.cost is not None:
            yield "cost", format_interval(self.cost, "{:,.2f}".format), ""
        yield "precision", job.precision, ""
        if job.records:
            ipu = "such jobs on this host widen these intervals (podium plan --ledger)"
            other = format_count(job.records, "records of this shape on this host")
            yield "ledger", f"{job.records} {ipu}" if job.runtime == "ipu" else other, ""
        if job.basis:
            yield "basis", job.basis, ""

    @property
    def placement(self) -> dict[str, Any] | None:
        """Its pipeline on the IPUs of a replica; None without IPUs."""
        if (plan := self.job.ipu_plan) is None:
            return None
        predicts, config = self.job.planned.job.kind == "predict", plan.config
        mode = config.inference if predicts else config.training
        recomputes = not predicts and plan.placement.forward_stages > 1
        every = config.recompute_checkpoint_every_layer if recomputes else None
        shares = mode.matmul_proportion
        return placement.describe_pipeline(plan.placement.stages, mode.ipus_per_replica, every, shares, self.job.name)


def _format_largest(term: Term, unit: Unit) -> str:
    knob = f" (reduce with {term.knob})" if term.knob else ""
    return f"mostly {term.name}, {unit(term.amount)}{knob}"


def format_memory(memory: MemoryEstimate) -> str:
    """Return the interval of a memory estimate, and the limit if it is known."""
    limit = "" if math.isinf(memory.limit) else f" of {format_bytes(memory.limit)}"
    return f"{format_interval(memory.total, format_bytes)}{limit}"


def format_interval(interval: Interval, unit: Unit) -> str:
    """Return both ends of an interval, with a shared unit stated once: 1.2 to 1.5 GB."""
    low, high = unit(interval.low), unit(interval.high)
    if low == high:
        return low
    number, _, name = low.rpartition(" ")
    return f"{number if name and high.endswith(f' {name}') else low} to {high}"


def format_likely(interval: Interval, unit: Unit) -> str:
    """Return both ends of an interval, then the likely figure: 1.2 to 1.5 GB (likely 1.3 GB)."""
    ends, likely = format_interval(interval, unit), unit(interval.likely)
    return ends if ends == likely else f"{ends} (likely {likely})"
