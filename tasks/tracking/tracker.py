"""What every tracker's process does: takes lines of JSON from its stage, and hands them to one backend.

    {"run": {...}}                                   first: tracking.description
    {"config": {...}}                                more of the run's parameters
    {"update": 10, "time": ..., "values": {...}}     measurements after an update
    {"end": "finished", "figures": {...}, ...}       last; where it is missing, the stage was killed

It answers with {"say": text for people, "troubled": whether it cannot record now}. A backend whose server is away is
asked again every now and then, and gets all of what waits at once. A measurement of an update that the run already has
under that name is left out: a training that continues from a checkpoint repeats some.
"""

from __future__ import annotations

import json
import os
import re
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Protocol

from tasks.project.process import takes_no_words

AGAIN_SECONDS = 10.0
"""Between two tries with a server that is away."""
MAX_WAITING = 20_000
"""Measured updates kept for a server that is away, some 10 MB; older ones go first."""
POINTS_AT_ONCE = 100
"""Updates in one call of a backend."""
ORPHAN_SECONDS = 10
"""What is left for the end when the stage was killed."""
SECRET = re.compile(r"pass(word|phrase)?$|secret|token|credential|key", re.IGNORECASE)
"""Names of variables of the environment whose values are said to nobody."""
SHORTEST_SECRET = 6


Say = Callable[[str, bool], None]


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


class Recorder:
    """Brings what was measured to a backend, once and in order, however often that is away.

    Args:
        backend: where to.
        run: from tracking.description.
        say: takes a text for people, and whether it means that nothing can be recorded now.
    """

    def __init__(self, backend: Backend, run: Mapping[str, Any], say: Say) -> None:
        self._backend, self._run, self._say = backend, run, say
        self._config: dict[str, Any] = dict(run["config"])
        self._waiting: list[Point] = []
        self._last: dict[str, int] = {}
        """Name of a metric -> the last update it was recorded for by this process."""
        self._floor: int | None = None
        """The last update the run had before; None: it could not be asked yet."""
        self._too_many = 0
        self._troubled = self._told = False
        """Whether it cannot record now; whether people know that the run had updates before."""
        self._next_try = 0.0

    def configure(self, config: Mapping[str, Any]) -> None:
        """Add parameters of the run."""
        self._config.update(config)

    def add(self, point: Point) -> None:
        """Take what was measured after an update."""
        self._waiting.append(point)
        if len(self._waiting) > MAX_WAITING:
            del self._waiting[0]
            self._too_many += 1

    def work(self, at_once: bool = False) -> None:
        """Hand over all that waits, unless the last try failed a moment ago."""
        if not at_once and time.monotonic() < self._next_try:
            return
        try:
            self._hand_over()
        except self._backend.away as error:
            self._next_try = time.monotonic() + AGAIN_SECONDS
            self._floor, self._last, self._told = None, {}, True  # it may have taken some: it is asked again
            if not self._troubled:
                self._troubled = True
                self._say(f"cannot record now, and tries again ({in_one_line(error)})", True)
            return
        if self._troubled:
            self._troubled = False
            self._say("records again, nothing was lost so far", False)

    def _hand_over(self) -> None:
        if self._floor is None:
            self._floor = self._backend.open(self._run)
        if self._config:
            self._backend.configure(self._config)
            self._config = {}
        while self._waiting:
            if points := self._new(self._waiting[:POINTS_AT_ONCE], self._floor):
                self._backend.log(points)
            del self._waiting[:POINTS_AT_ONCE]

    def _new(self, waiting: list[Point], floor: int) -> list[Point]:
        """What the run does not have yet."""
        if not self._told and waiting[0].update <= floor:
            self._told = True
            self._say(f"the run {self._run['id']} holds updates up to {floor}; they are not recorded again", False)
        points = []
        for point in waiting:
            values = {name: x for name, x in point.values.items() if point.update > self._last.get(name, floor)}
            self._last.update(dict.fromkeys(values, point.update))
            if values:
                points.append(Point(point.update, point.time, values))
        return points

    def close(self, end: End) -> None:
        """Hand over the rest and end the run; says what is missing there."""
        self.work(at_once=True)
        if not self._troubled:
            try:
                self._backend.close(end)
            except self._backend.away as error:
                self._troubled = True
                self._say(f"the end could not be recorded ({in_one_line(error)})", True)
        missing = self._too_many + len(self._waiting)
        if missing:
            self._say(f"{missing} measured updates are missing there; history.csv has them", self._troubled)


def serve(make: Callable[[Callable[[str], None]], Backend], missing: str | None = None) -> None:
    """Be the process of one tracker, until its stage says that the run ended.

    Args:
        make: makes the backend from a function that takes texts for people.
        missing: why the backend cannot be used here, ever; None: it can.
    """
    takes_no_words("Hand the figures of a training to a tracker; a training starts it, and writes to its input.")
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what libraries print is for nobody

    def say(text: str, troubled: bool = False) -> None:
        answers.write(json.dumps({"say": without_secrets(text), "troubled": troubled}) + "\n")
        answers.flush()

    def uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        say(f"stopped recording; {in_one_line(error)}", True)

    sys.excepthook = uncaught
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the end of the input ends this process, and nothing before
    os.nice(5)  # a training comes first, but what others do on this host must not keep it from its end
    messages = read_messages(0)
    first = next(messages, None)
    if not first:
        return
    if missing is not None:
        say(missing, True)
        return
    recorder = Recorder(make(say), first["run"], say)
    end = follow(messages, recorder)
    recorder.close(end)


def follow(messages: Iterator[dict[str, Any]], recorder: Recorder) -> End:
    """Pass messages on until the end."""
    for message in messages:
        if "end" in message:
            return End(message["end"], message["update"], message["time"], message["figures"])
        if "config" in message:
            recorder.configure(message["config"])
        if "values" in message:
            recorder.add(Point(message["update"], message["time"], message["values"]))
        if not message:
            recorder.work()
    signal.alarm(ORPHAN_SECONDS)  # the kernel's default ends this process, even inside a library's call
    return End("killed")


def read_messages(pipe: int) -> Iterator[dict[str, Any]]:
    """The messages of a pipe as they come, and an empty one whenever no other waits, at least every AGAIN_SECONDS."""
    rest = b""
    while True:
        if not select.select([pipe], [], [], 0.0)[0]:
            yield {}
            select.select([pipe], [], [], AGAIN_SECONDS)
        if not (block := os.read(pipe, 1 << 20)):
            return
        *lines, rest = (rest + block).split(b"\n")
        yield from map(json.loads, lines)


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
