"""Trackers watch a training: trackio, Weights & Biases, TensorBoard and MLflow, where section `tracking` asks for them.

None of them keeps a training waiting (tracker.py): one that is not there, refuses or hangs costs it nothing but what it
would have recorded; that is said once. What a tracker is told: every number of every event with an update in it, the
resolved parameters of the job, and at the end the figures of metrics/*.json. Never data, never weights.
"""

from __future__ import annotations

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
"""What trackers may take, all together, to record the rest after a training that ended: on a busy host MLflow needs
half of that to start. Servers that hang are given up sooner (tracker.py)."""
HURRIED_SECONDS = 3.0
"""What it may take after SIGTERM, when the host is about to take the process's life."""
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


class Trackers:
    """The trackers of one run; without backends it does nothing.

    Args:
        backends: `tracking.backends`.
        run: from `description`.
        say: takes lines for people.
    """

    def __init__(self, backends: Sequence[str], run: Event, say: Say = print_line) -> None:
        self._all = [Tracker(backend, run, say) for backend in backends]

    def on_event(self, event: Event) -> None:
        """Pass on the measurements of an event of the device job, and its plan."""
        if event["event"] == "plan":
            plan = {name: value for name, value in event.items() if name != "event"}
            self._send(flat({"plan": plan}))
        elif (found := numbers_of(event)) is not None and found[1]:
            self._send(Point(found[0], time.time(), found[1]))

    def close(self, status: str, figures: Mapping[str, Any], update: int = 0, seconds: float | None = None) -> None:
        """Let them record the rest and end, within that time, all together.

        Args:
            status: finished, paused or failed.
            figures: name of a file in metrics/ -> its content; the numbers and words in it become `<name>/<key>`.
            update: the last one, to which the figures belong.
            seconds: after them a tracker is left behind; None: CLOSE_SECONDS.
        """
        end = End(status, update, time.time(), flat(figures))
        for tracker in self._all:
            tracker.end(end, CLOSE_SECONDS if seconds is None else seconds)
        for tracker in self._all:
            tracker.wait()

    def stop(self) -> None:
        """End those that still run: they have a moment to keep what they were told."""
        for tracker in self._all:
            tracker.stop(HURRIED_SECONDS)

    def _send(self, message: Event | Point) -> None:
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
