"""Experiment tracking of trainings: trackio, Weights & Biases, TensorBoard and MLflow, as section `tracking`
configures.

No tracker delays a training (tracker.py): if one is missing, refuses or hangs, only its data are lost, which is
reported once. A tracker receives every number of every event that has an update, the resolved parameters of the job,
and at the end the metrics in metrics/*.json. It never receives data or weights.
"""

import contextlib
import hashlib
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ipu_model.files import read_json
from tasks.params.sections import TrackingParams
from tasks.params.strict_yaml import read_yaml
from tasks.stage import artifacts
from tasks.stage.errors import DeviceJobFailed, StagePaused
from tasks.stage.process import Say, print_line
from tasks.tracking.tracker import End, Point, Tracker

CLOSE_SECONDS = 60.0
"""Time for all trackers together to log the rest after a training; on a busy host, MLflow takes half of it to start.
Hanging servers are given up on earlier (tracker.py)."""
DEADLINE_SECONDS = 3.0
"""The same after SIGTERM, when the host is about to kill the process."""
UPDATE_KEYS = ("step", "after")
"""Fields of an event that contain its update."""
NO_METRICS = (*UPDATE_KEYS, "steps", "updates", "eta_seconds")
"""Numeric fields of an event that are not metrics."""

Event = dict[str, Any]


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
        tracking: section `tracking`.
        stage: name as in metrics/<stage>.json.
        fingerprint: fingerprint of the job, the name of its run folder.
        config: resolved parameters of the job.
        root: checkout; its parameters determine the group if none is set.
    """
    return {
        "id": run_id(stage, fingerprint, tracking.group),
        "project": tracking.project,
        "name": f"{tracking.name} {stage}" if tracking.name else stage,
        "group": tracking.group or _group_of(root),
        "stage": stage,
        "folder": str((root / tracking.folder).absolute()),
        "config": flatten(config),
    }


def _group_of(root: Path) -> str:
    values = {name: section for name, section in read_yaml(root / artifacts.PARAMS).items() if name != "tracking"}
    return "params-" + hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:8]


class Trackers:
    """The trackers of one run; without backends it does nothing.

    Args:
        backends: `tracking.backends`.
        run: description from `describe_run`.
        say: receives messages for users.
    """

    def __init__(self, backends: Sequence[str], run: Event, say: Say = print_line) -> None:
        self._all = [Tracker(backend, run, say) for backend in backends]

    def on_event(self, event: Event) -> None:
        """Log the metrics of an event of the device job, or its plan."""
        if event["event"] == "plan":
            plan = {name: value for name, value in event.items() if name != "event"}
            self._send(flatten({"plan": plan}))
        elif (found := extract_metrics(event)) is not None and found[1]:
            self._send(Point(found[0], time.time(), found[1]))

    def close(self, status: str, figures: Mapping[str, Any], update: int = 0, seconds: float | None = None) -> None:
        """Log the rest and end all trackers within a timeout.

        Args:
            status: finished, paused or failed.
            figures: file name in metrics/ -> its content; its values become `<name>/<key>`.
            update: last update, to which the figures belong.
            seconds: timeout, after which a tracker is abandoned; None: CLOSE_SECONDS.
        """
        end = End(status, update, time.time(), flatten(figures))
        for tracker in self._all:
            tracker.end(end, CLOSE_SECONDS if seconds is None else seconds)
        for tracker in self._all:
            tracker.wait()

    def stop(self) -> None:
        """Give running trackers a moment to save their data."""
        for tracker in self._all:
            tracker.stop(DEADLINE_SECONDS)

    def _send(self, message: Event | Point) -> None:
        for tracker in self._all:
            tracker.send(message)


@contextlib.contextmanager
def tracked(backends: Sequence[str], run: Event, say: Say = print_line) -> Iterator[Trackers]:
    """Track a training job; the body calls `close` when the training succeeded.

    Args:
        backends: `tracking.backends`.
        run: description from `describe_run`.
        say: receives messages for users.
    """
    trackers = Trackers(backends, run, say)
    try:
        yield trackers
    except StagePaused as paused:
        trackers.close("paused", {}, seconds=DEADLINE_SECONDS if paused.in_a_hurry else None)
        raise
    except DeviceJobFailed:
        trackers.close("failed", {})
        raise
    finally:
        trackers.stop()


def record_verdict(
    tracking: TrackingParams, stage: str, files: Sequence[Path], root: Path = Path(), say: Say = print_line
) -> None:
    """Add evaluation results of a model to the run that trained it.

    Args:
        tracking: section `tracking`.
        stage: stage that trained it; metrics/<stage>.json has the fingerprint that identifies the run.
        files: files in metrics/, such as metrics/squad.json; their values become `squad/<key>`.
        root: checkout.
        say: receives messages for users.
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
    with tracked(tracking.backends, describe_run(tracking, stage, fingerprint, {}, root), say) as trackers:
        trackers.close("finished", figures, updates)
