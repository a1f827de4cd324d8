"""What somebody sees of a run: while it works a line a stage, how far it is and how long that still takes; and at its
end what came of it, where to look, and why it did not finish.

Where standard output is a terminal each stage at work has a bar that moves; elsewhere (CI, a pipe, a file) a stage has
a line when it begins, one from time to time and one when it ends, without escape codes. What stages print goes to the
log of the run, and here only when asked for, but for notes, which are always shown.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import time
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import IO

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.text import Text

from flows.runs import report
from flows.runs.report import StageRecord, row
from flows.runs.stopping import stop
from tasks.stage import streams
from tasks.stage.errors import FAILED, PAUSED, REJECTED
from tasks.stage.streams import NOTE, printable

SECONDS_BETWEEN_LINES = 30.0
"""How often a stage at work gets a new line where lines stay."""
SHARE = re.compile(r"\[\s*(\d{1,3})%\]\s*")
LEFT = re.compile(r"(?:\d+ min )?\d+ s left$")
"""How a line of progress begins, and how it ends (tasks/jobs/device_job.py)."""
STATUS_STYLES = {"failed": "red", "paused": "yellow", "skipped": "dim", "restored": "cyan"}
CODES = {"failed": FAILED, "rejected": REJECTED, "paused": PAUSED}
"""Exit codes of outcomes; of the others, 0."""


class Screen:
    """Shows nothing: on a worker, and wherever nobody watches."""

    def begin(self, stage: str) -> None:
        """A stage begins."""

    def line(self, stage: str, text: str) -> None:
        """A line that a stage printed."""

    def tell(self, text: str) -> None:
        """A line that matters to people, whatever is at work."""

    def end(self, record: StageRecord) -> None:
        """A stage has ended."""

    def close(self) -> None:
        """Nothing moves any more."""


class Lines(Screen):
    """Lines that stay, for what is no terminal."""

    def __init__(self, stream: IO[str], verbose: bool) -> None:
        self._stream, self._verbose = stream, verbose
        self._said_at: dict[str, float] = {}
        """Stage at work -> when it last had a line."""

    def begin(self, stage: str) -> None:
        self._said_at[stage] = time.monotonic()
        self._write(f"{stage}: started")

    def line(self, stage: str, text: str) -> None:
        now = time.monotonic()
        if self._verbose or text.startswith(NOTE):
            self._write(said_by(stage, text, self._said_at))
        elif SHARE.match(text) and now - self._said_at[stage] >= SECONDS_BETWEEN_LINES:
            self._said_at[stage] = now
            self._write(f"{stage}: {text}")

    def tell(self, text: str) -> None:
        self._write(text)

    def end(self, record: StageRecord) -> None:
        del self._said_at[record.name]
        self._write(row(record))

    def _write(self, text: str) -> None:
        with contextlib.suppress(BrokenPipeError):  # a run matters more than who watches it
            self._stream.write(printable(text) + "\n")
            self._stream.flush()


class Bars(Screen):
    """A bar that moves below the lines that stay, for a terminal."""

    def __init__(self, console: Console, verbose: bool) -> None:
        self._verbose, self._tasks = verbose, dict[str, TaskID]()
        share, left = (
            TextColumn("{task.fields[share]:>4}"),
            TextColumn("{task.fields[left]}", markup=False, style="cyan"),
        )
        columns = (TextColumn("{task.description:<24}", markup=False), BarColumn(20), share, TimeElapsedColumn(), left)
        # What others print while it moves stays theirs: standard output holds what was asked for.
        self._progress = Progress(*columns, console=console, redirect_stdout=False, redirect_stderr=False)

    def begin(self, stage: str) -> None:
        self._tasks[stage] = self._progress.add_task(stage, total=None, share="", left="")
        self._progress.start()

    def line(self, stage: str, text: str) -> None:
        if self._verbose or text.startswith(NOTE):
            self.tell(said_by(stage, text, self._tasks))
        if share := SHARE.match(text):
            left = LEFT.search(text)
            done, task = int(share[1]), self._tasks[stage]
            self._progress.update(task, total=100, completed=done, share=f"{done}%", left=left[0] if left else "")

    def tell(self, text: str) -> None:
        self._progress.console.print(Text(printable(text)), soft_wrap=True)

    def end(self, record: StageRecord) -> None:
        self._hide(record.name)
        text = Text(printable(row(record)))
        text.highlight_words([record.status], STATUS_STYLES.get(record.status, "green"))
        self._progress.console.print(text, soft_wrap=True)

    def close(self) -> None:
        self._hide(*self._tasks)

    def _hide(self, *stages: str) -> None:
        for stage in stages:
            self._progress.remove_task(self._tasks.pop(stage))
        if not self._tasks:
            self._progress.stop()


def said_by(stage: str, text: str, at_work: Collection[str]) -> str:
    """A line of a stage, with its name where other stages are at work beside it."""
    return f"{stage}: {text}" if len(at_work) > 1 else text


def of_terminal(verbose: bool) -> Screen:
    """The screen for standard output as it is."""
    console = Console(highlight=False)
    if console.is_terminal and not console.is_dumb_terminal:
        return Bars(console, verbose)
    return Lines(sys.stdout, verbose)


def print_last(text: str, style: str) -> None:
    """Why a run did not finish, its last word: on standard error, coloured where that is a terminal."""
    sys.stdout.flush()
    Console(stderr=True, highlight=False).print(Text(printable(text), style=style), soft_wrap=True)


_shown: list[Screen] = [Screen()]


def screen() -> Screen:
    """The screen of this process."""
    return _shown[-1]


@contextlib.contextmanager
def shown(new: Screen) -> Iterator[None]:
    """Let `new` be the screen of this process."""
    _shown.append(new)
    try:
        yield
    finally:
        _shown.pop().close()


def tell_end(run: report.RunReport, rows: Sequence[str], log: Path | None = None) -> int:
    """Print how a run ended; returns the exit code that says the same.

    Args:
        run: its report.
        rows: what the table of the stages still lacks.
        log: the file that holds what it printed.
    """
    from flows.views.run_texts import ending  # templates take time to import
    from flows.views.run_view import RunView

    screen().close()
    view = RunView(run, Path(run.folder))
    lines = [*rows, f"{'wall time':<{report.NAMES}} {'':<9} {seconds_since_start():7.1f}", "", ending(view).rstrip()]
    if log is not None:
        lines.append(f"log of this run: {log}")
    streams.say("\n".join(lines) + "\n")
    if run.error is not None:
        print_last(f"error: {run.error}" if run.interrupted is None else run.error, "red")
    elif run.paused is not None:
        print_last(run.paused, "yellow")
    return exit_code(run)


def exit_code(run: report.RunReport) -> int:
    """The exit code that says how a run ended."""
    if run.interrupted is not None and stop.number:
        return stop.exit_code()
    return CODES.get(report.outcome(run), FAILED if run.interrupted is not None else 0)


def seconds_since_start() -> float:
    """Since this process began, imports included (Linux; elsewhere since it first looked at the time)."""
    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return time.perf_counter()
    return time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[19]) / os.sysconf("SC_CLK_TCK")
