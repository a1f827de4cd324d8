"""The page and the record of a run while it goes on, and the page of one that was killed, which could not end it."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from flows import runs
from flows.pages import copies, run_page
from flows.report import RunReport
from ipu_model.files import write_text
from tasks.project import artifacts
from tasks.project.errors import PodiumError

FIRST_S = 2.0
"""Seconds until it is written first."""
LEAST_REST = 50
"""Times the CPU seconds of writing the page that pass until it is written again: 2% of a core at the most."""
REFRESHES = b'http-equiv="refresh"'
HEAD_BYTES = 2000


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
        began, rest = time.thread_time(), run_page.REFRESH_S
        # A disk that is full, or a file that DVC is about to replace: the next time, or the end of the run, says it.
        with contextlib.suppress(OSError, ValueError, PodiumError):
            if time.monotonic() < due:
                keep_now(run, project)
                continue
            write_now(run, project, root)
        due = time.monotonic() + LEAST_REST * (time.thread_time() - began)


def keep_now(run: RunReport, project: Path) -> RunReport:
    """Write the record of a run that is at work."""
    now = dataclasses.replace(run, stages=list(run.stages), at_work=dict(run.at_work), made=dict(run.made), error=None)
    now.settle(project)
    now.keep(project)
    return now


def write_now(run: RunReport, project: Path, root: Path) -> None:
    """Write the record and the page of a run that is at work."""
    now = keep_now(run, project)
    write_text(root / artifacts.RUN_PAGE, run_page.page(now, root, project, at_work=True))


def write_ended(run: RunReport, project: Path, root: Path) -> None:
    """Write the page of a run that has ended, and the copy of it that later runs of its checkout leave as it is."""
    write_text(copies.place_of(run, root), run_page.page(run, root, project, copy=True))
    for old in copies.every(root)[copies.MOST :]:
        old.unlink(missing_ok=True)
    write_text(root / artifacts.RUN_PAGE, run_page.page(run, root, project))


def correct(project: Path, run: runs.Run) -> None:
    """Let the page of a run that was killed say so: no longer that it goes on, and is written again."""
    path = run.folder / artifacts.RUN_PAGE
    if run.record is None or not run.was_killed or not path.is_file():
        return
    with path.open("rb") as stream:
        if REFRESHES not in stream.read(HEAD_BYTES):
            return
    with contextlib.suppress(OSError):  # who looks may not be who may write
        write_ended(run.record, project, run.folder)
