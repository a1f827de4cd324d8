"""Experiment tracking of trainings: trackio, Weights & Biases, TensorBoard and MLflow, as section `tracking`
configures.

A tracker receives every number of every event that has an update, the resolved parameters of the job, and at the end
the metrics in metrics/*.json. It never receives data or weights. No tracker delays a training: each passes its metrics
to one backend in a thread of its own, and if the backend is missing, refuses or hangs, only its data are lost, which is
reported once. If its server is unavailable, the thread retries periodically and then sends everything that waits.
Metrics of an update that the run already has under that name are skipped, because a training resumed from a checkpoint
repeats some updates.
"""

import contextlib
import hashlib
import importlib
import json
import os
import queue
import re
import shlex
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from ipu_model.files import read_json
from tasks.params.sections import TrackingParams
from tasks.params.strict_yaml import read_yaml
from tasks.stage import artifacts
from tasks.stage.errors import DeviceJobFailed, StagePaused
from tasks.stage.process import RUN, Say, print_line

CLOSE_SECONDS = 60.0
"""Time for all trackers together to log the rest after a training; on a busy host, MLflow takes half of it to start."""
DEADLINE_SECONDS = 3.0
"""The same after SIGTERM, when the host is about to kill the process."""
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
UPDATE_KEYS = ("step", "after")
"""Fields of an event that contain its update."""
NO_METRICS = (*UPDATE_KEYS, "steps", "updates", "eta_seconds")
"""Numeric fields of an event that are not metrics."""


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


Event = Mapping[str, Any]
"""An event of the device job; for a tracker, parameters."""


class Backend(Protocol):
    """Interface of one tracking library."""

    away: tuple[type[Exception], ...]
    """Temporary errors, after which it is retried."""

    def open(self, run: Event) -> int:
        """Start or resume the run `run["id"]`; return the last update that it already has."""

    def configure(self, config: Event) -> None:
        """Log parameters."""

    def log(self, points: list[Point]) -> None:
        """Log metrics of some updates: all of them, or raise an error, after which the backend is opened again."""

    def close(self, end: End) -> None:
        """Log the figures and end the run."""


def load_backend(name: str) -> Callable[[Say], Backend]:
    """Import the class of a backend and its package, which takes seconds."""
    for variable, value in SETTINGS.items():
        os.environ.setdefault(variable, value)
    return importlib.import_module(f"tasks.tracking.track_{name}").BACKEND


class Tracker(threading.Thread):
    """One backend in its own thread; a library that waits for its server blocks only this thread.

    A thread is sufficient. Each library gives up on a server that never responds (MLflow after seconds, as SETTINGS
    configure; wandb at the start and at the end), and an abandoned thread ends with the process. MLflow's own
    asynchronous mode is not suitable: it drops data that the server did not accept, and the process cannot exit before
    every batch is sent. Each metric reaches the backend once and in order, even if it is unavailable for a while.
    """

    backend: Backend
    """Created by the thread."""

    def __init__(self, backend_name: str, run: Event, say: Say) -> None:
        super().__init__(name=f"tracker {backend_name}", daemon=True)
        self._backend_name, self._description, self._print = backend_name, run, say
        self._events: queue.Queue[Event | Point | End] = queue.Queue()
        self._config: dict[str, Any] = dict(run.get("config", {}))
        self._waiting: list[Point] = []
        self._last: dict[str, int] = {}
        """Metric -> last update that this process logged."""
        self._floor: int | None = None
        """Last update of the run before this process; None: not known yet."""
        self._dropped = 0
        self._troubled = self._told = self._abandoned = False
        """It last reported a failure; it reported earlier updates of the run; it must not print."""
        self._next_try = 0.0
        self.is_ended = False

    def send(self, event: Event | Point | End) -> None:
        """Queue parameters, metrics or the end of the run; the first call starts the thread."""
        if self.ident is None:  # not earlier, so that the device process starts first
            self.start()
        if self.is_alive():
            self._events.put(event)

    def end(self, end: End, seconds: float) -> float:
        """Queue the end of the run, after which nothing follows; return when it must be logged, as time.monotonic."""
        until = time.monotonic() + (min(seconds, TROUBLED_SECONDS) if self._troubled else seconds)
        self.send(end)
        return until

    def wait(self, until: float) -> None:
        """Wait until the end is logged, and report if it is not."""
        self.join(max(0.0, until - time.monotonic()))
        if self.is_alive():
            self.say("did not finish in time and was abandoned; the training is not affected")
            self._abandoned = True

    def say(self, text: str, troubled: bool = False) -> None:
        """Print a message without secrets; `troubled` means that nothing can be logged now."""
        self._troubled = troubled
        if not self._abandoned:
            self._print(f"tracking: {self._backend_name}: {redact(text)}")

    def run(self) -> None:
        """Pass events to the backend until the end; report errors other than `away`, which end only this thread."""
        with contextlib.ExitStack() as stack:
            stack.push(self._broke)
            try:
                make = load_backend(self._backend_name)
            except ImportError as error:
                package = PACKAGES.get(self._backend_name, self._backend_name)
                self.say(f"is not installed ({error}): pip install {package}", True)
                return
            self.backend = make(self.say)
            while not self.is_ended:
                with contextlib.suppress(queue.Empty):
                    self.take(self._events.get(timeout=AGAIN_SECONDS))
                if self._events.empty() and not self.is_ended:
                    self.record()

    def _broke(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if error is not None:
            self.say(f"stopped recording; {format_error(error)}", True)
        return True

    def take(self, event: Event | Point | End) -> None:
        """Queue parameters and metrics; at the end, log everything and report missing data."""
        if isinstance(event, Point):
            self._waiting.append(event)
            if len(self._waiting) > MAX_WAITING:
                del self._waiting[0]
                self._dropped += 1
        elif not isinstance(event, End):
            self._config.update(event)
        else:
            self.is_ended = True
            self.record(at_once=True)
            if not self._troubled:
                try:
                    self.backend.close(event)
                except self.backend.away as error:
                    self.say(f"the end could not be recorded ({format_error(error)})", True)
            if missing := self._dropped + len(self._waiting):
                self.say(f"{missing} updates are missing in the tracker; history.csv has them", self._troubled)

    def record(self, at_once: bool = False) -> None:
        """Log everything that waits, unless the last attempt failed recently."""
        if not at_once and time.monotonic() < self._next_try:
            return
        try:
            if self._floor is None:
                self._floor = self.backend.open(self._description)
            if self._config:
                self.backend.configure(self._config)
                self._config = {}
            if points := self._select_new(self._floor):
                self.backend.log(points)
            self._waiting.clear()
        except self.backend.away as error:
            self._next_try = time.monotonic() + AGAIN_SECONDS
            self._floor, self._last, self._told = None, {}, True  # it may have accepted some data, so ask it again
            if not self._troubled:
                self.say(f"cannot record now, retrying ({format_error(error)})", True)
            return
        if self._troubled:
            self.say("recording again, nothing was lost so far")

    def _select_new(self, floor: int) -> list[Point]:
        """Return the metrics that the run does not have yet."""
        if not self._told and self._waiting and self._waiting[0].update <= floor:
            self._told = True
            self.say(f"the run {self._description['id']} already has updates up to {floor}; they are skipped")
        points = []
        for point in self._waiting:
            values = {name: x for name, x in point.values.items() if point.update > self._last.get(name, floor)}
            self._last.update(dict.fromkeys(values, point.update))
            if values:
                points.append(Point(point.update, point.time, values))
        return points


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


def extract_metrics(event: Event) -> tuple[int, dict[str, float]] | None:
    """Return the update of an event and its metrics; None for an event without an update.

    Metrics are named as in history.csv and metrics/*.json: `loss`, and `held_out/loss` for evaluations.
    """
    update = next((event[key] for key in UPDATE_KEYS if isinstance(event.get(key), int)), None)
    if update is None:
        return None
    prefix = "held_out/" if event["event"] == "evaluated" else ""
    values = {
        prefix + name: float(value)
        for name, value in flatten(event).items()
        if name not in NO_METRICS and isinstance(value, (int, float)) and not isinstance(value, bool)
    }
    return update, values


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested values under names with slashes: {"a": {"b": 1}} becomes {"a/b": 1}; drop lists and null."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            found.update(flatten(value, f"{prefix}{name}/"))
        elif isinstance(value, (bool, int, float, str)):
            found[prefix + name] = value
    return found


def run_id(stage: str, fingerprint: str, group: str | None) -> str:
    """Return a run ID that stays the same when a training resumes on any host, and differs between groups."""
    return f"{stage}-{fingerprint}" + (f"-{hashlib.sha256(group.encode()).hexdigest()[:6]}" if group else "")


def describe_run(tracking: TrackingParams, stage: str, fingerprint: str, config: Event, root: Path) -> Event:
    """Return the description of a run for trackers.

    Args:
        stage: name as in metrics/<stage>.json.
        fingerprint: fingerprint of the job, the name of its run folder.
        config: resolved parameters of the job.
        root: checkout; its parameters determine the group if none is set.
    """
    values = {name: section for name, section in read_yaml(root / artifacts.PARAMS).items() if name != "tracking"}
    digits = hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:8]
    name = tracking.name or os.environ.get(RUN, "").partition(" ")[2].removeprefix(".")
    return {
        "id": run_id(stage, fingerprint, tracking.group),
        "project": tracking.project,
        "name": f"{name} {stage}" if name else stage,
        "group": tracking.group or f"params-{digits}",
        "stage": stage,
        "folder": str((root / tracking.folder).absolute()),
        "config": flatten(config),
    }


def list_places(backends: Sequence[str], project: str, folder: str) -> list[str]:
    """Return the command that shows what each tracker recorded, or the address of its server."""
    mode = os.environ.get("WANDB_MODE") or ("online" if os.environ.get("WANDB_API_KEY") else "offline")
    site = redact(f"{os.environ.get('WANDB_BASE_URL', 'https://wandb.ai')} (project {project})")
    database, show = f"sqlite:///{folder}/mlflow.db", shlex.join(["trackio", "show", "--project", project])
    server = redact(os.environ.get("MLFLOW_TRACKING_URI", ""))
    places = {
        "trackio": f"TRACKIO_DIR={shlex.quote(f'{folder}/trackio')} {show}",
        "wandb": site if mode == "online" else f"wandb sync --append {shlex.quote(f'{folder}/wandb')}/offline-run-*",
        "tensorboard": shlex.join(["tensorboard", "--logdir", f"{folder}/tensorboard"]),
        "mlflow": server or shlex.join(["mlflow", "ui", "--backend-store-uri", database]),
    }
    return [f"{name}: {places[name]}" for name in backends]


class Trackers(contextlib.AbstractContextManager["Trackers"]):
    """The trackers of a run that `describe_run` describes; as a context, they also record the end of a training that
    did not call `close`."""

    def __init__(self, backends: Sequence[str], run: Event, say: Say = print_line) -> None:
        self._running = [Tracker(backend, run, say) for backend in backends]

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, StagePaused):
            self.close("paused", {}, seconds=DEADLINE_SECONDS if error.in_a_hurry else None)
        elif isinstance(error, DeviceJobFailed):
            self.close("failed", {})
        self.stop()

    def on_event(self, event: Event) -> None:
        """Log the metrics of an event of the device job, or its plan."""
        message: Event | Point
        if event["event"] == "plan":
            message = flatten({"plan": {name: value for name, value in event.items() if name != "event"}})
        elif (found := extract_metrics(event)) is not None and found[1]:
            message = Point(found[0], time.time(), found[1])
        else:
            return
        for tracker in self._running:
            tracker.send(message)

    def close(self, status: str, figures: Event, update: int = 0, seconds: float | None = None) -> None:
        """Log the rest and end all trackers within a timeout.

        Args:
            status: finished, paused, failed or killed.
            figures: file name in metrics/ -> its content; its values become `<name>/<key>`.
            update: last update, to which the figures belong.
            seconds: timeout, after which a tracker is abandoned; None: CLOSE_SECONDS.
        """
        end = End(status, update, time.time(), flatten(figures))
        ending = [(one, one.end(end, CLOSE_SECONDS if seconds is None else seconds)) for one in self._running]
        for tracker, until in ending:
            tracker.wait(until)
        self._running = []

    def stop(self) -> None:
        """End trackers that were started but not closed, in time for a host that is about to kill this process."""
        self._running = [tracker for tracker in self._running if tracker.is_alive()]
        self.close("killed", {}, seconds=DEADLINE_SECONDS)


def record_verdict(
    tracking: TrackingParams, stage: str, files: Sequence[Path], root: Path = Path(), say: Say = print_line
) -> None:
    """Add evaluation results of a model to the run that trained it.

    Args:
        stage: stage that trained it; metrics/<stage>.json has the fingerprint that identifies the run.
        files: files in metrics/, such as metrics/squad.json; their values become `squad/<key>`.
    """
    if not tracking.backends:
        return
    trained = root / artifacts.METRICS / f"{stage}.json"
    try:
        found = read_json(trained)
        fingerprint, updates = str(found["fingerprint"]), int(found["steps"])
        figures = {path.stem: read_json(root / path) for path in files}
    except (FileNotFoundError, ValueError, KeyError, TypeError) as error:
        say(f"tracking: the verdict was not recorded, as {trained} or a metrics file cannot be read ({error!r})")
        return
    with Trackers(tracking.backends, describe_run(tracking, stage, fingerprint, {}, root), say) as trackers:
        trackers.close("finished", figures, updates)
