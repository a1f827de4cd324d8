"""Trackers watch a training: trackio, Weights & Biases, TensorBoard and MLflow, where section `tracking` asks for them.

Each is a child process of its own (tracker.py), fed through a pipe that is never waited for, so that one that is
not there, refuses, hangs or dies costs the training nothing but what it would have recorded; that is said once. What
a tracker is told: every number of every event with an update in it, the resolved parameters of the job, and at the
end the figures of metrics/*.json. Never data, never weights.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ipu_model.files import read_json
from tasks.project import artifacts
from tasks.project.errors import DeviceJobFailed, StagePaused
from tasks.project.param_sections import TrackingParams
from tasks.project.process import Say, describe_exit, print_line, python_path
from tasks.project.strict_yaml import read_yaml

CLOSE_SECONDS = 60.0
"""What trackers may take, all together, to record the rest after a training that ended: on a busy host MLflow needs
half of that to start. Servers that hang are given up sooner (tasks/track_*.py)."""
TROUBLED_SECONDS = 5.0
"""What one may take after the end of a training that has said that it cannot record: it tries once more."""
HURRIED_SECONDS = 3.0
"""What it may take after SIGTERM, when the host is about to take the process's life."""
PIPE_BYTES = 1 << 20
"""Room for events of some 200 bytes: what waits for a tracker that is busy. The kernel grants it (F_SETPIPE_SZ) to
anybody."""
UPDATE_KEYS = ("step", "after")
"""Fields of an event that say after which update it was."""
NO_METRICS = (*UPDATE_KEYS, "steps", "updates", "eta_seconds")
"""Numbers of an event that are no measurements."""

Event = dict[str, Any]


def numbers_of(event: Event) -> tuple[int, dict[str, float]] | None:
    """The update of an event and every measurement in it; None for an event without an update.

    A metric is called as in history.csv and metrics/*.json: `loss`, and `held_out/loss` of what was evaluated.
    """
    update = next((event[key] for key in UPDATE_KEYS if isinstance(event.get(key), int)), None)
    if update is None:
        return None
    prefix = "held_out/" if event["event"] == "evaluated" else ""
    values = {
        prefix + name: float(value)
        for name, value in flat(event).items()
        if name not in NO_METRICS and isinstance(value, (int, float)) and not isinstance(value, bool)
    }
    return update, values


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested values under names with slashes: {"a": {"b": 1}} gives {"a/b": 1}; lists and null are left out."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            found.update(flat(value, f"{prefix}{name}/"))
        elif isinstance(value, (bool, int, float, str)):
            found[prefix + name] = value
    return found


def run_id(stage: str, fingerprint: str, group: str | None) -> str:
    """The same for a training that is continued, here or on another host; another for another group."""
    return f"{stage}-{fingerprint}" + (f"-{hashlib.sha256(group.encode()).hexdigest()[:6]}" if group else "")


def description(tracking: TrackingParams, stage: str, fingerprint: str, config: Event, root: Path) -> Event:
    """What a tracker is told of a run before anything else.

    Args:
        tracking: section `tracking`.
        stage: as in metrics/<stage>.json.
        fingerprint: of the job, which names its run folder.
        config: the job's resolved parameters.
        root: the checkout; its parameters are the group, where none is stated.
    """
    return {
        "id": run_id(stage, fingerprint, tracking.group),
        "project": tracking.project,
        "name": f"{tracking.name} {stage}" if tracking.name else stage,
        "group": tracking.group or _group_of(root),
        "stage": stage,
        "folder": str((root / tracking.folder).absolute()),
        "config": flat(config),
    }


def _group_of(root: Path) -> str:
    values = {name: section for name, section in read_yaml(root / artifacts.PARAMS).items() if name != "tracking"}
    return "params-" + hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:8]


def command(backend: str) -> list[str]:
    """How the process of a tracker is started."""
    return [sys.executable, "-m", f"tasks.tracking.track_{backend}"]


def start(backend: str, say: Say) -> Tracker | None:
    """Start a tracker; None where the system has no room for it.

    Args:
        backend: one of tracking.backends.
        say: takes lines for people.
    """
    environment = {**os.environ, "PYTHONPATH": python_path(os.environ.get("PYTHONPATH"))}
    try:
        process = subprocess.Popen(
            command(backend),
            env=environment,
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError as error:
        say(f"tracking: {backend} could not be started ({error.strerror}); nothing is recorded there")
        return None
    return Tracker(backend, process, say)


class Tracker:
    """One child process: lines of JSON to it, lines of JSON from it, and no waiting for either before the end."""

    def __init__(self, backend: str, process: subprocess.Popen[bytes], say: Say) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._backend, self._process, self._say = backend, process, say
        self._pipes = (process.stdin, process.stdout)
        self._to, self._from = (pipe.fileno() for pipe in self._pipes)
        for pipe in (self._to, self._from):
            os.set_blocking(pipe, False)
        with contextlib.suppress(OSError):  # where it may not be that wide
            fcntl.fcntl(self._to, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        self._unsent = self._heard = b""
        """Parts of lines: what the pipe had no room for, and what has no end yet."""
        self._lost = 0
        """Messages that it did not take."""
        self._until = 0.0
        """When it has to have ended, on time.monotonic's clock."""
        self._troubled = self._gone = False
        """Whether it said last that it cannot record; whether it reads no more."""

    def send(self, message: Event) -> None:
        """Send it, or count it as lost where the tracker has not taken what was sent before."""
        self._push()
        if self._unsent or self._gone:
            self._lost += 1
            return
        self._unsent = json.dumps(message).encode() + b"\n"
        self._push()

    def _push(self) -> None:
        try:
            while self._unsent and not self._gone:
                self._unsent = self._unsent[os.write(self._to, self._unsent) :]
        except BlockingIOError:
            return
        except BrokenPipeError:
            self._gone = True

    def hear(self) -> None:
        """Say what the tracker said."""
        while block := self._read():
            *lines, self._heard = (self._heard + block).split(b"\n")
            for message in map(json.loads, lines):
                self._troubled = message["troubled"]
                self._say(f"tracking: {self._backend}: {message['say']}")

    def _read(self) -> bytes | None:
        try:
            return os.read(self._from, 1 << 16)
        except BlockingIOError:
            return None

    def end(self, message: Event, seconds: float) -> None:
        """Send the last message, and no other after it."""
        self.hear()
        self._until = time.monotonic() + (min(seconds, TROUBLED_SECONDS) if self._troubled else seconds)
        while self._unsent and not self._gone and self._left():
            select.select([], [self._to], [], self._left())
            self._push()
        self.send(message)
        while self._unsent and not self._gone and self._left():
            select.select([], [self._to], [], self._left())
            self._push()
        self._pipes[0].close()

    def _left(self) -> float:
        return max(0.0, self._until - time.monotonic())

    def wait(self) -> None:
        """Wait for its end, and say what became of it if that is no good news."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(self._left())
        self.hear()
        code = self._process.poll()
        if code is None:
            self._kill()
            self._say(f"tracking: {self._backend} came to no end in time and was stopped; the training lacks nothing")
        elif code and not self._troubled:
            self._say(f"tracking: {self._backend} ended with {describe_exit(code)}; the training lacks nothing")
        if self._lost and not self._troubled:
            self._say(f"tracking: {self._backend} did not take {self._lost} events; they are in history.csv")

    def stop(self) -> None:
        """Close its pipe, which tells it to end, and kill it if it does not."""
        self._pipes[0].close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(HURRIED_SECONDS)
        self._kill()
        self._pipes[1].close()

    def _kill(self) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


class Trackers:
    """The trackers of one run; without backends it does nothing.

    Args:
        backends: `tracking.backends`.
        run: from `description`.
        say: takes lines for people.
    """

    def __init__(self, backends: Sequence[str], run: Event, say: Say = print_line) -> None:
        started = [start(backend, say) for backend in backends]
        self._all = [tracker for tracker in started if tracker is not None]
        self._send({"run": run})

    def on_event(self, event: Event) -> None:
        """Pass on the measurements of an event of the device job, and its plan."""
        for tracker in self._all:
            tracker.hear()
        if event["event"] == "plan":
            plan = {name: value for name, value in event.items() if name != "event"}
            self._send({"config": flat({"plan": plan})})
        elif (found := numbers_of(event)) is not None and found[1]:
            self._send({"update": found[0], "time": time.time(), "values": found[1]})

    def close(self, status: str, figures: Mapping[str, Any], update: int = 0, seconds: float | None = None) -> None:
        """Let them record the rest and end, within that time, all together.

        Args:
            status: finished, paused or failed.
            figures: name of a file in metrics/ -> its content; the numbers and words in it become `<name>/<key>`.
            update: the last one, to which the figures belong.
            seconds: after them a tracker is stopped; None: CLOSE_SECONDS.
        """
        message = {"end": status, "update": update, "time": time.time(), "figures": flat(figures)}
        for tracker in self._all:
            tracker.end(message, CLOSE_SECONDS if seconds is None else seconds)
        for tracker in self._all:
            tracker.wait()

    def stop(self) -> None:
        """End those that still run: they have a moment to keep what they were told."""
        for tracker in self._all:
            tracker.stop()

    def _send(self, message: Event) -> None:
        for tracker in self._all:
            tracker.send(message)


@contextlib.contextmanager
def tracked(backends: Sequence[str], run: Event, say: Say = print_line) -> Iterator[Trackers]:
    """Around a training job; the body closes what it yields when the training ended well.

    Args:
        backends: `tracking.backends`.
        run: from `description`.
        say: takes lines for people.
    """
    trackers = Trackers(backends, run, say)
    try:
        yield trackers
    except StagePaused as paused:
        trackers.close("paused", {}, seconds=HURRIED_SECONDS if paused.in_a_hurry else None)
        raise
    except DeviceJobFailed:
        trackers.close("failed", {})
        raise
    finally:
        trackers.stop()


def record_verdict(
    tracking: TrackingParams, stage: str, files: Sequence[Path], root: Path = Path(), say: Say = print_line
) -> None:
    """Add what was found about a model to the run that trained it.

    Args:
        tracking: section `tracking`.
        stage: the one that trained it, whose metrics/<stage>.json says by its fingerprint which run that was.
        files: in metrics/, for example metrics/squad.json; their numbers and words become `squad/<key>`.
        root: the checkout.
        say: takes lines for people.
    """
    if not tracking.backends:
        return
    trained = root / artifacts.METRICS / f"{stage}.json"
    try:
        found = read_json(trained)
        fingerprint, updates = str(found["fingerprint"]), int(found["steps"])
        figures = {path.stem: read_json(root / path) for path in files}
    except (FileNotFoundError, ValueError, KeyError, TypeError) as error:
        say(f"tracking: the verdict was not recorded, as {trained} or what was measured cannot be read ({error!r})")
        return
    with tracked(tracking.backends, description(tracking, stage, fingerprint, {}, root), say) as trackers:
        trackers.close("finished", figures, updates)
