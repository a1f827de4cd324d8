"""Tracker wandb: online with WANDB_API_KEY (or as WANDB_MODE says), else offline in <tracking.folder>/wandb/.

wandb's own process keeps what a server does not take, and sends it later; so a server that goes away in the middle is
its business; one that cannot be reached or refuses at the beginning: the run is recorded offline.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import wandb

from ipu_model.files import read_json, write_json
from tasks.tracking.tracker import End, Point, in_one_line

INIT_SECONDS = 15.0
"""For a server to answer, before the run is recorded offline."""
FINISH_SECONDS = 15.0
"""For a server to take the rest. wandb's process must not be stopped before it gave up: its file lacks the end then."""


class WandB:
    """One run, by its id; nothing about the host, its code or its packages is recorded."""

    away: tuple[type[Exception], ...] = ()

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._run: Any = None
        self._mark = Path()
        """Holds the last update of the run that was handed over on this host: offline nobody else can be asked."""

    def open(self, run: Mapping[str, Any]) -> int:
        """Begin the run or continue it; offline each process makes a folder of its own with the same id."""
        folder = Path(run["folder"])
        folder.mkdir(parents=True, exist_ok=True)
        self._mark = folder / "wandb-updates" / f"{run['id']}.json"
        mode = os.environ.get("WANDB_MODE") or ("online" if os.environ.get("WANDB_API_KEY") else "offline")
        try:
            self._run = _begin(run, folder, mode)
        except wandb.Error as error:
            self._say(f"records offline, as the server could not be used ({in_one_line(error)})")
            mode = "offline"
            wandb.teardown(exit_code=1)  # its process holds the id of the run that did not begin
            self._run = _begin(run, folder, mode)
        if mode == "offline":
            at = Path(self._run.dir).parent.resolve()
            self._say(f"recorded offline; `wandb sync --append {at}` sends it")
            return int(read_json(self._mark)["update"]) if self._mark.is_file() else 0
        return max(0, int(self._run.starting_step) - 1)  # that of a new run is 0, else the one after the server's last

    def configure(self, config: Mapping[str, Any]) -> None:
        """The run's config."""
        self._run.config.update(dict(config), allow_val_change=True)

    def log(self, points: list[Point]) -> None:
        """Metrics; wandb's step is the update."""
        for point in points:
            self._run.log(dict(point.values), step=point.update)
        write_json(self._mark, {"update": max(point.update for point in points)})

    def close(self, end: End) -> None:
        """Figures go to the run's summary."""
        self._run.summary.update(dict(end.figures))
        if end.status in ("paused", "killed"):
            self._run.mark_preempting()  # shown as preempted, not as crashed
        at = Path(self._run.dir).parent
        try:
            self._run.finish(exit_code=0 if end.status == "finished" else 1)
        except TimeoutError:
            self._say(f"the server did not take everything in {FINISH_SECONDS:.0f} s; `wandb sync {at}` sends the rest")
        wandb.teardown()  # else the end of the stage would wait for its process


def _begin(run: Mapping[str, Any], folder: Path, mode: Any) -> Any:
    settings = wandb.Settings(
        console="off",
        silent=True,
        disable_git=True,
        save_code=False,
        init_timeout=INIT_SECONDS,
        finish_timeout=FINISH_SECONDS,
        finish_timeout_raises=True,
        x_disable_meta=True,
        x_disable_stats=True,
        x_disable_machine_info=True,
        x_save_requirements=False,
    )
    hooks = sys.exit, sys.excepthook
    try:
        return wandb.init(
            project=run["project"],
            id=run["id"],
            name=run["name"],
            group=run["group"],
            job_type=run["stage"],
            dir=str(folder),
            mode=mode,
            resume="allow" if mode == "online" else None,
            settings=settings,
        )
    finally:
        sys.exit, sys.excepthook = hooks  # with wandb's own, a stage that fails would print its traceback twice


BACKEND = WandB
