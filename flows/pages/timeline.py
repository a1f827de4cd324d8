"""When the stages of a run were at work, and what each took, in the run that made what there is of it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from flows.report import Made, RunReport, StageRecord

MARKS = 4
"""Stretches of the axis."""
RUNNING, WAITING, NOT_REACHED = "running", "waiting", "not reached"
NOT_BEGUN = (WAITING, NOT_REACHED)
NICE = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1800, 3600)
"""Seconds that an axis may be marked every so many of."""


def rows(report: RunReport, now: float, at_work: bool) -> list[dict[str, Any]]:
    """Every stage of the run: what became of it, and what it took; of one it skipped, as its maker measured that.

    Args:
        now: or when a run that was killed was heard of last.
        at_work: the run goes on; else a stage that has begun and not ended was killed with it.
    """
    found = [_row(stage, report.made.get(stage.name)) for stage in report.stages]
    entered = {stage.name for stage in report.stages}
    for name, began in report.at_work.items():
        if name not in entered:
            status = {"status": RUNNING} if at_work else {"status": "interrupted", "least": True}
            found.append({"name": name, "began": began, "seconds": max(0.0, now - began), **status})
    named = {row["name"] for row in found}
    later = WAITING if at_work else NOT_REACHED
    found += [{"name": name, "status": later} for name in report.plan if name not in named]
    return [
        {**dict.fromkeys(("seconds", "began", "cpu", "peak", "host", "made", "resumed", "least")), **row}
        for row in found
    ]


def _row(stage: StageRecord, made: Made | None) -> dict[str, Any]:
    if stage.status not in ("skipped", "restored"):
        figures = {"seconds": stage.seconds, "cpu": stage.cpu_seconds, "peak": stage.peak_memory_mb}
        return {"name": stage.name, "status": stage.status, "began": stage.began, "host": stage.host, **figures}
    row: dict[str, Any] = {"name": stage.name, "status": stage.status}
    if made is None:
        return row
    row |= {"seconds": made["seconds"], "cpu": made["cpu_seconds"], "peak": made["peak_memory_mb"]}
    when = moment(made["began"])
    return {**row, "began": made["at"], "host": made["host"], "made": when, "run": made["began"]}


def makers(report: RunReport, stages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The runs that made what this one found done: when, where and by which words, and how many stages."""
    found: dict[str, dict[str, Any]] = {}
    for made in (report.made[row["name"]] for row in stages if row["made"]):
        words = [made.get("command"), made.get("commit") and f"commit {made['commit']}", made.get("host")]
        said = ", ".join(str(word) for word in words if word)
        one = found.setdefault(moment(made["began"]), {"when": moment(made["began"]), "said": said, "stages": 0})
        one["stages"] += 1
    return sorted(found.values(), key=lambda one: str(one["when"]))


def lanes(stages: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Stages as bars on one axis of time: those that this run did, or where it did none, those of the newest maker."""
    own = [row for row in stages if row["began"] is not None and row["seconds"] is not None and not row["made"]]
    title = ""
    if not own and (made := [row for row in stages if row["made"] and row["began"] is not None]):
        newest = max(made, key=lambda row: row["began"])["run"]
        own = [row for row in made if row["run"] == newest]
        title = f"Of the run of {moment(newest)}, which made what this one found up to date."
    if not own:
        return {"rows": [], "title": "", "marks": []}
    first = min(row["began"] for row in own)
    long = max(max(row["began"] + row["seconds"] for row in own) - first, 0.01)
    placed = [
        {**row, "left": 100 * (row["began"] - first) / long, "wide": 100 * row["seconds"] / long}
        for row in sorted(own, key=lambda row: row["began"])
    ]
    every = next((one for one in NICE if long / one <= MARKS), 3600 * (1 + int(long / MARKS / 3600)))
    marks = [{"at": 100 * mark / long, "said": marked(mark)} for mark in range(0, int(long) + 1, every)]
    return {"rows": placed, "title": title, "marks": marks}


def marked(seconds: int) -> str:
    """A figure of the axis, as short as it can be."""
    unit, length = ("s", 1) if seconds < 60 else ("min", 60) if seconds < 3600 else ("h", 3600)
    return f"{seconds / length:g} {unit}"


def moment(said: str | None) -> str:
    """A time of a record for people; with the offset of its host, as others may be elsewhere."""
    if said is None:
        return "a time that was not kept"
    try:
        return datetime.fromisoformat(said).strftime("%Y-%m-%d %H:%M:%S %z")
    except ValueError:
        return said


def since(report: RunReport, now: float) -> float | None:
    """Seconds that the run took, or takes so far."""
    if report.began is None:
        return None
    end = now if report.ended is None else datetime.fromisoformat(report.ended).timestamp()
    return max(0.0, end - datetime.fromisoformat(report.began).timestamp())


def clock(now: float) -> str:
    """A moment of this host, as records have it."""
    return time.strftime("%Y-%m-%d %H:%M:%S %z", time.localtime(now))
