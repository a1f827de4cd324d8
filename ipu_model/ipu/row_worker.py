"""`python -m ipu_model.ipu.row_worker`: makes the rows of host calls ready for the process that started it.

That process (feeding.py) writes lines to standard input: first a Work, then a request for each call, `[STEP, SLOT]`.
Each is answered, in order, with a line on standard output: what was counted, or an error. The rows themselves go into
the slot, in memory that both map. The kernel closes the pipes of a process however it ends, SIGKILL included, so that
no worker outlives its starter: one that waits reads the end of its input, one that works is ended by SIGPIPE when it
answers. SIGINT and SIGTERM reach a whole process group; its starter has blocked them here, and decides alone.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, Optional, Tuple

from ipu_model.errors import ConfigError, RowsError
from ipu_model.ipu.laying import Counts, Inputs, Slots, lay, shapes_of
from ipu_model.models.config import ModelConfig
from ipu_model.rows.reading import RowFolder, UpdateRows


@dataclass(frozen=True)
class Work:
    """Which rows of which folder a worker makes ready, and where."""

    folder: str
    manifest_sha256: str
    """Of the manifest that the training was planned with."""
    kind: str
    labels: int
    """Classes of the head that they are for; 0 where it has none."""
    model: ModelConfig
    seed: int
    rows_per_update: int
    share: Tuple[int, int]
    """First row of each update that this process trains on, and the row after its last."""
    total: Optional[int]
    """Rows of the whole training (rows.reading.UpdateRows)."""
    updates: int
    """Of one call, one after the other."""
    columns: Tuple[str, ...]
    label_columns: Dict[str, str]
    """With `columns`: laying.Inputs."""
    slots: int
    memory: int
    """File descriptor of the shared memory."""

    @property
    def inputs(self) -> Inputs:
        """What the program reads."""
        return Inputs(self.columns, self.label_columns)

    @property
    def rows(self) -> int:
        """Of one call."""
        return (self.share[1] - self.share[0]) * self.updates

    @staticmethod
    def from_json(line: bytes) -> Work:
        """From a line of JSON that dataclasses.asdict gave."""
        values: Dict[str, Any] = json.loads(line)
        values["model"] = ModelConfig(**values["model"])
        return Work(**{**values, "share": tuple(values["share"]), "columns": tuple(values["columns"])})


class Worker:
    """Makes calls ready, one at a time.

    Raises:
        RowsError: the folder is damaged, or another one than the training was planned with.
    """

    def __init__(self, work: Work) -> None:
        self._work, self._rows = work, RowFolder(Path(work.folder), work.kind, work.model, work.labels)
        if self._rows.sha256 != work.manifest_sha256:
            raise RowsError(f"{work.folder} was replaced since this training began: run the job again")
        self._order = UpdateRows(len(self._rows), work.rows_per_update, work.seed, slice(*work.share), work.total)
        self._slots = Slots(shapes_of(self._rows.manifest, work.inputs, work.rows), work.slots)
        self._memory = mmap.mmap(work.memory, self._slots.bytes)

    def fill(self, step: int, slot: int) -> Counts:
        """Put the call that begins with update `step`, counted from 0, into a slot.

        Raises:
            RowsError: a value that the model cannot look up, with the file and the row.
        """
        work, numbers = self._work, self._order(step, self._work.updates)
        into = self._slots.columns(self._memory, slot)
        return lay(lambda a, b: self._rows.take(numbers[a:b]), work.rows, work.updates, work.inputs, into)


def main() -> int:
    """Work until standard input ends; returns the exit code."""
    argparse.ArgumentParser(
        prog="row_worker", description="Make rows ready for the training that starts this."
    ).parse_args()
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # Python ignores it
    replies = os.fdopen(os.dup(sys.stdout.fileno()), "wb", 0)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what a library prints is no reply
    requests = sys.stdin.buffer
    first = requests.readline()
    try:
        worker = Worker(Work.from_json(first))
        for request in requests:
            step, slot = json.loads(request)
            _reply(replies, counts=worker.fill(step, slot), slot=slot)
    except (RowsError, ConfigError) as error:
        _reply(replies, error=type(error).__name__, arguments=[str(error)])
    except OSError as error:
        _reply(replies, error="OSError", arguments=[error.errno, error.strerror, error.filename])
    return 0


def _reply(replies: Any, **fields: Any) -> None:
    replies.write(json.dumps(fields).encode() + b"\n")


if __name__ == "__main__":
    sys.exit(main())
