"""Pages of which every text is planted and named by its place, those too that come from files of the project."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import yaml

from flows.runs.report import RunReport, StageRecord
from flows.runs.run_estimate import estimate_run
from flows.runs.run_options import RunOptions
from flows.runs.run_request import resolve_request
from flows.views import compare_page, plan_page, run_page
from flows.views.run_view import RunView
from ipu_model.core.files import write_json, write_text
from tasks.validation import validate
from tests.browser import made_runs, pages
from tests.browser.planted import at, everywhere
from tests.places import copy_project

Maker = Callable[[Path], Path]


def _plan(folder):
    """Of stages that are called so; their names alone, as the rest is planted in the plans that are looked at."""
    wanted = resolve_request(copy_project(folder / "project"), RunOptions("bert", name="of-a-test"))
    found = estimate_run(wanted)
    stages = tuple(replace(one, stage=at("stage", one.stage)) for one in found.stages)
    jobs = tuple(replace(job, planned=replace(job.planned, stage=at("stage", job.name))) for job in found.jobs)
    html = plan_page.render_plan(replace(found, stages=stages, jobs=jobs), wanted, folder, at("command"))
    return pages.written(folder / "page.html", html)


def _run(folder):
    root = made_runs.checkout(folder)
    values = yaml.safe_load((root / "params.yaml").read_text(encoding="utf-8"))
    values["publish"]["title"] = at("parameter")
    write_text(root / "params.yaml", yaml.safe_dump(values, allow_unicode=True))
    said = {"runtime": "cpu", "precision": at("precision"), "versions": {"torch": at("version")}}
    write_json(root / "metrics/pretrain-phase1.json", {**said, "foretold": {"device": at("device")}})
    receipt = {"url": f"javascript:window.planted=4//{at('url')}", "unchanged": False}
    recipe = {"accepted": False, "reasons": [at("reason")]}
    check = {"name": at("check"), "found": at("found"), "required": at("required"), "ok": False}
    result = {"name": at("entry"), "scores": {at("score"): 88.1}, "checks": [check], "decision": recipe}
    result["published"] = receipt
    stages = [StageRecord(name, at("status", "ran"), 4.0, host=at("host")) for name in made_runs.STAGES]
    stages += [StageRecord(at("stage"), "ran", 1.0)]
    earlier = {"began": "2026-11-20T10:00:00+0000", "ended": None, "outcome": at("outcome"), "why": at("earlier")}
    report = RunReport(
        f"runs/checkouts/{at('folder')}",
        at("preset"),
        stages=stages,
        results={"gate@squad": result},
        error=at("error"),
        paused=at("paused"),
        programs={at("program_of"): at("program")},
        command=at("command"),
        began="2026-11-23T10:00:00+0000",
        ended="2026-11-23T10:12:31+0000",
        plan=[*made_runs.STAGES, at("planned")],
        host=at("host"),
        user=at("user"),
        python=at("python"),
        commit=at("commit"),
        earlier=[earlier],
    )
    made_runs.recorded(root, "rows@squad", 3.0, at("maker"), began=at("maker_began"))
    report.stages = [replace(one, status="skipped") if one.name == "rows@squad" else one for one in report.stages]
    return pages.written(folder / "page.html", run_page.render_run(RunView(report, root)))


def _compare(folder):
    values = pages.make_comparison([at("first"), at("second")], 9, lambda place, text: at(place))
    return pages.written(folder / "page.html", compare_page.render_comparison(values, folder, {}))


def _validation(folder):
    verdict = {**everywhere(pages.make_verdict(False), keep=("record",)), "not_checked": [at("unchecked")]}
    return pages.written(folder / "page.html", validate.render_page(verdict))


_OF_PLAN = ("preset", "why", "split", "problem", "better", "precision", "device", "where", "name", "knob", "assumed")
_OF_RUN = (
    *("folder", "preset", "entry", "score", "reason", "url", "check", "found", "required", "status", "host", "stage"),
    *("outcome", "earlier", "error", "paused", "program_of", "program", "command", "planned", "user"),
    *("python", "commit", "maker", "maker_began", "parameter", "precision", "version", "device"),
)
PAGES = {
    **{name: (make, ()) for name, make in pages.PAGES.items() if name.startswith(("evaluation", "all runs"))},
    "plan on a CPU": (pages.PAGES["plan on a CPU"], _OF_PLAN),
    "plan on IPUs": (pages.PAGES["plan on IPUs"], _OF_PLAN),
    "plan": (_plan, ("stage",)),
    "run": (_run, _OF_RUN),
    "comparison": (_compare, ("first", "second", "entry", "title", "parameter", "value", "stage", "note")),
    "validation": (
        _validation,
        ("data", "unchecked", "name", "column", "found", "required", "advice", "examples", "title"),
    ),
}
