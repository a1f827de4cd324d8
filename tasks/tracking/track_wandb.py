"""Weights & Biases tracker: online with WANDB_API_KEY (or as WANDB_MODE sets), otherwise offline in
<tracking.folder>/wandb/.

wandb's own process keeps data that a server does not accept, and sends it later, so it handles a server that fails
during a run. If the server cannot be reached or refuses at the start, the run is recorded offline.
"""

import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import wandb

from ipu_model.core.files import read_json, write_json
from tasks.stage.background import format_error
from tasks.tracking.trackers import End, Point

INIT_SECONDS = 15.0
"""Seconds to wait for a server before the run is recorded offline."""
FINISH_SECONDS = 15.0
"""Seconds for a server to accept the rest. wandb's process must not be stopped earlier, or its file lacks the end."""

SWEEP = ("WANDB_SWEEP_ID", "WANDB_SWEEP_PARAM_PATH", "WANDB_RUN_ID")
"""Variables of `wandb agent`, with which all trainings would become its one run."""


class WandB:
    """One run, identified by its ID; nothing about the host, its code or its packages is recorded."""

    away: tuple[type[Exception], ...] = ()

    def __init__(self, say: Callable[[str], None]) -> None:
        for name in SWEEP:
            os.environ.pop(name, None)
        self._say = say
        self._run: Any = None
        self._mark = Path()
        """File with the last update that this host logged; offline, there is no server to ask."""

    def open(self, run: Mapping[str, Any]) -> int:
        """Start or resume the run; offline, each process creates its own folder with the same ID."""
        folder = Path(run["folder"])
        folder.mkdir(parents=True, exist_ok=True)
        self._mark = folder / "wandb-updates" / f"{run['id']}.json"
        mode = os.environ.get("WANDB_MODE") or ("online" if os.environ.get("WANDB_API_KEY") else "offline")
        try:
            self._run = _begin(run, folder, mode)
        except wandb.Error as error:
            self._say(f"recording offline, as the server is not available ({format_error(error)})")
            mode = "offline"
            wandb.teardown(exit_code=1)  # its process still has the ID of the failed run
            self._run = _begin(run, folder, mode)
        if mode == "offline":
            at = Path(self._run.dir).parent.resolve()
            self._say(f"recording offline; upload it with `wandb sync --append {at}`")
            return int(read_json(self._mark)["update"]) if self._mark.is_file() else 0
        return max(0, int(self._run.starting_step) - 1)  # 0 for a new run, otherwise the server's last step + 1

    def configure(self, config: Mapping[str, Any]) -> None:
        """Set the run's config."""
        self._run.config.update(dict(config), allow_val_change=True)

    def log(self, points: list[Point]) -> None:
        """Log metrics; wandb's step is the update."""
        for point in points:
            self._run.log(dict(point.values), step=point.update)
        write_json(self._mark, {"update": max(point.update for point in points)})

    def close(self, end: End) -> None:
        """Write figures to the run's summary."""
        self._run.summary.update(dict(end.figures))
        if end.status in ("paused", "killed"):
            self._run.mark_preempting()  # shown as preempted instead of crashed
        at = Path(self._run.dir).parent
        try:
            self._run.finish(exit_code=0 if end.status == "finished" else 1)
        except TimeoutError:
            self._say(f"the server did not accept all data in {FINISH_SECONDS:.0f} s; upload it with `wandb sync {at}`")
        wandb.teardown()  # otherwise the stage would wait for its process


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
        sys.exit, sys.excepthook = hooks  # with wandb's hooks, a failing stage would print its traceback twice


BACKEND = WandB
