"""Who, when, where and with what: the head of a run's page, and what it links."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from flows.pages import timeline
from flows.report import RunReport, metrics_of
from ipu_model.files import read_json, sha256_of
from ipu_model.units import format_duration
from tasks.project import artifacts
from tasks.project.plan_file import Plan, Stage

AGAIN = "Run the same command again: what was done is not done again, and a training goes on from its last checkpoint."
NEXT = {
    "failed": "Mend what is named above, then run the same command again: stages that are done are not done again.",
    "paused": "Run the same command again: it goes on from its checkpoint.",
    "cancelled": AGAIN,
    "interrupted": AGAIN,
    "rejected": "Nothing was published. The table of the gate says which check did not hold, and the page of the "
    "evaluation shows the answers. Train again with more data or other parameters; --set "
    "downstream.NAME.gate.LIMIT=VALUE sets another limit.",
}
"""Outcome -> what to do about it."""
KIND = {
    **{"published": "good", "finished": "good", "proposed": "good", "ran": "good", "running": "info"},
    **{"failed": "bad", "rejected": "bad", "paused": "warn"},
    **{"cancelled": "warn", "interrupted": "warn"},
}
"""Status -> colour of its word."""


def of_run(report: RunReport, devices: dict[str, Any], now: float, killed: bool = False) -> list[tuple[str, str]]:
    """Names and values; what was not kept is said to be so.

    Args:
        now: of a run that was killed when it was heard of last.
    """
    took = timeline.since(report, now)
    ended = f"killed, heard of last {timeline.clock(now)}" if killed else "not yet"
    commit = "not known: git does not keep this project"
    if report.commit is not None:
        commit = f"{report.commit}{', with changes of its own' if report.changed else ''}"
    hosts = sorted({stage.host for stage in report.stages if stage.host} | ({report.host} if report.host else set()))
    found = [
        ("began", timeline.moment(report.began)),
        ("ended", timeline.moment(report.ended) if report.ended else ended),
        ("took", "not known" if took is None else "at least " * killed + format_duration(took)),
        ("started by", report.user),
        ("preset", report.preset or "none: params.yaml"),
        ("hosts" if len(hosts) > 1 else "host", ", ".join(hosts) or "not kept"),
        ("device", devices["device"]),
        ("commit", commit),
        ("versions", ", ".join(filter(None, [report.python and f"Python {report.python}", *devices["versions"]]))),
    ]
    return [(name, said) for name, said in found if said]


def device_results(plan: Plan, report: RunReport, root: Path, project: Path) -> dict[str, dict[str, Any]]:
    """Stage -> what its device job says of itself: its result where that lies here, else its figures."""
    stages = [plan[one.name] for one in report.stages if one.name in plan and plan[one.name].holds_device]
    return {stage.name: found for stage in stages if (found := _result_of(stage, root, project))}


def devices_of(
    results: Mapping[str, dict[str, Any]], report: RunReport, parameters: Mapping[str, Any]
) -> dict[str, Any]:
    """What device jobs say of where they ran, and with which versions; where none has ended what was asked."""
    asked = parameters.get("device", {}).get("runtime")
    none = f"{asked}, as asked; no device job has said more" if asked else "no device job has said it"
    names: list[str] = []
    runtimes: list[str] = []
    versions: list[str] = []
    for result in results.values():
        device, precision = _device_of(result), result.get("precision")
        words = ", ".join(str(one) for one in (device or result.get("runtime"), precision) if one)
        (names if device else runtimes).append(words)
        versions += [f"{what} {version}" for what, version in (result.get("versions") or {}).items()]
    shown = [one for one in dict.fromkeys(versions) if one.split()[0] in ("torch", "poptorch", "python")]
    own = f"python {report.python}"
    said = [one.replace("python", "the device's Python") for one in shown if one != own]
    return {"device": "; ".join(dict.fromkeys(names or runtimes)) or none, "versions": said}


def _device_of(result: Mapping[str, Any]) -> str | None:
    """As it was foretold; of IPUs as they were laid out, since what was foretold is of Mk2 wherever a job ran."""
    device = (result.get("plan") or {}).get("device") or {}
    if (placed := device.get("placement")) is None:
        return (result.get("foretold") or {}).get("device")
    replicas = device["ipus"] // placed["ipus_per_replica"]
    return f"{device['ipus']} IPUs, {replicas} replica{'s' * (replicas > 1)} of {placed['ipus_per_replica']}"


def _result_of(stage: Stage, root: Path, project: Path) -> dict[str, Any]:
    if not (values := metrics_of(stage, root)):
        return {}
    for folder in (place / artifacts.RUNS / Path(stage.metrics[0]).stem for place in (root, project)):
        path = folder / str(values.get("fingerprint")) / "result.json"
        if path.is_file():
            return dict(read_json(path))
        if (found := _predicted(values, folder)) is not None:
            return found
    return values


def _predicted(values: Mapping[str, Any], folder: Path) -> dict[str, Any] | None:
    """The result of the first set of a prediction that these figures are of; another run may have written it anew."""
    for path in sorted(folder.glob("*/result.json")):
        figures, result = values.get(path.parent.name, values), read_json(path)
        same = (result["sequences"], round(result["train_seconds"], 2))
        if result["kind"] == "predict" and same == (figures.get("features"), figures.get("predict_seconds")):
            return dict(result)
    return None


def links(report: RunReport, plan: Plan, root: Path, project: Path, folder: Path) -> dict[str, list[dict[str, str]]]:
    """What there is to open: pages of stages, the log, the page of all runs; from `folder`, where the page lies."""
    found: dict[str, list[dict[str, str]]] = {"pages": [], "files": []}
    for stage in (plan[one.name] for one in report.stages if one.name in plan):
        page = root / str(stage.meta.get("page", ""))
        if "page" in stage.meta and page.is_file():
            docs = data_docs(page, root)
            more = "" if docs is None else link(docs, folder)
            found["pages"].append(
                {"stage": stage.name, "name": _called(page), "link": link(page, folder), "data_docs": more}
            )
    if report.log is not None and (project / report.log).is_file():
        found["files"].append({"name": "log", "link": link(project / report.log, folder)})
    if (project / artifacts.INDEX_PAGE).is_file():
        found["files"].insert(0, {"name": "all runs", "link": link(project / artifacts.INDEX_PAGE, folder)})
    return found


def data_docs(page: Path, root: Path) -> Path | None:
    """Great Expectations' own page of the verdict that a page shows; None where there is none, or one of another."""
    folder, verdict = root / artifacts.DATA_DOCS / page.stem, page.with_suffix(".json")
    said = folder / artifacts.SPEAKS_OF
    if page.parent != root / artifacts.VALIDATION or not said.is_file() or not verdict.is_file():
        return None
    return folder / "index.html" if said.read_text(encoding="utf-8") == sha256_of(verdict) else None


def _called(page: Path) -> str:
    """What a page is of: `validation of corpus` is in reports/validation, `evaluation of squad` in evaluation/squad."""
    return f"evaluation of {page.parent.name}" if page.stem == "report" else f"{page.parent.name} of {page.stem}"


def link(path: Path, folder: Path) -> str:
    """A path as a page in `folder` links it; no name in it can be taken for a scheme."""
    words = quote(os.path.relpath(path, folder))
    return words if "/" in words else f"./{words}"
