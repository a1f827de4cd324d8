"""Progress, time limit and memory profile of a compilation.

Compiling is native code that takes minutes to tens of minutes and cannot be interrupted. A user saw it stay at 84 % for
70 minutes without output (graphcore/poptorch issue 8).

libpva reads the memory of IPUs from the profile of a compilation, if Poplar is configured to write one:

    POPLAR_ENGINE_OPTIONS='{"autoReport.outputMemoryProfile": "true", "autoReport.directory": "profiles"}'

autoReport.all enables it as well. PopTorch writes profile.pop into separate folders for training and inference (the
names in libpva's documentation; not tested with a real profile, as neither an IPU nor libpva was available).
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import io
import json
import os
import re
import sys
import threading
import time
from pathlib import Path
from typing import Any, Dict, Iterator, Mapping, Optional, TextIO, Tuple

from ipu_model.core.errors import ConfigError
from ipu_model.core.progress import Emit
from ipu_model.core.units import format_duration
from ipu_model.distributed.process import exit_on_signals

TIMEOUT_VARIABLE = "PODIUM_COMPILE_TIMEOUT"
DEFAULT_TIMEOUT = 7200.0
"""Seconds. Reports of BERT-large are 10 to 30 minutes."""
OPTIONS = "POPLAR_ENGINE_OPTIONS"
PROFILE_OPTIONS = ("autoReport.all", "autoReport.outputMemoryProfile")
LIBRARY = "pva"
MB = float(1 << 20)
FAILED = 1
PERCENT = re.compile(r"(\d+)%\|")
"""Share in PopTorch's tqdm bar: `Graph compilation:  45%|####  | 45/100`."""


def compile_timeout(environ: Mapping[str, str]) -> Optional[float]:
    """Return the time limit of a compilation in seconds, from PODIUM_COMPILE_TIMEOUT; None for no limit.

    Raises:
        ConfigError: the value is not a number of seconds.
    """
    text = environ.get(TIMEOUT_VARIABLE)
    if text is None or text == "":
        return DEFAULT_TIMEOUT
    if not re.fullmatch(r"\d+(\.\d+)?", text):
        raise ConfigError(f"{TIMEOUT_VARIABLE}={text!r} must be a number of seconds, for example 3600; 0 for no limit")
    return float(text) or None


@contextlib.contextmanager
def watch_compile(
    emit: Emit, timeout: Optional[float], every: float = 15.0, what: str = "the program", log: Optional[Path] = None
) -> Iterator[None]:
    """Report the progress of compiling `what` every `every` seconds, and end the process at the time limit, if any.

    PopTorch has no public API for its progress, but it shows a tqdm bar on sys.stderr, which is parsed; it releases the
    GIL while it compiles. During the compilation, SIGTERM and Ctrl-C end the process immediately, as there is nothing
    to save yet. The error names `log`.
    """
    bar = _Bar(sys.stderr)
    ended = threading.Event()
    watch = threading.Thread(target=_watch, args=(emit, timeout, every, what, log, bar, ended), daemon=True)
    with exit_on_signals(), contextlib.redirect_stderr(bar):
        watch.start()
        try:
            yield
        finally:
            ended.set()
            watch.join()


class _Bar(io.TextIOBase):
    """Replacement of sys.stderr that parses the share of PopTorch's bar and forwards everything else."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.percent: Optional[int] = None

    def write(self, text: str) -> int:
        shares = PERCENT.findall(text)
        if shares:
            self.percent = int(shares[-1])
            return len(text)
        return self._stream.write(text)

    def flush(self) -> None:
        self._stream.flush()

    def fileno(self) -> int:
        return self._stream.fileno()


def _watch(
    emit: Emit, limit: Optional[float], every: float, what: str, log: Optional[Path], bar: _Bar, end: threading.Event
) -> None:
    started = time.monotonic()
    while True:
        elapsed = time.monotonic() - started
        if limit is not None and elapsed >= limit:
            emit("error", type="CompileTimeout", text=_too_long(what, limit, bar.percent, log))
            # Native code cannot be interrupted, and exit handlers would wait for it.
            sys.stdout.flush()
            bar.flush()
            os._exit(FAILED)
        pause = every if limit is None else min(every, limit - elapsed)
        if end.wait(pause):
            return
        share = "" if bar.percent is None else f", {bar.percent} %"
        emit("message", text=f"compiling {what}: {format_duration(int(time.monotonic() - started))}{share}")


def _too_long(what: str, timeout: float, percent: Optional[int], log: Optional[Path]) -> str:
    where = "" if percent is None else f"; it was at {percent} %"
    hint = "" if log is None else f" Log: {log}."
    return (
        f"compiling {what} did not end within {format_duration(int(timeout))}{where}. If it was still progressing, "
        f"raise {TIMEOUT_VARIABLE} (seconds; 0 for no limit); if not, place fewer layers on each IPU "
        f"(layers_per_ipu), lower micro_batch_size, and run with POPTORCH_LOG_LEVEL=DEBUG to see where it stops.{hint}"
    )


class CompileProfile:
    """Profile of one compilation, of training or inference; older profiles in its folder belong to other programs.

    Create it before the compilation, and call `find` after it. A program from the cache writes no profile.
    """

    def __init__(self, environ: Mapping[str, str], training: bool) -> None:
        self._folder = _profile_folder(environ, training)
        self._before = self._stamps()
        self._written: Optional[Path] = None
        self._fullest_mb: Optional[float] = None

    def find(self) -> None:
        """Find the newest profile that is new or changed since the compilation began."""
        written = [(stamp, path) for path, stamp in self._stamps().items() if self._before.get(path) != stamp]
        self._written = max(written)[1] if written else None

    def fullest_ipu_mb(self) -> Optional[float]:
        """Return the memory of the fullest IPU, gaps between tensors included; None without a profile or libpva.

        A profile can have gigabytes, so it is read in the first call.
        """
        path, self._written = self._written, None
        if path is not None and importlib.util.find_spec(LIBRARY) is not None:
            self._fullest_mb = _read_fullest_mb(path)
        return self._fullest_mb

    def _stamps(self) -> Dict[Path, Tuple[int, int]]:
        """Return, for the path of each profile, its modification time and its size."""
        if self._folder is None:
            return {}
        profiles = [(path, path.stat()) for path in self._folder.glob("**/profile.pop") if path.is_file()]
        return {path: (status.st_mtime_ns, status.st_size) for path, status in profiles}


def _profile_folder(environ: Mapping[str, str], training: bool) -> Optional[Path]:
    """Return the folder for profiles of such a program; None if Poplar is not configured to write them."""
    try:
        options = json.loads(environ.get(OPTIONS, "{}"))
    except ValueError:
        return None  # Poplar reports invalid options
    if not isinstance(options, dict) or not any(str(options.get(name)).lower() == "true" for name in PROFILE_OPTIONS):
        return None
    return Path(str(options.get("autoReport.directory", "."))) / ("training" if training else "inference")


def _read_fullest_mb(path: Path) -> Optional[float]:
    """Read the memory of the fullest IPU, MB of 2**20 bytes."""
    report: Any = importlib.import_module(LIBRARY).openReport(str(path))
    each = int(report.compilation.target.tilesPerIpu)
    amounts: Dict[int, float] = {}
    for index, tile in enumerate(report.compilation.tiles):
        amounts[index // each] = amounts.get(index // each, 0.0) + float(tile.memory.total.includingGaps)
    return max(amounts.values()) / MB if amounts else None
