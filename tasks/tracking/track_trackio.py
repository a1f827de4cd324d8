"""Tracker trackio: a database of its project in <tracking.folder>/trackio/, on this host alone.

Rows go straight into that database: `trackio.init` asks the Hub who somebody is, and its threads drop what a full disk
does not take. Words are among the run's parameters, as trackio has no other place for them.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from trackio import sqlite_storage
from trackio.sqlite_storage import SQLiteStorage

from tasks.tracking.tracker import End, Point


class Trackio:
    """One run, by its id."""

    away: tuple[type[Exception], ...] = (OSError, sqlite3.Error)

    def __init__(self, say: Callable[[str], None]) -> None:
        self._run: Mapping[str, Any] = {}
        self._config: dict[str, Any] = {}

    def open(self, run: Mapping[str, Any]) -> int:
        """Find the run; none is made before there is something to write."""
        sqlite_storage.TRACKIO_DIR = Path(run["folder"]) / "trackio"  # not where TRACKIO_DIR of the environment says
        SQLiteStorage._dataset_import_attempted = True  # fetches nothing from where TRACKIO_BUCKET_ID and others say
        self._run = run
        SQLiteStorage.validate_project_name(run["project"])
        had = SQLiteStorage.get_run_config(run["project"], run_id=run["id"]) or {}
        self._config = {**had, **self._config, "_Group": run["group"], "stage": run["stage"]}
        return SQLiteStorage.get_max_step_for_run(run["project"], run_id=run["id"]) or 0

    def configure(self, config: Mapping[str, Any]) -> None:
        """The run's parameters, written with its next measurements: trackio keeps none without."""
        self._config.update(config)

    def log(self, points: list[Point]) -> None:
        """Metrics; trackio's step is the update."""
        self._write([(point.update, point.time, point.values) for point in points])

    def close(self, end: End) -> None:
        """Numbers among the figures become metrics, unless they stand there already, words become parameters."""
        if not end.figures:
            return
        self._config.update(end.words)
        rows = SQLiteStorage.get_logs(self._run["project"], self._run["name"], run_id=self._run["id"])
        has = {name: x for row in rows if row["step"] == end.update for name, x in row.items()}
        self._write([(end.update, end.time, {name: x for name, x in end.numbers.items() if has.get(name) != x})])

    def _write(self, rows: list[tuple[int, float, Mapping[str, float]]]) -> None:
        """All of them, or an error."""
        self._config.setdefault("_Created", _iso(rows[0][1]))
        SQLiteStorage.bulk_log(
            self._run["project"],
            self._run["name"],
            [dict(values) for _, _, values in rows],
            steps=[update for update, _, _ in rows],
            timestamps=[_iso(seconds) for _, seconds, _ in rows],
            config=self._config,
            run_id=self._run["id"],
        )


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()


BACKEND = Trackio
