"""reports/run.html: a run on one page, while it goes on and afterwards; a single file without outside resources."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flows import settings
from flows.gate_rows import Gate, gates_of
from flows.pages import copies, facts, placement, timeline
from flows.pages.curves import is_training, sections, training_of
from flows.pages.graph import Box, picture
from flows.plan import publish_after
from flows.report import RunReport, outcome, recipe_words, record_of
from ipu_model.units import format_duration
from tasks.pages.render import html_page
from tasks.project import artifacts
from tasks.project.plan_file import Plan, read_plan

REFRESH_S = 10
"""Seconds between two writings of the page of a run that is at work, at the least; a browser asks as often."""


@dataclass(frozen=True)
class Place:
    """Where a page stands, and what it tells of."""

    root: Path
    """The checkout of the run."""
    project: Path
    """That it belongs to."""
    folder: Path
    """Of the page: links begin there."""


def page(report: RunReport, root: Path, project: Path | None = None, at_work: bool = False, copy: bool = False) -> str:
    """The run as an HTML page.

    Args:
        report: what is known of it.
        root: its checkout.
        project: where its checkout belongs; None: the same.
        at_work: it goes on, and this page is written again.
        copy: it is the one that later runs of the checkout leave as it is.
    """
    project, plan, now = project or root, read_plan(root), time.time()
    killed = not at_work and report.began is not None and report.ended is None
    heard = _last_heard(project, root, now) if killed else now
    place = Place(root, project, root / (artifacts.RUN_PAGES if copy else artifacts.REPORTS))
    told = settings.of_run(report, root, project)
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
        written=(timeline.clock(now), round(now)),
        copy=copy,
        killed=f"heard of last, {timeline.clock(heard)}" if killed else "",
        facts=facts.of_run(report, facts.devices_of(jobs, report, told.values), heard, killed),
        pipelines_of_jobs=[one for one in pipelines if one is not None],
        report=report,
        reasons=[text for text in (report.error, report.paused) if text is not None],
        next=facts.NEXT.get(word, ""),
        duration=format_duration,
        settings=told,
        **_kin(report, place),
        **_work(report, plan, place, timeline.rows(report, heard, at_work)),
        results=_results(report, place),
    )


def _work(report: RunReport, plan: Plan, place: Place, stages: list[dict[str, Any]]) -> dict[str, Any]:
    """What its stages did: their picture, when they were at work, and what the trainings among them learned."""
    links = facts.links(report, plan, place.root, place.project, place.folder)
    pages = {one["stage"]: one["link"] for one in links["pages"]}
    after = {publish_after(stage): [stage.name] for stage in plan.values() if stage.is_gate}
    begun = {row["name"]: row for row in stages if row["status"] not in timeline.NOT_BEGUN}
    trained = [stage for stage in plan.values() if stage.name in begun and is_training(stage)]
    trainings = [training_of(stage, place.root, place.project, begun[stage.name]["began"]) for stage in trained]
    for one in trainings:
        begun[one.stage]["resumed"] = one.resumed
    return {
        "graph": picture([_box(row, pages) for row in stages], plan, after),
        "stages": stages,
        "places": any(stage.host for stage in report.stages),
        "makers": timeline.makers(report, stages),
        "lanes": timeline.lanes(stages),
        "curves": sections(trainings),
        "empty": [(one.stage, begun[one.stage]["status"]) for one in trainings if not one.history.get("loss")],
        "links": links,
        "pages": pages,
    }


def _kin(report: RunReport, place: Place) -> dict[str, Any]:
    """The runs before it and after it in the same folder."""
    return {
        "newest": facts.link(place.root / artifacts.RUN_PAGE, place.folder),
        "others": copies.others(report, place.root, place.folder),
        "earlier": [{**one, "began": timeline.moment(one["began"])} for one in report.earlier],
    }


def _last_heard(project: Path, root: Path, now: float) -> float:
    """When a run that was killed wrote its record last, which it did again and again."""
    record = record_of(project, root)
    return record.stat().st_mtime if record.is_file() else now


def _title(report: RunReport) -> str:
    return "in this project's folder" if report.name == "." else report.folder.removeprefix(f"{artifacts.CHECKOUTS}/")


def _box(row: dict[str, Any], pages: dict[str, str]) -> Box:
    says = f"{row['status']}, {format_duration(row['seconds'])}" if row["seconds"] is not None else row["status"]
    return Box(row["name"], row["status"].replace(" ", "-"), says, pages.get(row["name"]))


def _results(report: RunReport, place: Place) -> list[dict[str, Any]]:
    found = facts.results(report, place.root, place.project, place.folder)
    gates = gates_of(report, place.root, place.project)
    for result in found:
        decision, receipt = (report.results[result["gate"]][name] for name in ("decision", "published"))
        result["recipe"] = recipe_words(decision, receipt) if decision else []
        gate = gates.get(result["gate"], Gate())
        result |= {"checks": gate.checks, "differ": gate.unusual}
        result["lowered"] = any(check.lowered_from is not None for check in gate.checks)
    return found
