"""The page of `podium plan`: the stages as a graph, what each device job takes, and how it lies on IPUs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flows.pages import placement
from flows.pages.graph import Box, picture
from flows.plan_words import NO_TIME, Unit, between, ledger_line, memory_range, with_likely
from flows.run_estimate import RUNS, RunEstimate
from flows.run_request import RunRequest
from ipu_model.units import format_bytes, format_seconds
from tasks.pages.render import html_page
from tasks.preflight.job_estimates import EstimatedJob, Interval, MemoryEstimate, Term, total

BAR = 340
"""Length of a bar that stands for the memory of a device, or for the time of an update."""
SHOWN_LIMIT = 4.0
"""How many times what a job takes a memory may be that a bar still shows the end of."""
COLORS = 8
"""Of terms, in the style sheet; the last one is of all that follow."""
WORDS = {RUNS: "run", "skipped": "up to date", "restored": "restored"}


def page(found: RunEstimate, request: RunRequest, preset: str | None) -> str:
    """What a run would do and take, as an HTML page.

    Args:
        preset: the name of it; None: params.yaml.
    """
    estimates = [job.estimate for job in found.running if job.estimate is not None]
    colors = _colors([term for estimate in estimates for one in estimate.memory for term in one.terms])
    cost = found.cost(found.device_seconds)
    return html_page(
        __file__,
        "plan.html.j2",
        name=preset or "params.yaml",
        run=request.name,
        totals=_totals(found, cost),
        graph=picture([Box(one.stage, one.status, ", ".join(one.why)) for one in found.stages], request.plan),
        stages=[(one, WORDS[one.status]) for one in found.stages],
        jobs=[_job(job, found, colors) for job in found.running],
        bar=BAR,
    )


def _totals(found: RunEstimate, cost: Interval | None) -> list[tuple[str, str, str]]:
    """Name, figure and what is to be said of it."""
    timed = [job for job in found.running if job.seconds is not None]
    count = {status: sum(one.status == status for one in found.stages) for status in WORDS}
    others = ", ".join(f"{count[status]} {word}" for status, word in WORDS.items() if status != RUNS)
    lines, device = [("stages that run", str(count[RUNS]), others)], found.device_seconds
    if timed:
        lines.append(("time of devices", between(device, format_seconds), f"likely {format_seconds(device.likely)}"))
    if found.other_seconds:
        rest = total(found.other_seconds.values())
        lines.append(
            ("time of other stages", between(rest, format_seconds), f"roughly; likely {format_seconds(rest.likely)}")
        )
    if cost is not None:
        ends = between(cost, "{:,.2f}".format)
        lines.append(("cost", ends, f"likely {cost.likely:,.2f}, at {found.price:g} an hour"))
    lines.append(
        ("disk", format_bytes(found.disk_bytes), f"will be written; {format_bytes(found.free_bytes)} are free")
    )
    if found.unknown:
        lines.append(("not in the time", str(len(found.unknown)), "stages of which nothing is known"))
    return lines


def _job(job: EstimatedJob, found: RunEstimate, colors: dict[str, int]) -> dict[str, Any]:
    """What the page says of a job; `colors` are those of memory, the same for all jobs of the page."""
    bars: list[dict[str, Any]] = []
    facts, key, time = _facts(job), list[tuple[str, int]](), None
    if job.estimate is not None:
        bars, key = _memories(sorted(job.estimate.memory, key=lambda one: one.where), colors)
        if job.time is not None and job.seconds is not None:
            terms, full = job.time.terms, sum(term.amount for term in job.time.terms)
            parts = _colors(terms)
            time = {"bar": _bar(terms, BAR / (full or 1.0), parts), "terms": _terms(terms, format_seconds, parts)}
        if (cost := found.cost(job.seconds)) is not None:
            facts.append(("cost", between(cost, "{:,.2f}".format)))
    return {
        "name": job.name,
        "device": "" if job.estimate is None else job.estimate.device,
        "verdict": job.verdict,
        "problem": job.problem,
        "facts": facts,
        "memory": bars,
        "key": key,
        "time": time,
        "placement": _placement(job),
        "assumed": job.assumed,
        "better": job.better,
    }


def _facts(job: EstimatedJob) -> list[tuple[str, str]]:
    facts = [("computed in", job.precision), *([("basis", job.basis)] if job.basis else [])]
    if job.seconds is None or job.time is None:
        return [*facts, ("time", NO_TIME)]
    what = "calls" if job.planned.job.kind == "predict" else "updates"
    rate = job.time.sequences_per_second
    facts += [
        ("time", with_likely(job.seconds, format_seconds)),
        (what, f"{job.time.updates:,} of {between(job.time.update_seconds, format_seconds)}"),
        ("sequences a second", with_likely(rate, "{:,.0f}".format)),
    ]
    return facts + ([("ledger", _ledger(job))] if job.records else [])


def _ledger(job: EstimatedJob) -> str:
    if job.runtime == "ipu":
        return f"{job.records} jobs of this host widen the intervals"
    return ledger_line(job)


def _memories(
    memory: Sequence[MemoryEstimate], colors: dict[str, int]
) -> tuple[list[dict[str, Any]], list[tuple[str, int]]]:
    """A bar for each device, all on one scale, and the name of each colour in them."""
    most = max((one.total.high for one in memory), default=0.0)
    limits = [one.limit for one in memory if one.limit <= SHOWN_LIMIT * most]
    scale = BAR / (max([*limits, most]) or 1.0)
    there = {term.name for one in memory for term in one.terms if term.amount > 0}
    used = [(name, color) for name, color in colors.items() if name in there]
    key = [(name, color) for name, color in used if color < COLORS - 1]
    return [_memory(one, scale, colors) for one in memory], key + [("others", COLORS - 1)] * (len(key) < len(used))


def _memory(memory: MemoryEstimate, scale: float, colors: dict[str, int]) -> dict[str, Any]:
    return {
        "where": memory.where,
        "verdict": memory.verdict,
        "said": memory_range(memory),
        "bar": _bar(memory.terms, scale, colors),
        "ends": [memory.total.low * scale, memory.total.likely * scale, memory.total.high * scale],
        "limit": memory.limit * scale if memory.limit * scale <= BAR + 1 else None,
        "terms": _terms(memory.terms, format_bytes, colors),
    }


def _colors(terms: Sequence[Term]) -> dict[str, int]:
    """A number for each name of a term, those that come to most together first; the last is of all that are left."""
    sums: dict[str, float] = {}
    for term in terms:
        sums[term.name] = sums.get(term.name, 0.0) + term.amount
    names = sorted((name for name, amount in sums.items() if amount > 0), key=lambda name: -sums[name])
    return {name: min(index, COLORS - 1) for index, name in enumerate(names)}


def _bar(terms: Sequence[Term], scale: float, colors: dict[str, int]) -> list[dict[str, Any]]:
    """Pieces side by side, in the order of the colours."""
    pieces, x = [], 0.0
    for term in sorted((term for term in terms if term.amount > 0), key=lambda term: colors[term.name]):
        pieces.append({"x": x, "long": term.amount * scale, "color": colors[term.name], "name": term.name})
        x += term.amount * scale
    return pieces


def _terms(terms: Sequence[Term], unit: Unit, colors: dict[str, int]) -> list[dict[str, Any]]:
    return [
        {"name": term.name, "amount": unit(term.amount), "knob": term.knob, "color": colors[term.name]}
        for term in sorted((term for term in terms if term.amount > 0), key=lambda term: -term.amount)
    ]


def _placement(job: EstimatedJob) -> dict[str, Any] | None:
    """Its pipeline on the IPUs of a replica; None where there are no IPUs."""
    if (plan := job.ipu_plan) is None:
        return None
    predicts, config = job.planned.job.kind == "predict", plan.config
    mode = config.inference if predicts else config.training
    recomputes = not predicts and plan.placement.forward_stages > 1
    every = config.recompute_checkpoint_every_layer if recomputes else None
    return placement.picture(plan.placement.stages, mode.ipus_per_replica, every, mode.matmul_proportion, job.name)
