"""Pages of which every text is planted and named by its place, those too that come from files of the project."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import numpy as np
import yaml

from flows.runs.listing import Run
from flows.runs.report import RunReport, StageRecord
from flows.runs.run_estimate import estimate_run
from flows.runs.run_options import RunOptions
from flows.runs.run_request import resolve_request
from flows.views import compare_page, index_page, plan_page, run_page
from flows.views.run_view import RunView
from ipu_model.core.files import write_json, write_text
from tasks.downstream.scoring.calibration import compute_calibration
from tasks.downstream.scoring.metrics import Slice
from tasks.downstream.scoring.near_duplicates import score_without_duplicates
from tasks.downstream.scoring.report import EvaluationView
from tasks.downstream.squad.answers import Answer
from tasks.downstream.texts.task_table import TASKS
from tasks.records.duplicate_report import Duplicate, NearDuplicateReport, SourceReport
from tasks.records.duplicate_report import PairExcerpt as Pairs
from tasks.validation import validate
from tests.browser import evaluations, made_runs, pages
from tests.browser.planted import at, everywhere
from tests.places import copy_project
from tests.tasks.downstream.entries import dev_set, make_question, task_with

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


def _index(folder):
    found = []
    for number in range(2):
        run = at("name", f"run-{number}").replace("/", "-")  # as folders can be called
        record = RunReport(f"runs/checkouts/{number}", at("preset"), began="2026-11-23T10:00:00+0000")
        result = {"name": at("entry"), "scores": {at("metric"): 80.0 + number}}
        result["decision"], result["published"] = {"accepted": False, "reasons": []}, {"folder": at("published")}
        record.results["gate"] = result
        record.details = {
            "runtime": at("runtime"),
            "entries": {at("entry"): at("kind")},
            "changed": {at("parameter"): at("value", f'"{number}')},
            "curves": {at("curve"): [(float(step), 3.0 / step) for step in range(1, 31)]},
        }
        place = folder / "runs/checkouts" / run
        write_text(place / "reports/run.html", "<!doctype html><title>A page</title>")
        found.append(Run(run, place, record, False))
    write_text(folder / "reports" / f"compare-{at('comparison').replace('/', '-')}.html", "<!doctype html>")
    return pages.written(folder / "reports/index.html", index_page.render_index(folder, found))


def _compare(folder):
    values = pages.make_comparison([at("first"), at("second")], 9, lambda place, text: at(place))
    return pages.written(folder / "page.html", compare_page.render_comparison(values, folder, {}))


def _validation(folder):
    verdict = {**everywhere(pages.make_verdict(False), keep=("record",)), "not_checked": [at("unchecked")]}
    return pages.written(folder / "page.html", validate.render_page(verdict))


def _classes(folder):
    """An evaluation with labels and a set of a user's own."""
    planted = replace(TASKS["sst2"], title=at("title"), labels=(at("label"), at("other_label")))
    labels = np.arange(60) % 2
    logits = np.stack([labels * 2.0 - 1, (labels + np.arange(60) % 3) * 1.0], axis=1)
    with patch.dict(TASKS, sst2=planted):
        task = task_with("glue-sst2", "report")
        examples = dev_set(task.scores, [at("text")] * 60, labels.astype(np.float64))
        found = evaluations.evaluated(task, examples, logits, Duplicate("dev", 4, 0.8, at("other")))
        return pages.written(folder / "page.html", task.page(replace(found, note=at("note"))))


def _questions(folder):
    """An evaluation of one question, whose reference and answers are hostile as well."""
    answer = at("answer")
    question = make_question(at("id"), at("question"), f"so {answer} it", (answer,), (3,), at("of"))
    answers = [Answer(at("prediction"), 0, 5, 1.0, 0.5), Answer(at("candidate"), 0, 3, 0.5, 0.25)]
    metrics = {f"{name}{end}": 50.0 for name in ("exact_match", "f1") for end in ("", "_low", "_high")}
    files = [{"path": at("path"), "sha256": "a" * 64}]
    pair = Duplicate("dev", 0, 0.9, at("pair"))
    task = task_with("squad", "report")
    source = SourceReport(at("source"), 12, 3, (pair,), (Pairs(pair, at("one"), at("two")),))
    near = score_without_duplicates(task.scores, NearDuplicateReport(0.8, (source,)), {"dev": np.array([[0.0, 0.5]])})
    found = EvaluationView(
        {"dev": [question]},
        {"dev": [answers]},
        {"dev": [""]},
        {"dev": np.array([[0.0, 0.5]])},
        [Slice(at("by"), at("slice"), 1, metrics)],
        compute_calibration([0.5], [0.0]),
        {**metrics, "total": 1, "answered": 1, "files": files},
        at("note"),
        near,
    )
    return pages.written(folder / "page.html", task.page(found))


_OF_PLAN = ("preset", "why", "split", "problem", "better", "precision", "device", "where", "name", "knob", "assumed")
_OF_RUN = (
    *("folder", "preset", "entry", "score", "reason", "url", "check", "found", "required", "status", "host", "stage"),
    *("outcome", "earlier", "error", "paused", "program_of", "program", "command", "planned", "user"),
    *("python", "commit", "maker", "maker_began", "parameter", "precision", "version", "device"),
)
PAGES = {
    "plan on a CPU": (pages.PAGES["plan on a CPU"], _OF_PLAN),
    "plan on IPUs": (pages.PAGES["plan on IPUs"], _OF_PLAN),
    "plan": (_plan, ("stage",)),
    "run": (_run, _OF_RUN),
    "all runs": (_index, ("preset", "metric", "entry", "published", "runtime", "kind", "parameter", "curve")),
    "comparison": (_compare, ("first", "second", "entry", "title", "parameter", "value", "stage", "note")),
    "validation": (
        _validation,
        ("data", "unchecked", "name", "column", "found", "required", "advice", "examples", "title"),
    ),
    "questions": (
        _questions,
        (*("answer", "id", "question", "prediction", "candidate", "path", "source", "pair"), *("by", "slice", "note")),
    ),
    "classes": (_classes, ("title", "label", "other_label", "text", "other", "note")),
}
"""What it is -> its maker, and the places of which a reader sees what was planted."""
