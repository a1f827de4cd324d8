"""MLflow tracker: runs at MLFLOW_TRACKING_URI, otherwise in the database <tracking.folder>/mlflow.db.

The tag `podium.run` identifies a run. Metrics keep their names and updates; text values become tags.
"""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from mlflow.entities import Metric, Param, RunTag
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient

from tasks.tracking.trackers import End, Point

TAG = "podium.run"
LONGEST_VALUE = 500
"""Maximum length of a parameter or tag that every server accepts."""
STATUS = {"finished": "FINISHED", "failed": "FAILED", "paused": "KILLED", "killed": "KILLED"}


class MLflow:
    """Uses only the client: no active run, no automatic logging, no information about the host."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self.away: tuple[type[Exception], ...] = (MlflowException, OSError)
        self._say, self._run = say, ""
        self._client: Any = None

    def open(self, run: Mapping[str, Any]) -> int:
        """Find the run in the experiment named after the project, or create both."""
        uri, artifacts_at = _find_address(Path(run["folder"]))
        self._client = MlflowClient(tracking_uri=uri)
        experiment = self._client.get_experiment_by_name(run["project"])
        if experiment is None:
            number = self._client.create_experiment(run["project"], artifact_location=artifacts_at)
        else:
            number = experiment.experiment_id
        runs = self._client.search_runs([number], f"tags.`{TAG}` = '{run['id']}'", max_results=1)
        if runs:
            self._run = runs[0].info.run_id
            self._client.update_run(self._run, status="RUNNING")
            histories = [self._client.get_metric_history(self._run, name) for name in runs[0].data.metrics]
            return max((point.step for history in histories for point in history), default=0)
        tags = {TAG: run["id"], "group": run["group"], "stage": run["stage"]}
        self._run = self._client.create_run(number, tags=tags, run_name=run["name"]).info.run_id
        return 0

    def configure(self, config: Mapping[str, Any]) -> None:
        """Log parameters; existing ones stay, because MLflow does not allow changes."""
        has = self._client.get_run(self._run).data.params
        new = [Param(name, str(x)[:LONGEST_VALUE]) for name, x in config.items() if name not in has]
        self._client.log_batch(self._run, params=new)

    def log(self, points: list[Point]) -> None:
        """Log metrics, each at its update."""
        metrics = [
            Metric(name, value, round(1000 * point.time), point.update)
            for point in points
            for name, value in point.values.items()
        ]
        self._client.log_batch(self._run, metrics=metrics)

    def close(self, end: End) -> None:
        """Log numeric figures as metrics, and text as tags."""
        self.log([end.point])
        tags = [RunTag(name, x[:LONGEST_VALUE]) for name, x in end.texts.items()]
        self._client.log_batch(self._run, tags=tags)
        self._client.set_terminated(self._run, STATUS[end.status])


def _find_address(folder: Path) -> tuple[str, str | None]:
    """Return the address of the server or database, and the artifact location of an experiment; None: the server's."""
    if uri := os.environ.get("MLFLOW_TRACKING_URI"):
        return uri, None
    folder.mkdir(parents=True, exist_ok=True)
    return f"sqlite:///{folder / 'mlflow.db'}", (folder / "mlflow-artifacts").as_uri()


BACKEND = MLflow
