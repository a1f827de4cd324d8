"""reports/run.html: a run on one page, while it goes on and afterwards; a single file without outside resources.

It is that of the newest run in its folder; reports/runs/ has copies of those that ended. The page of a run that was
killed, which could not end it, is corrected by whoever looks.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import threading
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

from flows.runs import listing
from flows.runs.report import RunReport, outcome
from flows.runs.run_params import said
from flows.runs.stage_plan import publish_after
from flows.views import placement
from flows.views.curves import is_training, sections, training_of
from flows.views.graph import Box, picture
from flows.views.run_view import NOT_BEGUN, RunView, format_clock, format_moment
from ipu_model.files import write_text
from ipu_model.units import format_duration
from tasks.pages.render import html_page
from tasks.stage import artifacts
from tasks.stage.errors import PodiumError

KIND = {
    **{"published": "good", "finished": "good", "proposed": "good", "ran": "good", "running": "info"},
    **{"failed": "bad", "rejected": "bad", "paused": "warn"},
    **{"cancelled": "warn", "interrupted": "warn"},
}
"""Status -> colour of its word."""
REFRESH_S = 10
"""Seconds between two writings of the page of a run that is at work, at the least; a browser asks as often."""
FIRST_S = 2.0
"""Seconds until it is written first."""
LEAST_REST = 50
"""Times the CPU seconds of writing the page that pass until it is written again: 2% of a core at the most."""
REFRESHES = b'http-equiv="refresh"'
HEAD_BYTES = 2000
MOST_COPIES = 50
"""Of pages, in a folder; of more, the oldest go."""
NAMED = re.compile(r"(\d{8}-\d{6})-([a-z]+)\.html")
STAMP = "%Y%m%d-%H%M%S"


def page(run: RunView, copy: bool = False) -> str:
    """Return the run as an HTML page.

    Args:
        run: a view of it; of one at work the page is written again and again.
        copy: it is the one that later runs of the checkout leave as it is.
    """
    root, stages = run.root, run.stages
    folder = root / (artifacts.RUN_PAGES if copy else artifacts.REPORTS)  # links begin there
    pages = {stage: link(page["path"], folder) for stage, page in run.pages.items()}
    begun = {row["name"]: row for row in stages if row["status"] not in NOT_BEGUN}
    trained = [stage for stage in run.plan.values() if stage.name in begun and is_training(stage)]
    trainings = [training_of(stage, root, run.project, begun[stage.name]["began"]) for stage in trained]
    for one in trainings:
        begun[one.stage]["resumed"] = one.resumed
    after = {publish_after(stage): [stage.name] for stage in run.plan.values() if stage.is_gate}
    pipelines = [placement.of_result(result, stage) for stage, result in run.jobs.items()]
    return html_page(
        __file__,
        "run.html.j2",
        run=run,
        record=run.record,
        kinds=KIND,
        refresh=REFRESH_S,
        written=(format_clock(time.time()), round(time.time())),
        copy=copy,
        heard=f"heard of last, {format_clock(run.moment)}",
        pipelines_of_jobs=[one for one in pipelines if one is not None],
        duration=format_duration,
        said=said,
        newest=link(root / artifacts.RUN_PAGE, folder),
        others=other_runs(run.record, root, folder),
        moment=format_moment,
        graph=picture([_box(row, pages) for row in stages], run.plan, after),
        places=any(stage.host for stage in run.record.stages),
        curves=sections(trainings),
        empty=[(one.stage, begun[one.stage]["status"]) for one in trainings if not one.history.get("loss")],
        pages=pages,
        files=[(name, link(path, folder)) for name, path in run.files],
        link=lambda path: link(path, folder),
    )


def link(path: Path, folder: Path) -> str:
    """Return a path as a page in `folder` links it; no name in it can be taken for a scheme."""
    words = quote(os.path.relpath(path, folder))
    return words if "/" in words else f"./{words}"


def _box(row: dict[str, Any], pages: dict[str, str]) -> Box:
    says = f"{row['status']}, {format_duration(row['seconds'])}" if row["seconds"] is not None else row["status"]
    return Box(row["name"], row["status"].replace(" ", "-"), says, pages.get(row["name"]))


def copy_place(report: RunReport, root: Path) -> Path:
    """Where the copy of a run's page lies; its name says when the run began, and how it ended."""
    began = datetime.fromisoformat(report.began) if report.began else datetime.fromtimestamp(0)
    return root / artifacts.RUN_PAGES / f"{began.strftime(STAMP)}-{outcome(report)}.html"


def copies_in(root: Path) -> dict[Path, re.Match[str]]:
    """All copies in a checkout, the newest first, and what their names say."""
    found = sorted((root / artifacts.RUN_PAGES).glob("*.html"), reverse=True)
    return {path: match for path in found if (match := NAMED.fullmatch(path.name)) is not None}


def other_runs(report: RunReport, root: Path, folder: Path) -> list[dict[str, Any]]:
    """When other runs of the checkout began, how they ended, and their pages, for a page in `folder`."""
    own = copy_place(report, root)
    return [
        {
            "link": link(path, folder),
            "began": datetime.strptime(match[1], STAMP).strftime("%Y-%m-%d %H:%M:%S"),
            "outcome": match[2],
            "kind": KIND.get(match[2], ""),
        }
        for path, match in copies_in(root).items()
        if path != own
    ]


@contextlib.contextmanager
def kept_up(run: RunReport, project: Path, root: Path) -> Iterator[None]:
    """While the body works, write what is known of the run, again and again; what cannot be written now is left out.

    Args:
        run: its record, which the body fills.
        project: where it was started.
        root: its checkout.
    """
    ended = threading.Event()
    writer = threading.Thread(target=_keep_up, args=(run, project, root, ended), name="page of the run", daemon=True)
    writer.start()
    try:
        yield
    finally:
        ended.set()
        writer.join()


def _keep_up(run: RunReport, project: Path, root: Path, ended: threading.Event) -> None:
    """The record every time: it costs little, and is all that is known of a run that is killed. The page when due."""
    rest, due = FIRST_S, 0.0
    while not ended.wait(rest):
        began, rest = time.thread_time(), REFRESH_S
        # A disk that is full, or a file that DVC is about to replace: the next time, or the end of the run, says it.
        with contextlib.suppress(OSError, ValueError, PodiumError):
            if time.monotonic() < due:
                keep_now(run, project)
                continue
            write_now(run, project, root)
        due = time.monotonic() + LEAST_REST * (time.thread_time() - began)


def keep_now(run: RunReport, project: Path) -> RunReport:
    """Write the record of a run that is at work."""
    now = dataclasses.replace(run, stages=list(run.stages), at_work=dict(run.at_work), error=None)
    now.keep(project)
    return now


def write_now(run: RunReport, project: Path, root: Path) -> None:
    """Write the record and the page of a run that is at work."""
    now = keep_now(run, project)
    write_text(root / artifacts.RUN_PAGE, page(RunView(now, root, project, at_work=True)))


def write_ended(run: RunReport, project: Path, root: Path) -> None:
    """Write the page of a run that has ended, and the copy of it that later runs of its checkout leave as it is."""
    write_text(copy_place(run, root), page(RunView(run, root, project), copy=True))
    for old in list(copies_in(root))[MOST_COPIES:]:
        old.unlink(missing_ok=True)
    write_text(root / artifacts.RUN_PAGE, page(RunView(run, root, project)))


def correct(project: Path, run: listing.Run) -> None:
    """Let the page of a run that was killed say so: no longer that it goes on, and is written again."""
    path = run.folder / artifacts.RUN_PAGE
    if run.record is None or not run.was_killed or not path.is_file():
        return
    with path.open("rb") as stream:
        if REFRESHES not in stream.read(HEAD_BYTES):
            return
    with contextlib.suppress(OSError):  # who looks may not be who may write
        write_ended(run.record, project, run.folder)
