"""Tracker mlflow: runs at MLFLOW_TRACKING_URI, else in the database <tracking.folder>/mlflow.db.

A run is found again by its tag `podium.run`. Its metrics keep their names and updates, words become tags.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from tasks.tracking.tracker import End, Point, serve

# Read by MLflow when it is imported. A server that hangs is found out in seconds: it is asked again later anyway.
for _name, _value in {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "5",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_ENABLE_ASYNC_LOGGING": "false",
}.items():
    os.environ.setdefault(_name, _value)

try:
    from mlflow.entities import Metric, Param, RunTag
    from mlflow.exceptions import MlflowException
    from mlflow.tracking import MlflowClient
except ImportError as error:
    MISSING: str | None = f"is not installed ({error}): pip install mlflow-skinny, or mlflow"
else:
    MISSING = None

TAG = "podium.run"
METRICS_AT_ONCE, PARAMS_AT_ONCE = 1000, 100
"""What the server takes in one call."""
LONGEST_VALUE = 500
"""Characters of a parameter or tag that every server takes."""
STATUS = {"finished": "FINISHED", "failed": "FAILED", "paused": "KILLED", "killed": "KILLED"}


class MLflow:
    """Uses the client alone: no current run, no automatic logging, nothing about the host."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self.away: tuple[type[Exception], ...] = (MlflowException, OSError)
        self._say, self._run = say, ""
        self._client: Any = None

    def open(self, run: Mapping[str, Any]) -> int:
        """Find the run in the experiment named like the project, or make both."""
        uri, artifacts_at = _place(Path(run["folder"]))
        self._client = MlflowClient(tracking_uri=uri)
        experiment = self._client.get_experiment_by_name(run["project"])
        number = (
            experiment.experiment_id
            if experiment is not None
            else self._client.create_experiment(run["project"], artifact_location=artifacts_at)
        )
        found = self._client.search_runs([number], f"tags.`{TAG}` = '{run['id']}'", max_results=1)
        if found:
            self._run = found[0].info.run_id
            self._client.update_run(self._run, status="RUNNING")
            return max((self._last(name) for name in found[0].data.metrics), default=0)
        tags = {TAG: run["id"], "group": run["group"], "stage": run["stage"]}
        self._run = self._client.create_run(number, tags=tags, run_name=run["name"]).info.run_id
        return 0

    def _last(self, metric: str) -> int:
        return max(point.step for point in self._client.get_metric_history(self._run, metric))

    def configure(self, config: Mapping[str, Any]) -> None:
        """Parameters; those the run has stay, as MLflow lets nobody change them."""
        has = self._client.get_run(self._run).data.params
        new = iter([Param(name, str(x)[:LONGEST_VALUE]) for name, x in config.items() if name not in has])
        for some in _cut(new, PARAMS_AT_ONCE):
            self._client.log_batch(self._run, params=some)

    def log(self, points: list[Point]) -> None:
        """Metrics, each at its update."""
        metrics = (
            Metric(name, value, round(1000 * point.time), point.update)
            for point in points
            for name, value in point.values.items()
        )
        for some in _cut(metrics, METRICS_AT_ONCE):
            self._client.log_batch(self._run, metrics=some)

    def close(self, end: End) -> None:
        """Numbers among the figures become metrics, unless they stand there already, words become tags."""
        if end.figures:
            has = self._client.get_run(self._run).data.metrics
            numbers = {name: float(x) for name, x in end.figures.items() if not isinstance(x, str)}
            new = {name: x for name, x in numbers.items() if has.get(name) != x}
            self.log([Point(end.update, end.time, new)])
            words = [RunTag(name, x[:LONGEST_VALUE]) for name, x in end.figures.items() if isinstance(x, str)]
            for some in _cut(iter(words), PARAMS_AT_ONCE):
                self._client.log_batch(self._run, tags=some)
        self._client.set_terminated(self._run, STATUS[end.status])


def _place(folder: Path) -> tuple[str, str | None]:
    """Address of the server or database, and where a new experiment's files would go (a server says so itself)."""
    if uri := os.environ.get("MLFLOW_TRACKING_URI"):
        return uri, None
    folder.mkdir(parents=True, exist_ok=True)
    return f"sqlite:///{folder / 'mlflow.db'}", (folder / "mlflow-artifacts").as_uri()


def _cut(values: Iterator[Any], size: int) -> Iterator[list[Any]]:
    while some := list(islice(values, size)):
        yield some


if __name__ == "__main__":
    serve(MLflow, MISSING)
