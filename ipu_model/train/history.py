"""The loss curve of a run: history.csv, the same bytes whether or not the run was interrupted."""

from __future__ import annotations

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
        state: From `state()` of an earlier run. Its lines are written anew: that run may have gone on after its
            checkpoint, or have been on another host.
    """

    def __init__(self, folder: Path, parts: Sequence[str], state: Optional[Dict[str, Any]] = None) -> None:
        self._path = Path(folder) / HISTORY
        self._columns = ["loss", *parts]
        saved = state or {}
        self._sums: Dict[str, float] = dict(saved.get("sums", dict.fromkeys(self._columns, 0.0)))
        self._updates = int(saved.get("updates", 0))
        self._lines: List[str] = list(saved.get("lines", []))
        self.last: Dict[str, float] = dict(saved.get("last", {}))
        """Means of the last closed window."""
        header = ",".join(["step", *self._columns, "learning_rate"])
        write_text(self._path, "".join(f"{line}\n" for line in (header, *self._lines)))

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
        self._lines.append(",".join([str(step), *values]))
        with self._path.open("a", encoding="utf-8") as stream:
            stream.write(self._lines[-1] + "\n")
        self._sums = dict.fromkeys(self._columns, 0.0)
        self._updates = 0
        return self.last

    def state(self) -> Dict[str, Any]:
        """The open window and the lines so far, for a checkpoint."""
        return {"sums": dict(self._sums), "updates": self._updates, "last": dict(self.last), "lines": [*self._lines]}
