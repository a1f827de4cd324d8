"""Terminal output of a run: progress of its stages while it runs, then results, pages, and the reason of a failure.

On a terminal each running stage has a progress bar. Elsewhere (CI, a pipe, a file) a stage gets a line at its start,
one from time to time and one at its end, without escape codes. Output of stages goes to the log of the run; here it
appears only with --verbose, except for notes, which are always shown.
"""

import contextlib
import os
import re
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.text import Text

from flows.runs import report
from flows.runs.report import StageRecord, format_stage
from flows.runs.stopping import stop
from tasks.stage import streams
from tasks.stage.errors import FAILED, PAUSED, REJECTED
from tasks.stage.streams import printable

LINE_INTERVAL_S = 30.0
"""Minimum seconds between two progress lines of a stage."""
REMAINING = re.compile(r"(?:\d+ h \d+ min|(?:\d+ min )?\d+ s) left$")
"""End of the text of a progress that tells the time left."""
STATUS_STYLES = {"failed": "red", "paused": "yellow", "skipped": "dim", "restored": "cyan"}
CODES = {"failed": FAILED, "rejected": REJECTED, "paused": PAUSED}
"""Outcome -> exit code; 0 for all others."""


class Screen:
    """Plain lines, for output that is not a terminal; without a stream, as on workers, no one receives them."""

    def __init__(self, stream: IO[str] | None, verbose: bool) -> None:
        self._stream, self._verbose = stream, verbose
        self._shown_at: dict[str, float] = {}
        """Running stage -> time of its last line."""

    def begin(self, stage: str) -> None:
        """Show that a stage begins; its first progress line is due at once."""
        self._shown_at[stage] = time.monotonic() - LINE_INTERVAL_S
        self.tell(f"{stage}: started")

    def line(self, text: str) -> None:
        """Show a line that a stage printed, with --verbose."""
        if self._verbose:
            self.tell(text)

    def progress(self, stage: str, percent: int, text: str) -> None:
        """Show the progress of a stage, if it is due and tells the time left."""
        now = time.monotonic()
        if self._verbose:
            self.tell(format_progress(percent, text))
        elif now - self._shown_at[stage] >= LINE_INTERVAL_S and percent < 100 and REMAINING.search(text):
            self._shown_at[stage] = now
            self.tell(f"{stage}: {format_progress(percent, text)}")

    def tell(self, text: str) -> None:
        """Show a message."""
        if self._stream is None:
            return
        with streams.outlive_output():
            self._stream.write(printable(text) + "\n")

    def end(self, record: StageRecord) -> None:
        """Show that a stage has ended."""
        self._shown_at.pop(record.name, None)
        self.tell(format_stage(record))

    def close(self) -> None:
        """Remove all progress bars."""


class BarScreen(Screen):
    """Progress bars below plain lines, for a terminal."""

    def __init__(self, console: Console, verbose: bool) -> None:
        super().__init__(None, verbose)
        self._tasks: dict[str, TaskID] = {}
        # The figure begins the line: a narrow terminal cuts the end of each column.
        stage = TextColumn("{task.fields[share]:>4} {task.description:<24}", markup=False)
        left = TextColumn("{task.fields[left]}", markup=False, style="cyan")
        columns = (stage, BarColumn(20), TimeElapsedColumn(), left)
        # Other output must not be redirected through the bars: standard output is for results.
        self._progress = Progress(*columns, console=console, redirect_stdout=False, redirect_stderr=False)

    def begin(self, stage: str) -> None:
        self._tasks[stage] = self._progress.add_task(stage, total=None, share="", left="")
        self._progress.start()

    def progress(self, stage: str, percent: int, text: str) -> None:
        if self._verbose:
            self.tell(format_progress(percent, text))
        left, task = REMAINING.search(text), self._tasks[stage]
        self._progress.update(task, total=100, completed=percent, share=f"{percent}%", left=left[0] if left else "")

    def tell(self, text: str) -> None:
        self._progress.console.print(Text(printable(text)), soft_wrap=True)

    def end(self, record: StageRecord) -> None:
        self._hide(record.name)
        text = Text(printable(format_stage(record)))
        text.highlight_words([record.status], STATUS_STYLES.get(record.status, "green"))
        self._progress.console.print(text, soft_wrap=True)

    def close(self) -> None:
        self._hide(*self._tasks)

    def _hide(self, *stages: str) -> None:
        for stage in stages:
            self._progress.remove_task(self._tasks.pop(stage))
        if not self._tasks:
            self._progress.stop()


def format_progress(percent: int, text: str) -> str:
    """Return the line of a stage's progress."""
    return f"[{percent:3}%] {text}"


def make_screen(verbose: bool) -> Screen:
    """Return the screen for the current standard output."""
    console = Console(highlight=False)
    if console.is_terminal and not console.is_dumb_terminal:
        return BarScreen(console, verbose)
    return Screen(sys.stdout, verbose)


def print_reason(text: str, style: str) -> None:
    """Print the reason why a run did not finish to standard error, in color on a terminal."""
    sys.stdout.flush()
    Console(stderr=True, highlight=False).print(Text(printable(text), style=style), soft_wrap=True)


_screens: list[Screen] = [Screen(None, verbose=False)]


def current_screen() -> Screen:
    """Return the screen of this process."""
    return _screens[-1]


@contextlib.contextmanager
def use_screen(new: Screen) -> Iterator[None]:
    """Use `new` as the screen of this process in the body."""
    _screens.append(new)
    try:
        yield
    finally:
        _screens.pop().close()


def print_end(run: report.RunReport, rows: Sequence[str], log: Path | None = None) -> int:
    """Print the end of a run with the rows that the table of stages still lacks, and return its exit code."""
    from flows.views.run_view import RunView, format_end  # templates take time to import

    current_screen().close()
    view = RunView(run, Path(run.folder))
    wall_time = f"{'wall time':<{report.NAMES}} {'':<9} {seconds_since_start():7.1f}"
    lines = [*rows, wall_time, "", format_end(view).rstrip()]
    if log is not None:
        lines.append(f"log: {log}")
    with streams.outlive_output():
        streams.say("\n".join(lines) + "\n")
    if run.error is not None:
        print_reason(f"error: {run.error}" if run.interrupted is None else run.error, "red")
    elif run.paused is not None:
        print_reason(run.paused, "yellow")
    return exit_code(run)


def exit_code(run: report.RunReport) -> int:
    """Return the exit code for the outcome of a run."""
    if run.interrupted is not None and stop.number:
        return stop.exit_code()
    return CODES.get(report.run_outcome(run), FAILED if run.interrupted is not None else 0)


def seconds_since_start() -> float:
    """Return seconds since the start of this process, with imports (Linux; elsewhere perf_counter's value)."""
    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return time.perf_counter()
    return time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[19]) / os.sysconf("SC_CLK_TCK")
