"""trackio tracker: a database of the project in <tracking.folder>/trackio/, on this host only.

Rows are written to that database directly: `trackio.init` would ask the Hub for the user, and its threads lose data if
the disk is full. Text values become parameters of the run, as trackio has no other place for them.
"""

import sqlite3
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from trackio import sqlite_storage
from trackio.sqlite_storage import SQLiteStorage

from tasks.tracking.trackers import End, Point


class Trackio:
    """One run, identified by its ID."""

    away: tuple[type[Exception], ...] = (OSError, sqlite3.Error)

    def __init__(self, say: Callable[[str], None]) -> None:
        self._run: Mapping[str, Any] = {}
        self._config: dict[str, Any] = {}

    def open(self, run: Mapping[str, Any]) -> int:
        """Find the run; a new run is created with the first data."""
        sqlite_storage.TRACKIO_DIR = Path(run["folder"]) / "trackio"  # ignores TRACKIO_DIR of the environment
        SQLiteStorage._dataset_import_attempted = True  # prevents downloads that TRACKIO_BUCKET_ID and others request
        self._run = run
        SQLiteStorage.validate_project_name(run["project"])
        saved_config = SQLiteStorage.get_run_config(run["project"], run_id=run["id"]) or {}
        self._config = {**saved_config, **self._config, "_Group": run["group"], "stage": run["stage"]}
        return SQLiteStorage.get_max_step_for_run(run["project"], run_id=run["id"]) or 0

    def configure(self, config: Mapping[str, Any]) -> None:
        """Set the run's parameters, written with its next metrics, because trackio stores none without metrics."""
        self._config.update(config)

    def log(self, points: list[Point]) -> None:
        """Log metrics; trackio's step is the update."""
        self._config.setdefault("_Created", _iso(points[0].time))
        SQLiteStorage.bulk_log(
            self._run["project"],
            self._run["name"],
            [dict(point.values) for point in points],
            steps=[point.update for point in points],
            timestamps=[_iso(point.time) for point in points],
            config=self._config,
            run_id=self._run["id"],
        )

    def close(self, end: End) -> None:
        """Log numeric figures as metrics, and text as parameters."""
        if end.figures:
            self._config.update(end.texts)
            self.log([end.point])


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()


BACKEND = Trackio
