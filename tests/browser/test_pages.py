"""Every page, wide and on a phone, light and dark, printed and by keyboard; planted text shows and does nothing."""

from dataclasses import replace

import pytest
import yaml

from flows.runs.report import RunReport, StageRecord
from flows.views import compare_page, plan_page, run_page
from flows.views.run_view import RunView
from ipu_model.core.files import write_json, write_text
from tasks.validation import validate
from tests.browser import chromium, made_runs, pages
from tests.browser.looking import LOOKING, problems
from tests.browser.planted import EVIL, SHOWN, at, everywhere, missing

RARE = ("paused", "cancelled", "killed", "resumed", "skipped", "two hosts")
"""States of a run whose parts other states show too."""
LOOKED_AT = [pytest.param(name, marks=[pytest.mark.soak] * (name.rpartition(", ")[2] in RARE)) for name in pages.PAGES]


@pytest.mark.parametrize("name", LOOKED_AT)
def test_a_page_is_right_on_every_screen_and_in_every_light(browser, tmp_path, name):
    shows = "" if name == "no run" else SHOWN
    assert problems(browser, pages.PAGES[name](tmp_path), shows=shows) == []


def _plan(folder):
    """Of stages that are called so; their names alone, as the rest is planted in the plans that are looked at."""
    request, estimate = pages.estimated(folder, "bert")
    stages = tuple(replace(stage, stage=at("stage", stage.stage)) for stage in estimate.stages)
    jobs = tuple(replace(job, planned=replace(job.planned, stage=at("stage", job.name))) for job in estimate.jobs)
    html = plan_page.render_plan(replace(estimate, stages=stages, jobs=jobs), request, folder, at("command"))
    return pages.written(folder / "page.html", html)


_TEXTS = ("preset", "error", "paused", "command", "host", "user", "python", "commit")
"""Fields of a record that are one text."""


def _run(folder):
    root = made_runs.checkout(folder)
    values = yaml.safe_load((root / "params.yaml").read_text(encoding="utf-8"))
    values["publish"]["title"] = at("parameter")
    write_text(root / "params.yaml", yaml.safe_dump(values, allow_unicode=True))
    measured = {"runtime": "cpu", "precision": at("precision"), "versions": {"torch": at("version")}}
    write_json(root / "metrics/pretrain-phase1.json", {**measured, "foretold": {"device": at("device")}})
    check = {"name": at("check"), "found": at("found"), "required": at("required"), "ok": False}
    result = {
        "name": at("entry"),
        "scores": {at("score"): 88.1},
        "checks": [check],
        "decision": {"accepted": False, "reasons": [at("reason")]},
        "published": {"url": f"javascript:window.planted=4//{at('url')}", "unchanged": False},
    }
    stages = [StageRecord(name, at("status", "ran"), 4.0, host=at("host")) for name in made_runs.STAGES]
    earlier = {"began": "2026-11-20T10:00:00+0000", "ended": None, "outcome": at("outcome"), "why": at("earlier")}
    report = RunReport(
        f"runs/checkouts/{at('folder')}",
        stages=[*stages, StageRecord(at("stage"), "ran", 1.0)],
        results={"gate@squad": result},
        programs={at("program_of"): at("program")},
        began="2026-11-23T10:00:00+0000",
        ended="2026-11-23T10:12:31+0000",
        plan=[*made_runs.STAGES, at("planned")],
        earlier=[earlier],
        **{name: at(name) for name in _TEXTS},
    )
    made_runs.recorded(root, "rows@squad", 3.0, at("maker"), began=at("maker_began"))
    report.stages = [
        replace(stage, status="skipped") if stage.name == "rows@squad" else stage for stage in report.stages
    ]
    return pages.written(folder / "page.html", run_page.render_run(RunView(report, root)))


def _compare(folder):
    values = pages.make_comparison([at("first"), at("second")], 9, lambda place, text: at(place))
    return pages.written(folder / "page.html", compare_page.render_comparison(values, folder, {}))


def _validation(folder):
    verdict = {**everywhere(pages.make_verdict(False), keep=("record",)), "not_checked": [at("unchecked")]}
    return pages.written(folder / "page.html", validate.render_page(verdict))


_OF_PLAN = ("preset", "why", "split", "problem", "better", "precision", "device", "where", "name", "knob", "assumed")
_OF_RUN = (
    *("folder", "entry", "score", "reason", "url", "check", "found", "required", "status", "stage", "outcome"),
    *("earlier", "program_of", "program", "planned", "maker", "maker_began", "parameter", "precision", "version"),
    *("device", *_TEXTS),
)
HOSTILE = {
    **{
        name: (pages.PAGES[name], ())
        for name in ("evaluation of questions", "evaluation of classes", "all runs, twelve")
    },
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
"""Pages of which every text is planted and named by its place, those too that come from files of the project."""


@pytest.mark.parametrize("name", HOSTILE)
def test_text_of_users_is_text_in_every_place_of_a_page(page, tmp_path, name):
    make, places = HOSTILE[name]
    chromium.opened(page, make(tmp_path))
    assert missing(page.text_content("html") or "", places) == []
    # Everything by which the page's script shows more of the text: values of plots, tables of what is chosen.
    for plot in page.locator("svg.plot").all():
        plot.focus()
        page.keyboard.press("ArrowRight")
    for control in page.locator("summary, thead button, .pick input").all():
        if control.is_visible():  # a column may have been taken away by the one before it
            control.click()
    for field in page.locator("input.filter").all():
        field.fill(EVIL)
    page.evaluate(LOOKING)
    assert page.evaluate("looking.structure()") == []
    assert [link for link in page.evaluate("looking.links()") if "javascript:" in link["href"]] == []
