"""Trackers of trainings: trackio, Weights & Biases, TensorBoard and MLflow, as section `tracking` configures.

A tracker receives every number of every event that has an update, the resolved parameters of the job, and at the end
the metrics in metrics/*.json; never data or weights. Each works in a thread of its own: if its library is missing,
refuses or hangs, only its data are lost, which is reported once, and after a time limit it is abandoned.
"""

import contextlib
import hashlib
import importlib
import json
import os
import queue
import shlex
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ipu_model.core.files import read_json
from tasks.params.sections import TrackingParams
from tasks.params.strict_yaml import read_yaml
from tasks.stage import artifacts
from tasks.stage.background import Background, format_error, redact
from tasks.stage.errors import DeviceJobFailed, StagePaused
from tasks.stage.process import RUN, Say, print_line

CLOSE_SECONDS, DEADLINE_SECONDS = 60.0, 3.0
"""Time limits of all trackers together after a training; after SIGTERM, the host is about to kill the process."""
AGAIN_SECONDS = 10.0
"""Seconds between retries with an unavailable server."""
SETTINGS = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_ENABLE_ASYNC_LOGGING": "false",  # it drops what the server did not accept
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "5",
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
Event = Mapping[str, Any]
"""An event of the device job; for a tracker, parameters."""


@dataclass(frozen=True)
class Point:
    """Metrics after one update, at a time in seconds since 1970."""

    update: int
    time: float
    values: Mapping[str, float]


@dataclass(frozen=True)
class End:
    """End of a run (finished, paused, failed, or killed), with figures of its last update."""

    status: str
    update: int = 0
    time: float = 0.0
    figures: Mapping[str, Any] = field(default_factory=dict)

    @property
    def point(self) -> Point:
        """Figures that become metrics."""
        numbers = {name: float(x) for name, x in self.figures.items() if not isinstance(x, str)}
        return Point(self.update, self.time, numbers)

    @property
    def texts(self) -> dict[str, str]:
        """Text figures, which a backend stores elsewhere."""
        return {name: x for name, x in self.figures.items() if isinstance(x, str)}


def load_backend(name: str) -> Callable[[Say], Any]:
    """Import the class of a backend and its package, which takes seconds.

    It has `away` (temporary errors, after which it is opened again), `open` (start or resume a run; return its last
    update), `configure` (log parameters), `log` (log points) and `close`.
    """
    for variable, value in SETTINGS.items():
        os.environ.setdefault(variable, value)
    return importlib.import_module(f"tasks.tracking.track_{name}").BACKEND


class Tracker:
    """One backend in its thread. Each metric reaches it once and in order, even if it is unavailable for a while."""

    def __init__(self, name: str, run: Event, say: Say) -> None:
        self._name, self._run, self._print = name, run, say
        self.thread: Background | None = None
        self._items: queue.SimpleQueue[Event | Point | End] = queue.SimpleQueue()
        self._items.put(run.get("config", {}))
        self._ending = threading.Event()
        self._is_open = self._said_away = False
        self._floor = 0
        """Last update of the run before it was opened."""
        self._last: dict[str, int] = {}
        """Metric -> last update that was logged since."""

    def send(self, item: Event | Point | End) -> None:
        """Queue parameters, metrics or the end of the run; the first call starts the thread."""
        if self.thread is None:  # not earlier, so that the device process starts first
            self.thread = Background(self._record, self._fail)
        self._items.put(item)
        if isinstance(item, End):
            self._ending.set()

    def wait(self, until: float) -> None:
        """Wait until the end is logged, or report that it is not."""
        if self.thread is not None and not self.thread.ends(until - time.monotonic()):
            self.say("did not finish in time and was abandoned; the training is not affected")
            self._print = lambda text: None

    def say(self, text: str) -> None:
        """Print a message without secrets."""
        self._print(f"tracking: {self._name}: {redact(text)}")

    def _record(self) -> None:
        """Log all items up to the end; while the backend is away, try again until the end comes."""
        import tenacity

        backend = load_backend(self._name)(self.say)
        tries = tenacity.Retrying(
            retry=tenacity.retry_if_exception_type(backend.away),
            wait=tenacity.wait_fixed(AGAIN_SECONDS),
            sleep=tenacity.sleep_using_event(self._ending),
            stop=tenacity.stop_when_event_set(self._ending),
            before_sleep=self._say_away,
            reraise=True,
        )
        items: list[Event | Point | End] = [{}]
        while not isinstance(items[-1], End):
            items = [self._items.get()]
            while not (self._items.empty() or isinstance(items[-1], End)):
                items.append(self._items.get())
            tries(self.log, backend, items)

    def _say_away(self, state: Any) -> None:
        if not self._said_away:
            self._said_away = True
            self.say(f"cannot record now, retrying ({format_error(state.outcome.exception())})")

    def _fail(self, error: BaseException) -> None:
        package = PACKAGES.get(self._name, self._name)
        absent = f"is not installed ({error}): pip install {package}"
        stopped = f"stopped recording; history.csv has all updates ({format_error(error)})"
        self.say(absent if isinstance(error, ImportError) else stopped)

    def log(self, backend: Any, items: Sequence[Event | Point | End]) -> None:
        """Log items that follow one another; after an error, the run is opened again, as it may have some of them."""
        if not self._is_open:
            self._floor, self._last = backend.open(self._run), {}
        self._is_open = False
        if config := {name: x for item in items if isinstance(item, Mapping) for name, x in item.items()}:
            backend.configure(config)
        if points := list(self._select_new(items)):
            backend.log(points)
        if isinstance(items[-1], End):
            backend.close(items[-1])
        self._is_open = True

    def _select_new(self, items: Sequence[Event | Point | End]) -> Iterator[Point]:
        """Yield the metrics that the run lacks: a training resumed from a checkpoint repeats some updates."""
        for point in (item for item in items if isinstance(item, Point)):
            values = {name: x for name, x in point.values.items() if point.update > self._last.get(name, self._floor)}
            self._last.update(dict.fromkeys(values, point.update))
            if values:
                yield Point(point.update, point.time, values)


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
    flat: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            flat.update(flatten(value, f"{prefix}{name}/"))
        elif isinstance(value, (bool, int, float, str)):
            flat[prefix + name] = value
    return flat


def run_id(stage: str, fingerprint: str, group: str | None) -> str:
    """Return a run ID that stays the same when a training resumes on any host, and differs between groups."""
    return f"{stage}-{fingerprint}" + (f"-{hashlib.sha256(group.encode()).hexdigest()[:6]}" if group else "")


def describe_run(tracking: TrackingParams, stage: str, fingerprint: str, config: Event, root: Path) -> Event:
    """Return the description of a run for trackers, with the parameters `config` of its job.

    The parameters of the checkout `root` determine the group if none is set.
    """
    values = {name: section for name, section in read_yaml(root / artifacts.PARAMS).items() if name != "tracking"}
    digits = hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:8]
    name = tracking.name or os.environ.get(RUN, "").partition(" ")[2].removeprefix(".")
    return {
        "id": run_id(stage, fingerprint, tracking.group),
        "project": tracking.project,
        "name": f"{name} {stage}".lstrip(),
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
    """Trackers of a run (`describe_run`); as a context, they record the end of a training that did not call `close`."""

    def __init__(self, backends: Sequence[str], run: Event, say: Say = print_line) -> None:
        self._running = [Tracker(backend, run, say) for backend in backends]

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        known: dict[Any, str] = {StagePaused: "paused", DeviceJobFailed: "failed"}
        if kind not in known:
            self._running = [tracker for tracker in self._running if tracker.thread is not None]
        in_a_hurry = kind not in known or getattr(error, "in_a_hurry", False)
        self.close(known.get(kind, "killed"), {}, seconds=DEADLINE_SECONDS if in_a_hurry else None)

    def on_event(self, event: Event) -> None:
        """Log the metrics of an event of the device job, or its plan."""
        item: Event | Point = {}
        if event["event"] == "plan":
            item = flatten({"plan": {name: value for name, value in event.items() if name != "event"}})
        elif (extracted := extract_metrics(event)) is not None and extracted[1]:
            item = Point(extracted[0], time.time(), extracted[1])
        for tracker in self._running if item else ():
            tracker.send(item)

    def close(self, status: str, figures: Event, update: int = 0, seconds: float | None = None) -> None:
        """Log the rest and end all trackers within `seconds` (None: CLOSE_SECONDS).

        Args:
            status: finished, paused, failed or killed.
            figures: file name in metrics/ -> its content; its values become `<name>/<key>`.
            update: last update, to which the figures belong.
        """
        until = time.monotonic() + (CLOSE_SECONDS if seconds is None else seconds)
        running, self._running = self._running, []
        for tracker in running:
            tracker.send(End(status, update, time.time(), flatten(figures)))
        for tracker in running:
            tracker.wait(until)


def record_verdict(
    tracking: TrackingParams, stage: str, files: Sequence[Path], root: Path = Path(), say: Say = print_line
) -> None:
    """Add evaluation results, the `files` in metrics/, to the run that metrics/<stage>.json identifies."""
    if not tracking.backends:
        return
    trained = root / artifacts.METRICS / f"{stage}.json"
    try:
        metrics = read_json(trained)
        fingerprint, updates = str(metrics["fingerprint"]), int(metrics["steps"])
        figures = {path.stem: read_json(root / path) for path in files}
    except (FileNotFoundError, ValueError, KeyError, TypeError) as error:
        say(f"tracking: the verdict was not recorded, as {trained} or a metrics file cannot be read ({error!r})")
        return
    with Trackers(tracking.backends, describe_run(tracking, stage, fingerprint, {}, root), say) as trackers:
        trackers.close("finished", figures, updates)
