"""The log of a run: every line that its stages print and that Prefect says, in a file instead of on the terminal."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from tasks.stage import artifacts, streams
from tasks.stage.errors import ParamsError

LOGS = artifacts.RUNS / "logs"
SAID_BETTER = ("Finished in state", "Task run failed with state", "Flow run failed with state", "View at ")
"""How Prefect's lines begin that the end of a run says better: the state as one escaped line, and a link to a page that
the server of a single run does not serve."""
LOG_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}\.log")


def new_log(project: Path) -> Path:
    """The place of the log of a run that begins now; from the project's folder."""
    folder = project / LOGS
    folder.mkdir(parents=True, exist_ok=True)
    return LOGS / f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.log"


def checked_log(log: str | None) -> str | None:
    """Return what a sent run states as its log, which is a link on its page and a file that cleaning removes.

    Raises:
        ParamsError: it is not a file in the folder of logs.
    """
    if log is None or (Path(log).parent == LOGS and LOG_NAME.fullmatch(Path(log).name)):
        return log
    raise ParamsError(f"log={log[:80]!r}: the log of a run is a file in {LOGS}; leave the parameter out")


@contextlib.contextmanager
def logged(path: Path) -> Iterator[None]:
    """Let what is logged in this process go to the file `path`, and not to the terminal."""
    file = _LogFile(path, encoding="utf-8", errors="backslashreplace")
    file.addFilter(lambda record: not record.getMessage().startswith(SAID_BETTER))
    known = (logging.getLogger(name) for name in [*logging.root.manager.loggerDict] if name.startswith("prefect"))
    loggers = [logging.root, *(one for one in known if any(map(_writes_to_a_terminal, one.handlers)))]
    before = [(logger, list(logger.handlers)) for logger in loggers]
    terminal = [handler for handler in logging.root.handlers if isinstance(handler, logging.StreamHandler)]
    file.setFormatter(next((handler.formatter for handler in terminal if handler.formatter is not None), None))
    try:
        for logger in loggers:
            logger.handlers = [handler for handler in logger.handlers if not _writes_to_a_terminal(handler)]
            logger.addHandler(file)
        yield
    finally:
        for logger, handlers in before:
            logger.handlers = handlers
        with contextlib.suppress(OSError):  # what a full disk did not take was said to be lost
            file.close()


class _LogFile(logging.FileHandler):
    """Says once, in a line, that lines of it are lost: what fills the disk ends the run with a word of its own."""

    _told = False

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 (of logging)
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            super().handleError(record)
        elif not self._told:
            self._told = True
            streams.note(f"{self.baseFilename} cannot be written ({error.strerror}): lines of it are lost")


def _writes_to_a_terminal(handler: logging.Handler) -> bool:
    return isinstance(handler, logging.StreamHandler) and not isinstance(handler, logging.FileHandler)
