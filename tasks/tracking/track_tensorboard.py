"""TensorBoard tracker: event files in <tracking.folder>/tensorboard/<group>/<run>/, with scalars and hyperparameters.

Event files only grow: a resumed run, and the gate's verdict, add another file.
"""

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.hparams.summary_v2 import hparams_pb
from tensorboard.summary.writer.record_writer import RecordWriter

from tasks.tracking.trackers import End, Point


class TensorBoard:
    """Writes event files like TensorBoard's own writer, but without buffering."""

    away: tuple[type[Exception], ...] = (OSError,)

    def __init__(self, say: Callable[[str], None]) -> None:
        self._folder = Path()
        self._config: dict[str, Any] = {}
        self._is_new = True
        self._file: IO[bytes] | None = None

    def open(self, run: Mapping[str, Any]) -> int:
        """Find the files of the run; new files are created with the first data."""
        group, name = Path(run["folder"]) / "tensorboard" / _as_name(run["group"]), _as_name(run["id"])
        named = _as_name(run["name"].removesuffix(run["stage"]) + run["id"])
        self._folder = next(
            (folder for folder in (group / name, *sorted(group.glob(f"*_{name}"))) if folder.is_dir()), group / named
        )
        if not self._folder.is_dir():
            return 0
        before = EventAccumulator(str(self._folder), size_guidance={"scalars": 1})  # only the last value of each tag
        before.Reload()
        updates = [before.Scalars(tag)[-1].step for tag in before.Tags()["scalars"]]
        self._is_new = not updates
        return max(updates, default=0)

    def configure(self, config: Mapping[str, Any]) -> None:
        """Set the hyperparameters of the HPARAMS tab, which reads only the first list."""
        self._config.update(config)

    def log(self, points: list[Point]) -> None:
        """Write scalars; after an error the next call starts another file, as this one may end in a partial record."""
        events = []
        for point in points:
            summaries = [Summary.Value(tag=name, simple_value=value) for name, value in point.values.items()]
            events.append(Event(wall_time=point.time, step=point.update, summary=Summary(value=summaries)))
        if self._file is None:
            self._folder.mkdir(parents=True, exist_ok=True)
            name = f"events.out.tfevents.{time.time():.6f}.{os.getpid()}.podium"
            self._file = (self._folder / name).open("wb")
            first = [Event(wall_time=time.time(), file_version="brain.Event:2")]
            if self._config and self._is_new:
                first.append(Event(wall_time=time.time(), summary=hparams_pb(self._config, self._folder.name)))
            events = [*first, *events]
        try:
            writer = RecordWriter(self._file)
            for event in events:
                writer.write(event.SerializeToString())
            writer.flush()
        except OSError:
            broken, self._file = self._file, None
            broken.close()
            raise

    def close(self, end: End) -> None:
        """Write numeric figures as scalars."""
        if end.point.values:
            self.log([end.point])
        if self._file is not None:
            self._file.close()


def _as_name(text: str) -> str:
    return "".join(c if c.isalnum() or c in "-_." else "_" for c in text).strip(".") or "_"


BACKEND = TensorBoard
