"""Log file of a run, with all output of its stages and of Prefect."""

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
SKIPPED_PREFIXES = ("Finished in state", "Task run failed with state", "Flow run failed with state", "View at ")
"""Prefixes of Prefect's lines that are not logged: states, which the end of a run reports more readably, and links to
pages that a temporary server does not serve."""
LOG_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}\.log")


def new_log(project: Path) -> Path:
    """Return the path of a new log file, relative to the project."""
    folder = project / LOGS
    folder.mkdir(parents=True, exist_ok=True)
    return LOGS / f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.log"


def check_log(log: str | None) -> str | None:
    """Validate and return the log path of a run on a worker, which its page links to and `podium clean` removes.

    Raises:
        ParamsError: it is not a file in the folder of logs.
    """
    if log is None or (Path(log).parent == LOGS and LOG_NAME.fullmatch(Path(log).name)):
        return log
    raise ParamsError(f"log={log[:80]!r} is not a log file in {LOGS}: leave the parameter out")


@contextlib.contextmanager
def redirect_logging(path: Path) -> Iterator[None]:
    """Redirect log messages of this process from the terminal to the file `path`."""
    file = _LogFile(path, encoding="utf-8", errors="backslashreplace")
    file.addFilter(lambda record: not record.getMessage().startswith(SKIPPED_PREFIXES))
    known = (logging.getLogger(name) for name in [*logging.root.manager.loggerDict] if name.startswith("prefect"))
    loggers = [logging.root, *(logger for logger in known if any(map(_writes_to_a_terminal, logger.handlers)))]
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
        with contextlib.suppress(OSError):  # a full disk was already reported
            file.close()


class _LogFile(logging.FileHandler):
    """File handler that reports lost lines once, in one line. A full disk then ends the run with its own error."""

    _told = False

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 (of logging)
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            super().handleError(record)
        elif not self._told:
            self._told = True
            streams.note(f"{self.baseFilename} cannot be written ({error.strerror}): log lines are lost")


def _writes_to_a_terminal(handler: logging.Handler) -> bool:
    return isinstance(handler, logging.StreamHandler) and not isinstance(handler, logging.FileHandler)
