"""Every page that Podium writes, made from invented values; each function writes one and returns its file."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from flows import comparing, index_page, plan_page, run_page
from flows.foretold import foresee
from flows.preflight import checks
from tasks.project.files import write_text
from tasks.validation import validation_page
from tests.browser import evaluations, made_runs, parts_page
from tests.browser.planted import EVIL, LONG
from tests.flows.shown_runs import shown
from tests.places import ROOT

Maker = Callable[[Path], Path]


def _written(file: Path, html: str) -> Path:
    write_text(file, html)
    return file


def _run(state: str, folder: Path) -> Path:
    report, root = made_runs.run(folder, state)
    return _written(root / "reports/run.html", run_page.page(report, root))


def _evaluation(page: Callable[[], str], folder: Path) -> Path:
    return _written(folder / "evaluation/squad/report.html", page())


def _plan(preset: str, folder: Path) -> Path:
    wanted = checks.of_run(ROOT, preset, (), name="of-a-test")
    return _written(folder / "plan.html", plan_page.page(foresee(wanted), wanted, f"{preset} {EVIL}"))


def _validation(valid: bool, folder: Path) -> Path:
    found = [_check("texts_present", True), _check(f"planted {EVIL}", valid), _check(f"planted {LONG}", valid)]
    lengths = {"title": "Length of documents", "unit": "characters", "edges": [10 * 2**n for n in range(16)]}
    histograms = [{**lengths, "counts": [3 * n * n for n in range(15)], "open_end": True, "widening": True}]
    verdict = {
        "data": "corpus",
        "valid": valid,
        "rows": 1200,
        "record": "document",
        "checks": found,
        "not_checked": [] if valid else [f"ids unique {EVIL}"],
        "statistics": {"numbers": [{"name": f"characters {EVIL}", "value": 123456}], "histograms": histograms},
    }
    return _written(folder / "reports/validation/corpus.html", validation_page.page(verdict))


def _check(name: str, ok: bool) -> dict[str, Any]:
    return {
        "name": name,
        "column": "text",
        "ok": ok,
        "found": "all 1,200 documents meet this" if ok else f"2 of 1,200 documents do not: {EVIL} {LONG}",
        "required": "no text is null or empty",
        "failed": 0 if ok else 2,
        "of": 1200,
        "examples": [] if ok else [EVIL, LONG],
        "advice": "look at corpus.path",
    }


def _compare(folder: Path) -> Path:
    names = ["slow", f"fast {EVIL}", LONG[:60]]
    interval = {"mean": 1.2, "value": 88.1, "low": -0.4, "high": 2.8}
    test = {"first_only": 12, "second_only": 19, "p_value": 0.2812}
    pairs = [
        {
            "first": names[0],
            "second": name,
            "common": 990,
            "examples": [1000, 990],
            "confidence": 0.95,
            "differences": {"exact_match": interval, "f1": interval},
            "mcnemar": {"exact_match": test},
        }
        for name in names[1:]
    ]
    lines = [
        {"run": name, "loss": [(10.0 * n, 8 / n + shift) for n in range(1, 80)], "held_out": [(400.0, 2.0), (800.0, 1)]}
        for shift, name in enumerate(names)
    ]
    titles = {"exact_match": "Exact match", "f1": "F1"}
    values = {
        "runs": names,
        "parameters": {
            "runs": names,
            "rows": [{"name": "publish.title", "values": [EVIL, LONG, None]}],
        },
        "entries": [
            {"entry": "squad", "titles": titles, "scores": dict.fromkeys(names, {"f1": interval}), "pairs": pairs}
        ],
        "curves": [{"stage": "pretrain@phase1", "lines": lines}, {"stage": "finetune@squad", "lines": lines}],
    }
    return _written(folder / "reports/compare.html", comparing.page(values, {}))


def _index(folder: Path) -> Path:
    found = [shown(number, f" {EVIL}" * (number % 3 == 1), folder) for number in range(12)]
    return _written(folder / "reports/index.html", index_page.page(folder, found))


def _parts(folder: Path) -> Path:
    return _written(folder / "parts.html", parts_page.page())


PAGES: dict[str, Maker] = {
    "parts that pages share": _parts,
    **{f"run, {state}": partial(_run, state) for state in made_runs.STATES},
    "evaluation of questions": partial(_evaluation, evaluations.questions),
    "evaluation with unanswerable questions": partial(_evaluation, partial(evaluations.questions, True)),
    "evaluation of classes": partial(_evaluation, evaluations.classes),
    "evaluation of values": partial(_evaluation, evaluations.values),
    "evaluation of entities": partial(_evaluation, evaluations.entities),
    "plan on a CPU": partial(_plan, "bert"),
    "plan on IPUs": partial(_plan, "ipu-large-pod16-examples-8ipu"),
    "validation, good": partial(_validation, True),
    "validation, bad": partial(_validation, False),
    "comparison": _compare,
    "all runs": _index,
}
"""What it shows -> its maker."""
