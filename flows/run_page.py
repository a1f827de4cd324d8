"""reports/run.html: a run on one page, while it goes on and afterwards; a single file without outside resources."""

from __future__ import annotations

import functools
import time
from pathlib import Path
from typing import Any

from flows import run_params, run_story, runs
from flows.faces import facts, gates, placement, timeline
from flows.faces.curves import is_training, read_curve, sections, training_of
from flows.faces.graph import Box, picture
from flows.report import RunReport, outcome, recipe_words
from tasks.pages.render import html_page
from tasks.project import artifacts
from tasks.project.errors import ParamsError
from tasks.project.params_command import ABSENT
from tasks.project.plan_file import Plan, read_plan

__all__ = ["is_training", "page", "read_curve"]

REFRESH_S = 10
"""Seconds between two writings of the page of a run that is at work, at the least; a browser asks as often."""

OWN = artifacts.RUNS / "checkouts"
"""Where runs have folders of their own (flows/checkout.py)."""


def page(report: RunReport, root: Path, project: Path | None = None, at_work: bool = False) -> str:
    """The run as an HTML page.

    Args:
        report: what is known of it.
        root: its checkout.
        project: where its checkout belongs; None: the same.
        at_work: it goes on, and this page is written again.
    """
    project, plan, now = project or root, read_plan(root), time.time()
    word = timeline.RUNNING if at_work else outcome(report)
    jobs = facts.device_results(plan, report, root, project)
    pipelines = [placement.of_result(result, stage) for stage, result in jobs.items()]
    return html_page(
        __file__,
        "run.html.j2",
        name=_title(report),
        outcome=word,
        kinds=facts.KIND,
        at_work=at_work,
        refresh=REFRESH_S,
        written=timeline.clock(now),
        killed=not at_work and report.began is not None and report.ended is None,
        facts=facts.of_run(report, facts.devices_of(jobs, report), now),
        pipelines_of_jobs=[one for one in pipelines if one is not None],
        report=report,
        reasons=[text for text in (report.error, report.paused) if text is not None],
        next=facts.NEXT.get(word, ""),
        duration=timeline.duration,
        **_work(report, plan, root, project, timeline.rows(report, now, at_work)),
        **_found(report, plan, root, project),
    )


def _work(report: RunReport, plan: Plan, root: Path, project: Path, stages: list[dict[str, Any]]) -> dict[str, Any]:
    """What its stages did: their picture, when they were at work, and what the trainings among them learned."""
    links = facts.links(report, plan, root, project)
    pages = {one["stage"]: one["link"] for one in links["pages"]}
    begun = {row["name"] for row in stages if row["status"] not in timeline.NOT_BEGUN}
    names = [stage.name for stage in plan.values() if stage.name in begun and is_training(stage)]
    trainings = [training_of(plan[name], root, project) for name in names]
    return {
        "graph": picture([_box(row, pages) for row in stages], plan),
        "stages": stages,
        "lanes": timeline.lanes(stages),
        "curves": sections(trainings),
        "empty": [one.stage for one in trainings if not one.history.get("loss")],
        "links": links,
        "pages": pages,
    }


def _found(report: RunReport, plan: Plan, root: Path, project: Path) -> dict[str, Any]:
    """What it was told, and what its gates say."""
    values, differ = _parameters(report, root, project)
    return {"differ": differ, "results": _results(report, plan, root, project, values)}


def _title(report: RunReport) -> str:
    return "this project's folder" if report.name == "." else report.folder.removeprefix(f"{OWN}/")


def _box(row: dict[str, Any], pages: dict[str, str]) -> Box:
    says = f"{row['status']}, {timeline.duration(row['seconds'])}" if row["seconds"] is not None else row["status"]
    return Box(row["name"], row["status"].replace(" ", "-"), says, pages.get(row["name"]))


def _parameters(report: RunReport, root: Path, project: Path) -> tuple[dict[str, Any], list[tuple[str, str, str]]]:
    """The parameters of the run, and name, value there and value here of those that it was told."""
    path = root / artifacts.PARAMS
    version = (path.stat().st_mtime_ns, report.preset) if path.is_file() else (0, None)
    return _read_parameters(report.name, root, project, version)


@functools.lru_cache(maxsize=8)
def _read_parameters(
    name: str, root: Path, project: Path, version: tuple[int, str | None]
) -> tuple[dict[str, Any], list[tuple[str, str, str]]]:
    """Once, as long as the file and the preset are the same: YAML is slow to read."""
    try:
        values = run_params.params_of(project, root)
        record = RunReport(name, version[1])
        rows = run_story.differences(project, runs.Run(name, root, record, False))
    except (ParamsError, KeyError):  # there are none, or those of a revision that had other sections
        return {}, []
    return values, [(name, _said(there), _said(here)) for name, (there, here) in rows]


def _said(value: Any) -> str:
    return "none" if value is None or value is ABSENT else str(value)


def _results(report: RunReport, plan: Plan, root: Path, project: Path, values: dict[str, Any]) -> list[dict[str, Any]]:
    found = facts.results(report, root, project)
    for result in found:
        decision, receipt = (report.results[result["gate"]][name] for name in ("decision", "published"))
        result["recipe"] = recipe_words(decision, receipt) if decision else []
        stage = plan.get(result["gate"])
        entry = values.get("downstream", {}).get(stage.item) if stage is not None else None
        result |= {"checks": [], "differ": []} if stage is None else gates.checks_of(stage, root, entry)
    return found
