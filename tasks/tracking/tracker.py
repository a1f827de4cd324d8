"""Tracker thread: it passes a stage's metrics to one backend, and nothing waits for it.

If the backend's server is unavailable, the thread retries periodically and then sends everything that waits. Metrics of
an update that the run already has under that name are skipped, because a training resumed from a checkpoint repeats
some updates.
"""

import contextlib
import importlib
import os
import queue
import re
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Protocol

AGAIN_SECONDS = 10.0
"""Seconds between retries with an unavailable server."""
TROUBLED_SECONDS = 5.0
"""Time for one last retry after the end of a training."""
MAX_WAITING = 20_000
"""Maximum number of updates kept for an unavailable server, about 10 MB; the oldest are dropped first."""
SECRET = re.compile(r"pass(word|phrase)?$|secret|token|credential|key", re.IGNORECASE)
"""Environment variables whose values must never be printed."""
SHORTEST_SECRET = 6
SETTINGS = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_ENABLE_ASYNC_LOGGING": "false",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "5",  # detects a hanging server in seconds; it is retried later
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_LOGGING_LEVEL": "CRITICAL",
    "WANDB_ERROR_REPORTING": "false",
    "WANDB_SILENT": "true",
}
"""Environment of the libraries at import, unless the user's environment sets it."""
PACKAGES = {"mlflow": "mlflow-skinny, or mlflow"}
"""Backend -> its name for pip, if it differs."""


@dataclass(frozen=True)
class Point:
    """Metrics after one update."""

    update: int
    time: float
    """Seconds since 1970."""
    values: Mapping[str, float]


@dataclass(frozen=True)
class End:
    """End of a run."""

    status: str
    """finished, paused, failed, or killed."""
    update: int = 0
    """Last update, to which the figures belong."""
    time: float = 0.0
    figures: Mapping[str, Any] = field(default_factory=dict)

    @property
    def numbers(self) -> dict[str, float]:
        """Figures that become metrics."""
        return {name: float(x) for name, x in self.figures.items() if not isinstance(x, str)}

    @property
    def texts(self) -> dict[str, str]:
        """Text figures, which a backend stores elsewhere."""
        return {name: x for name, x in self.figures.items() if isinstance(x, str)}


Event = Mapping[str, Any] | Point | End
"""Parameters, metrics, or the end."""


class Backend(Protocol):
    """Interface of one tracking library."""

    away: tuple[type[Exception], ...]
    """Temporary errors, after which it is retried."""

    def open(self, run: Mapping[str, Any]) -> int:
        """Start or resume the run `run["id"]`; return the last update that it already has."""

    def configure(self, config: Mapping[str, Any]) -> None:
        """Log parameters."""

    def log(self, points: list[Point]) -> None:
        """Log metrics of some updates: all of them, or raise an error, after which the backend is opened again."""

    def close(self, end: End) -> None:
        """Log the figures and end the run."""


def load_backend(name: str) -> Callable[[Callable[[str], None]], Backend]:
    """Import the class of a backend and its package, which takes seconds."""
    for variable, value in SETTINGS.items():
        os.environ.setdefault(variable, value)
    return importlib.import_module(f"tasks.tracking.track_{name}").BACKEND


class Tracker:
    """One backend in its own thread; a library that waits for its server blocks only this thread.

    A thread is sufficient. Each library gives up on a server that never responds (MLflow after seconds, as SETTINGS
    configure; wandb at the start and at the end), and an abandoned thread ends with the process. MLflow's own
    asynchronous mode is not suitable: it drops data that the server did not accept, and the process cannot exit before
    every batch is sent. Each metric reaches the backend once and in order, even if it is unavailable for a while.

    Args:
        name: one of tracking.backends.
        run: description from trackers.describe_run.
        say: receives messages for users.
    """

    backend: Backend
    """Created by the thread."""

    def __init__(self, name: str, run: Mapping[str, Any], say: Callable[[str], None]) -> None:
        self._name, self._run, self._print = name, run, say
        self._events: queue.Queue[Event] = queue.Queue()
        self._thread = threading.Thread(target=self._run_backend, name=f"tracker {name}", daemon=True)
        self._until = 0.0
        """Deadline on the clock of time.monotonic; 0: none."""
        self._config: dict[str, Any] = dict(run.get("config", {}))
        self._waiting: list[Point] = []
        self._last: dict[str, int] = {}
        """Metric -> last update that this process logged."""
        self._floor: int | None = None
        """Last update of the run before this process; None: not known yet."""
        self._too_many = 0
        self._troubled = self._told = self._left_behind = False
        """It last reported a failure; it reported earlier updates of the run; it was abandoned and must not print."""
        self._next_try = 0.0

    def send(self, event: Event) -> None:
        """Queue parameters or metrics; the first call starts the thread."""
        if self._thread.ident is None:  # not earlier, so that the device process starts first
            self._thread.start()
        if self._thread.is_alive():
            self._events.put(event)

    def end(self, end: End, seconds: float) -> None:
        """Queue the end of the run, after which nothing follows."""
        self._until = time.monotonic() + (min(seconds, TROUBLED_SECONDS) if self._troubled else seconds)
        self.send(end)

    def wait(self) -> None:
        """Wait until the end is logged, and report if it is not."""
        self._thread.join(max(0.0, self._until - time.monotonic()))
        if self._thread.is_alive():
            self.say("did not finish in time and was abandoned; the training is not affected")
            self._left_behind = True

    def stop(self, seconds: float) -> None:
        """Give a tracker without an end event some time to save its data."""
        if self._thread.ident is not None and not self._until:
            self.end(End("killed"), seconds)
            self._left_behind = True
            self._thread.join(max(0.0, self._until - time.monotonic()))

    def say(self, text: str, troubled: bool = False) -> None:
        """Print a message without secrets; `troubled` means that nothing can be logged now."""
        self._troubled = troubled
        if not self._left_behind:
            self._print(f"tracking: {self._name}: {redact(text)}")

    def _run_backend(self) -> None:
        with contextlib.ExitStack() as stack:
            stack.push(self._broke)
            try:
                make = load_backend(self._name)
            except ImportError as error:
                package = PACKAGES.get(self._name, self._name)
                self.say(f"is not installed ({error}): pip install {package}", True)
                return
            self.backend = make(self.say)
            while True:
                event: Event | None = None
                with contextlib.suppress(queue.Empty):
                    event = self._events.get(timeout=AGAIN_SECONDS)
                if event is not None:
                    self.take(event)
                if isinstance(event, End):
                    return
                if self._events.empty():
                    self.record()

    def _broke(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        """Report the error that ended the thread; errors other than `away` do not affect the training."""
        if error is not None:
            self.say(f"stopped recording; {format_error(error)}", True)
        return True

    def take(self, event: Event) -> None:
        """Queue parameters and metrics; at the end, log everything."""
        if isinstance(event, End):
            self._close(event)
        elif isinstance(event, Point):
            self._waiting.append(event)
            if len(self._waiting) > MAX_WAITING:
                del self._waiting[0]
                self._too_many += 1
        else:
            self._config.update(event)

    def record(self, at_once: bool = False) -> None:
        """Log everything that waits, unless the last attempt failed recently."""
        if not at_once and time.monotonic() < self._next_try:
            return
        try:
            self._hand_over()
        except self.backend.away as error:
            self._next_try = time.monotonic() + AGAIN_SECONDS
            self._floor, self._last, self._told = None, {}, True  # it may have accepted some data, so ask it again
            if not self._troubled:
                self.say(f"cannot record now, retrying ({format_error(error)})", True)
            return
        if self._troubled:
            self.say("recording again, nothing was lost so far")

    def _hand_over(self) -> None:
        if self._floor is None:
            self._floor = self.backend.open(self._run)
        if self._config:
            self.backend.configure(self._config)
            self._config = {}
        if points := self._new(self._floor):
            self.backend.log(points)
        self._waiting.clear()

    def _new(self, floor: int) -> list[Point]:
        """Return the metrics that the run does not have yet."""
        if not self._told and self._waiting and self._waiting[0].update <= floor:
            self._told = True
            self.say(f"the run {self._run['id']} already has updates up to {floor}; they are skipped")
        points = []
        for point in self._waiting:
            values = {name: x for name, x in point.values.items() if point.update > self._last.get(name, floor)}
            self._last.update(dict.fromkeys(values, point.update))
            if values:
                points.append(Point(point.update, point.time, values))
        return points

    def _close(self, end: End) -> None:
        """Log the rest and end the run; report missing data."""
        self.record(at_once=True)
        if not self._troubled:
            try:
                self.backend.close(end)
            except self.backend.away as error:
                self.say(f"the end could not be recorded ({format_error(error)})", True)
        missing = self._too_many + len(self._waiting)
        if missing:
            self.say(f"{missing} updates are missing in the tracker; history.csv has them", self._troubled)


def format_error(error: BaseException) -> str:
    """Format an error: its class and the first line of its message, at most 300 characters."""
    text = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {text[:300]}"


def redact(text: str) -> str:
    """Replace user and password in URLs, and secrets from the environment, by ***."""
    for name, value in os.environ.items():
        if SECRET.search(name) and len(value) >= SHORTEST_SECRET:
            text = text.replace(value, "***")
    return re.sub(r"://[^/@\s]+@", "://***@", text)
