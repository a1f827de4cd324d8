"""The loss curve of a run: history.csv, the same bytes whether or not the run was interrupted."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence

from ipu_model.files import write_text

HISTORY = "history.csv"


class History:
    """Means over windows of updates, appended to `history.csv`.

    Columns: step (the last update of the window, counted from 1), loss, its parts, learning_rate (of that
    update). Nothing here depends on the clock.

    Args:
        folder: Run folder.
        parts: Names of the parts of the loss.
        state: From `state()` of an earlier run; lines after `resumed_from` are dropped.
    """

    def __init__(
        self, folder: Path, parts: Sequence[str], resumed_from: int = 0, state: Optional[Dict[str, Any]] = None
    ) -> None:
        self._path = Path(folder) / HISTORY
        self._columns = ["loss", *parts]
        saved = state or {}
        self._sums: Dict[str, float] = dict(saved.get("sums", dict.fromkeys(self._columns, 0.0)))
        self._updates = int(saved.get("updates", 0))
        self.last: Dict[str, float] = dict(saved.get("last", {}))
        """Means of the last closed window."""
        header = ",".join(["step", *self._columns, "learning_rate"]) + "\n"
        write_text(self._path, header + "".join(self._kept_lines(resumed_from)))

    def _kept_lines(self, resumed_from: int) -> List[str]:
        if not resumed_from or not self._path.is_file():
            return []
        lines = self._path.read_text(encoding="utf-8").splitlines(keepends=True)[1:]
        return [x for x in lines if x.endswith("\n") and int(x.partition(",")[0]) <= resumed_from]

    def add(self, loss: float, parts: Dict[str, float]) -> None:
        """Count one update into the open window."""
        self._updates += 1
        for name, value in {"loss": loss, **parts}.items():
            self._sums[name] += value

    def close_window(self, step: int, learning_rate: float) -> Dict[str, float]:
        """Write the means of the open window, and start the next.

        Returns:
            The means: loss and its parts.
        """
        self.last = {name: self._sums[name] / self._updates for name in self._columns}
        values = [f"{x:.8g}" for x in (*self.last.values(), learning_rate)]
        with self._path.open("a", encoding="utf-8") as stream:
            stream.write(",".join([str(step), *values]) + "\n")
        self._sums = dict.fromkeys(self._columns, 0.0)
        self._updates = 0
        return self.last

    def state(self) -> Dict[str, Any]:
        """The open window, for a checkpoint; what was written so far reaches the disk first."""
        with self._path.open("a", encoding="utf-8") as stream:
            os.fsync(stream.fileno())
        return {"sums": dict(self._sums), "updates": self._updates, "last": dict(self.last)}
