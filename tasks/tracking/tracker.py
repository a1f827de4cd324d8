"""How every tracker works: a thread brings what a stage measures to one backend, and no one waits for it.

A backend whose server is away is asked again every now and then, and gets all of what waits at once. A measurement of
an update that the run already has under that name is left out: a training that goes on from a checkpoint repeats some.
"""

from __future__ import annotations

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
"""Between two tries with a server that is away."""
TROUBLED_SECONDS = 5.0
"""What a tracker may take after the end of a training when it cannot record: it tries once more."""
MAX_WAITING = 20_000
"""Measured updates kept for a server that is away, some 10 MB; older ones go first."""
SECRET = re.compile(r"pass(word|phrase)?$|secret|token|credential|key", re.IGNORECASE)
"""Names of variables of the environment whose values are said to nobody."""
SHORTEST_SECRET = 6
SETTINGS = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_ENABLE_ASYNC_LOGGING": "false",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "5",  # a server that hangs is found out in seconds: it is asked again later anyway
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_LOGGING_LEVEL": "CRITICAL",
    "WANDB_ERROR_REPORTING": "false",
    "WANDB_SILENT": "true",
}
"""What the libraries read from the environment when they are imported, unless it says otherwise."""
PACKAGES = {"mlflow": "mlflow-skinny, or mlflow"}
"""What pip calls a backend, where it is not the backend's name."""


@dataclass(frozen=True)
class Point:
    """Measurements after one update."""

    update: int
    time: float
    """Seconds since 1970."""
    values: Mapping[str, float]


@dataclass(frozen=True)
class End:
    """How a run ended."""

    status: str
    """finished, paused, failed, or killed."""
    update: int = 0
    """The last one, to which the figures belong."""
    time: float = 0.0
    figures: Mapping[str, Any] = field(default_factory=dict)

    @property
    def numbers(self) -> dict[str, float]:
        """Figures that become metrics."""
        return {name: float(x) for name, x in self.figures.items() if not isinstance(x, str)}

    @property
    def words(self) -> dict[str, str]:
        """Figures that a backend has to keep elsewhere."""
        return {name: x for name, x in self.figures.items() if isinstance(x, str)}


Event = Mapping[str, Any] | Point | End
"""Parameters, measurements, or the end."""


class Backend(Protocol):
    """One way to record a run."""

    away: tuple[type[Exception], ...]
    """Errors that may pass: it is asked again."""

    def open(self, run: Mapping[str, Any]) -> int:
        """Begin the run `run["id"]`, or continue it; returns the last update that it already has."""

    def configure(self, config: Mapping[str, Any]) -> None:
        """Record parameters."""

    def log(self, points: list[Point]) -> None:
        """Record measurements of some updates: all of them, or an error, after which it is opened again."""

    def close(self, end: End) -> None:
        """Record the figures and the end."""


def load_backend(name: str) -> Callable[[Callable[[str], None]], Backend]:
    """Import the class of a backend, and with it the backend's package, which takes seconds."""
    for variable, value in SETTINGS.items():
        os.environ.setdefault(variable, value)
    return importlib.import_module(f"tasks.tracking.track_{name}").BACKEND


class Tracker:
    """One backend in a thread of its own: a library that waits for its server keeps no one but this thread waiting.

    A thread is enough. Each of the libraries gives up a server that never answers (MLflow after seconds, as SETTINGS
    say; wandb at the beginning and at the end), and a thread that was left behind ends with the process. MLflow's own
    asynchronous mode would not do: it drops what the server did not take, and the end of the process waits for every
    batch. What was measured reaches the backend once and in order, however often that is away.

    Args:
        name: one of tracking.backends.
        run: from trackers.description.
        say: takes lines for people.
    """

    backend: Backend
    """Made by the thread."""

    def __init__(self, name: str, run: Mapping[str, Any], say: Callable[[str], None]) -> None:
        self._name, self._run, self._print = name, run, say
        self._events: queue.Queue[Event] = queue.Queue()
        self._thread = threading.Thread(target=self._work, name=f"tracker {name}", daemon=True)
        self._until = 0.0
        """When it has to have ended, on time.monotonic's clock; 0: it may go on."""
        self._config: dict[str, Any] = dict(run.get("config", {}))
        self._waiting: list[Point] = []
        self._last: dict[str, int] = {}
        """Name of a metric -> the last update it was recorded for by this process."""
        self._floor: int | None = None
        """The last update the run had before; None: it could not be asked yet."""
        self._too_many = 0
        self._troubled = self._told = self._left_behind = False
        """Whether it said last that it cannot record; whether people know that the run had updates before; whether no
        one waits for it, or hears it, any more."""
        self._next_try = 0.0

    def send(self, event: Event) -> None:
        """Leave parameters or measurements to the thread, which starts with the first of them."""
        if self._thread.ident is None:  # not before: the stage has started its device process by then
            self._thread.start()
        if self._thread.is_alive():
            self._events.put(event)

    def end(self, end: End, seconds: float) -> None:
        """Send the end of the run, and nothing after it."""
        self._until = time.monotonic() + (min(seconds, TROUBLED_SECONDS) if self._troubled else seconds)
        self.send(end)

    def wait(self) -> None:
        """Wait until it has recorded the end, and say so if it has not."""
        self._thread.join(max(0.0, self._until - time.monotonic()))
        if self._thread.is_alive():
            self.say("did not finish in time and was left behind; the training lacks nothing")
            self._left_behind = True

    def stop(self, seconds: float) -> None:
        """Let a tracker that was told of no end keep what it has."""
        if self._thread.ident is not None and not self._until:
            self.end(End("killed"), seconds)
            self._left_behind = True
            self._thread.join(max(0.0, self._until - time.monotonic()))

    def say(self, text: str, troubled: bool = False) -> None:
        """Say a text for people, without secrets; `troubled` means that nothing can be recorded now."""
        self._troubled = troubled
        if not self._left_behind:
            self._print(f"tracking: {self._name}: {without_secrets(text)}")

    def _work(self) -> None:
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
        """Say which error ended the thread: what a library raises besides `away` costs the training nothing."""
        if error is not None:
            self.say(f"stopped recording; {in_one_line(error)}", True)
        return True

    def take(self, event: Event) -> None:
        """Keep parameters and measurements until they are recorded; at the end, record what there is."""
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
        """Hand over all that waits, unless the last try failed a moment ago."""
        if not at_once and time.monotonic() < self._next_try:
            return
        try:
            self._hand_over()
        except self.backend.away as error:
            self._next_try = time.monotonic() + AGAIN_SECONDS
            self._floor, self._last, self._told = None, {}, True  # it may have taken some: it is asked again
            if not self._troubled:
                self.say(f"cannot record now, and tries again ({in_one_line(error)})", True)
            return
        if self._troubled:
            self.say("records again, nothing was lost so far")

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
        """Return what the run does not have yet."""
        if not self._told and self._waiting and self._waiting[0].update <= floor:
            self._told = True
            self.say(f"the run {self._run['id']} holds updates up to {floor}; they are not recorded again")
        points = []
        for point in self._waiting:
            values = {name: x for name, x in point.values.items() if point.update > self._last.get(name, floor)}
            self._last.update(dict.fromkeys(values, point.update))
            if values:
                points.append(Point(point.update, point.time, values))
        return points

    def _close(self, end: End) -> None:
        """Hand over the rest and end the run; say what is missing there."""
        self.record(at_once=True)
        if not self._troubled:
            try:
                self.backend.close(end)
            except self.backend.away as error:
                self.say(f"the end could not be recorded ({in_one_line(error)})", True)
        missing = self._too_many + len(self._waiting)
        if missing:
            self.say(f"{missing} measured updates are missing there; history.csv has them", self._troubled)


def in_one_line(error: BaseException) -> str:
    """An error for people: its kind and the first line of what it says, cut to 300 characters."""
    text = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {text[:300]}"


def without_secrets(text: str) -> str:
    """The text with *** for the user and password of every URL, and for secrets of the environment."""
    for name, value in os.environ.items():
        if SECRET.search(name) and len(value) >= SHORTEST_SECRET:
            text = text.replace(value, "***")
    return re.sub(r"://[^/@\s]+@", "://***@", text)
