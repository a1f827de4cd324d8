"""Every page that Podium writes, made from invented values; each function writes one and returns its file."""

from dataclasses import replace
from functools import partial

from flows.runs import report
from flows.runs.run_estimate import estimate_run
from flows.runs.run_options import RunOptions
from flows.runs.run_request import resolve_request
from flows.views import compare_page, index_page, plan_page, run_page
from flows.views.run_view import RunView
from ipu_model.core.files import write_text
from tasks.validation import validate
from tests.browser import evaluations, made_runs
from tests.browser.planted import EVIL, LONG, at, everywhere
from tests.flows.views.shown_runs import shown
from tests.places import copy_project


def written(file, html=made_runs.PAGE):
    write_text(file, html)
    return file


def _run(state, folder):
    record, root = made_runs.run(folder, state)
    return written(root / "reports/run.html", run_page.render_run(RunView(record, root, at_work=state == "running")))


def _neighbours(folder, document):
    for name in ("reports/run.html", "reports/index.html", f"docs/{document}.md"):
        written(folder / name)


def _evaluation(make, folder):
    _neighbours(folder, "evaluation")
    written(folder / "evaluation/squad/mistakes.csv", "id\n")
    return written(folder / "evaluation/squad/report.html", make())


def estimated(folder, preset):
    request = resolve_request(copy_project(folder / "project"), RunOptions(preset, name="of-a-test"))
    return request, estimate_run(request, price=2.5)


def _plan(preset, folder):
    """With all words planted but those by which parts are found: stages, whose names test_pages.py plants."""
    request, estimate = estimated(folder, preset)
    estimate = everywhere(estimate, keep=("planned", "stage", "status", "runtime"))
    first, *rest = estimate.jobs
    planned = replace(first.planned, split=at("split"))
    jobs = (replace(first, planned=planned, problem=f"{at('problem')} {LONG}", better=at("better")), *rest)
    request = replace(request, options=replace(request.options, preset=at("preset", preset)))
    html = plan_page.render_plan(replace(estimate, jobs=jobs), request, folder, at("command"))
    return written(folder / "plan.html", html)


def make_verdict(valid):
    """The verdict on a corpus, with text that is hostile or long."""
    lengths = {"title": "Length of documents", "unit": "characters", "edges": [10 * 2**n for n in range(16)]}
    histograms = [{**lengths, "counts": [3 * n * n for n in range(15)], "open_end": True, "widening": True}]
    return {
        **{"data": "corpus", "valid": valid, "rows": 1200, "record": "document"},
        "checks": [_check("texts_present", True), *(_check(f"planted {text}", valid) for text in (EVIL, LONG))],
        "not_checked": [] if valid else [f"ids unique {EVIL}"],
        "statistics": {"numbers": [{"name": f"characters {EVIL}", "value": 123456}], "histograms": histograms},
    }


def _check(name, ok):
    found = "all 1,200 documents pass" if ok else f"2 of 1,200 documents do not: {EVIL} {LONG}"
    examples = {"failed": 0, "of": 1200, "examples": []} if ok else {"failed": 2, "of": 1200, "examples": [EVIL, LONG]}
    texts = {"column": "text", "required": "no text is null or empty", "advice": "check corpus.path"}
    return {"name": name, "ok": ok, "found": found, **examples, **texts}


def _validation(valid, folder):
    _neighbours(folder, "inputs")
    return written(folder / "reports/validation/corpus.html", validate.render_page(make_verdict(valid)))


def make_comparison(names, more, say):
    """A comparison of runs; `more`: how many steps its curves have; `say` gives what is said at a place."""
    interval = {"mean": 1.2, "value": 88.1, "low": -0.4, "high": 2.8, "p_value": 0.12, "verdict": "no difference shown"}
    pair = {"common": 990, "examples": [1000, 990], "confidence": 0.95}
    pair["differences"] = {"exact_match": interval, "f1": interval}
    pair["mcnemar"] = {"exact_match": {"first_only": 12, "second_only": 19, "p_value": 0.2812}}
    pairs = [{**pair, "first": names[0], "second": name} for name in names[1:]]
    held_out = [(400.0, 2.0), (800.0, 1)]
    lines = [
        {"run": name, "loss": [(10.0 * n, 8 / n + shift) for n in range(1, more)], "held_out": held_out}
        for shift, name in enumerate(names)
    ]
    rows = [{"name": say("parameter", "publish.title"), "values": [say("value", EVIL), *[LONG, None][: len(pairs)]]}]
    titles = {"exact_match": "Exact match", "f1": say("title", "F1")}
    scores = dict.fromkeys(names, {"f1": interval})
    return {
        "runs": names,
        "parameters": {"runs": names, "rows": rows},
        "entries": [{"entry": say("entry", "squad"), "titles": titles, "scores": scores, "pairs": pairs}],
        "pretraining": [],
        "notes": [say("note", f"{EVIL} was only pre-trained")],
        "curves": [{"stage": say("stage", stage), "lines": lines} for stage in ("pretrain@phase1", "finetune@squad")],
    }


def _compare(folder):
    values = make_comparison(["slow", f"fast {EVIL}", LONG[:60]], 80, lambda place, text: text)
    pretraining = {"phase": "phase2", "rows": 1024, "same_rows": True, "titles": report.PRETRAINING_SCORES}
    pretraining["scores"] = dict.fromkeys(values["runs"], dict.fromkeys(report.PRETRAINING_SCORES, 45.678))
    pretraining["changes"] = {"slow": f"held-out loss 3.1 -> 2.9 {EVIL}"}
    values["pretraining"] = [pretraining]
    return written(folder / "reports/compare.html", compare_page.render_comparison(values, folder, {}))


def all_runs(number, folder):
    runs = [_shown(each, folder) for each in range(number)]
    return written(folder / "reports/index.html", index_page.render_index(folder, runs))


def _shown(number, folder):
    """A run that trained three times, with eight parameters of its own, and a page that may be opened."""
    mark = f" {EVIL}" * (number % 100 == 2)
    trainings = [f"{name}{more}{mark}" for name in made_runs.TRAININGS for more in ("", ", held-out")]
    changed = {f"downstream.squad.finetune.parameter_{n}{mark}": f"{n * number / 1000}{mark}" for n in range(8)}
    curves = dict.fromkeys(trainings, [(float(step), 8 / step + number / 100) for step in range(1, 31)])
    entries = {f"squad{mark}": f"squad{mark}"}
    run = shown(number, mark, folder, changed=changed, curves=curves, entries=entries)
    if number < 3:
        written(run.folder / "reports/run.html")
    return run


PAGES = {
    **{f"run, {state}": partial(_run, state) for state in made_runs.STATES},
    "evaluation of questions": partial(_evaluation, evaluations.questions),
    "evaluation with unanswerable questions": partial(_evaluation, partial(evaluations.questions, True)),
    "evaluation of classes": partial(_evaluation, evaluations.classes),
    "evaluation of several labels": partial(_evaluation, evaluations.several_labels),
    "evaluation of values": partial(_evaluation, evaluations.values),
    "evaluation of entities": partial(_evaluation, evaluations.entities),
    "plan on a CPU": partial(_plan, "bert"),
    "plan on IPUs": partial(_plan, "ipu-large-pod16-examples-8ipu"),
    "validation, good": partial(_validation, True),
    "validation, bad": partial(_validation, False),
    "comparison": _compare,
    "no run": partial(all_runs, 0),
    "all runs, twelve": partial(all_runs, 12),
}
