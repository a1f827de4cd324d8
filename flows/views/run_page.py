"""reports/run.html: one self-contained page for a run, while it is running and afterwards.

The page is that of the newest run in its folder; reports/runs/ has copies of the pages of ended runs. A killed run
cannot update its page: the next command that lists runs corrects it.
"""

import contextlib
import dataclasses
import re
import threading
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

from flows.runs import listing
from flows.runs.report import RunReport, run_outcome
from flows.runs.run_params import format_parameter
from flows.runs.stage_plan import publish_step
from flows.views import placement
from flows.views.curves import is_training, make_sections, read_training
from flows.views.graph import StageBox, lay_out
from flows.views.page_links import make_head_links, relative_link
from flows.views.run_head import MOST_SCORES, make_tiles
from flows.views.run_view import BADGE_COLORS, NOT_STARTED, RunView, format_clock, format_moment, format_value
from ipu_model.core.files import write_text
from ipu_model.core.units import format_duration
from tasks.pages.render import render_html
from tasks.stage import artifacts
from tasks.stage.errors import PodiumError

REFRESH_S = 10
"""Minimum seconds between two updates of the page of a running run, and the refresh interval in a browser."""
FIRST_UPDATE_S = 2.0
"""Seconds until the first update."""
MIN_PAUSE_FACTOR = 50
"""Pause between updates as a multiple of the CPU seconds of an update: at most 2% of a core."""
MAX_COPIES = 50
"""Maximum copies of pages in a folder; the oldest are deleted."""
COPY_NAME = re.compile(r"(\d{8}-\d{6})-([a-z]+)\.html")
COPY_TIME = "%Y%m%d-%H%M%S"


def render_run(run: RunView, copy: bool = False) -> str:
    """Return the run as an HTML page, or as the `copy` that later runs in the checkout do not overwrite."""
    root, stages = run.root, run.stages
    folder = root / (artifacts.RUN_PAGES if copy else artifacts.REPORTS)  # links are relative to it
    head = [("Run", relative_link(root / artifacts.RUN_PAGE, folder)), *make_head_links(folder, run.project, "runs.md")]
    if (log := run.project / (run.record.log or "")).is_file():
        head.append(("Log", relative_link(log, folder)))
    pages = {stage: relative_link(page["path"], folder) for stage, page in run.pages.items()}
    begun = {row["name"]: row for row in stages if row["status"] not in NOT_STARTED}
    trained = [stage for stage in run.plan.values() if stage.name in begun and is_training(stage)]
    trainings = [read_training(stage, root, run.project, begun[stage.name]["began"]) for stage in trained]
    for training in trainings:
        begun[training.stage]["resumed"] = training.resumed
    after = {publish_step(stage): [stage.name] for stage in run.plan.values() if stage.is_gate}
    pipelines = [placement.describe_result(result, stage) for stage, result in run.jobs.items()]
    return render_html(
        __file__,
        "run.html.j2",
        run=run,
        tiles=make_tiles(run, trainings),
        most_scores=MOST_SCORES,
        record=run.record,
        kinds=BADGE_COLORS,
        refresh=REFRESH_S,
        written=(format_clock(time.time()), round(time.time())),
        copy=copy,
        last_seen=format_clock(run.last_seen),
        pipelines_of_jobs=[pipeline for pipeline in pipelines if pipeline is not None],
        duration=format_duration,
        format_parameter=format_parameter,
        format_value=format_value,
        newest=relative_link(root / artifacts.RUN_PAGE, folder),
        others=other_runs(run.record, root, folder),
        moment=format_moment,
        graph=lay_out([_box(row, pages) for row in stages], run.plan, after),
        places=any(stage.host for stage in run.record.stages),
        curves=make_sections(trainings),
        pages=pages,
        links=head,
        link=lambda path: relative_link(path, folder),
    )


def _box(row: dict[str, Any], pages: dict[str, str]) -> StageBox:
    tooltip = f"{row['status']}, {format_duration(row['seconds'])}" if row["seconds"] is not None else row["status"]
    return StageBox(row["name"], row["status"].replace(" ", "-"), tooltip, pages.get(row["name"]))


def copy_path(report: RunReport, root: Path) -> Path:
    """Return the path of the copy of a run's page; its name has the start and the outcome of the run."""
    began = datetime.fromisoformat(report.began) if report.began else datetime.fromtimestamp(0)
    return root / artifacts.RUN_PAGES / f"{began.strftime(COPY_TIME)}-{run_outcome(report)}.html"


def list_copies(root: Path) -> dict[Path, re.Match[str]]:
    """Return all copies in a checkout with the parts of their names, the newest first."""
    copies = sorted((root / artifacts.RUN_PAGES).glob("*.html"), reverse=True)
    return {path: match for path in copies if (match := COPY_NAME.fullmatch(path.name)) is not None}


def other_runs(report: RunReport, root: Path, folder: Path) -> list[tuple[str, datetime, str]]:
    """Return link, start and outcome of other runs in the checkout, for a page in `folder`."""
    copies, current = list_copies(root).items(), copy_path(report, root)
    return [
        (relative_link(path, folder), datetime.strptime(match[1], COPY_TIME), match[2])
        for path, match in copies
        if path != current
    ]


@contextlib.contextmanager
def keep_updated(run: RunReport, project: Path, root: Path) -> Iterator[None]:
    """Keep the record and the page of a run up to date in a thread while the body runs.

    The record is written at every tick, since it is cheap and is all that remains of a killed run; the page when due.
    """
    ended = threading.Event()

    def update() -> None:
        rest, due = FIRST_UPDATE_S, 0.0
        while not ended.wait(rest):
            began, rest = time.thread_time(), REFRESH_S
            # The disk may be full, or DVC may be replacing a file: the next update, or the end of the run, reports it.
            with contextlib.suppress(OSError, ValueError, PodiumError):
                if time.monotonic() < due:
                    write_record(run, project)
                    continue
                write_running(run, project, root)
            due = time.monotonic() + MIN_PAUSE_FACTOR * (time.thread_time() - began)

    writer = threading.Thread(target=update, name="page of the run", daemon=True)
    writer.start()
    try:
        yield
    finally:
        ended.set()
        writer.join()


def write_record(run: RunReport, project: Path) -> RunReport:
    """Write the record of a running run, and return it."""
    now = dataclasses.replace(
        run, stages=list(run.stages), at_work=dict(run.at_work), progress=dict(run.progress), error=None
    )
    now.save(project)
    return now


def write_running(run: RunReport, project: Path, root: Path) -> None:
    """Write the record and the page of a running run."""
    now = write_record(run, project)
    write_text(root / artifacts.RUN_PAGE, render_run(RunView(now, root, project, at_work=True)))


def write_ended(run: RunReport, project: Path, root: Path) -> None:
    """Write the page of a run that has ended, and the copy that later runs in its checkout do not overwrite."""
    write_text(root / artifacts.RUN_PAGE, render_run(RunView(run, root, project)))
    write_text(copy_path(run, root), render_run(RunView(run, root, project), copy=True))
    for old in list(list_copies(root))[MAX_COPIES:]:
        old.unlink(missing_ok=True)


def correct_killed(project: Path, run: listing.Run) -> None:
    """Correct the page of a killed run, which still shows it as running."""
    if run.record is None or not run.was_killed or copy_path(run.record, run.folder).is_file():
        return  # a copy is written after the page
    with contextlib.suppress(OSError):  # this user may lack the right to write
        if (run.folder / artifacts.RUN_PAGE).is_file():
            write_ended(run.record, project, run.folder)
