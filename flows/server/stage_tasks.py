"""Prefect's view of a run: a task a stage, the run's log, progress artifacts, and what cancelled it."""

import re
import time
from collections.abc import Callable
from typing import Any, cast

from prefect import get_run_logger, task
from prefect.artifacts import create_progress_artifact, update_progress_artifact
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State
from prefect.exceptions import TerminationSignal
from prefect.runtime import flow_run
from prefect.states import Cancelled, Completed, Failed

from flows.dvc.engine import Follower
from flows.dvc.session import Listener
from flows.runs.report import WORKER_ENDED, RunReport
from flows.runs.stopping import CANCELLED_IN_PREFECT, RunFailed, RunPaused, RunStopped, stop
from flows.server.api import call_optional, is_cancelled
from flows.views.screen import current_screen, format_progress
from tasks.pages.markup import markdown_text
from tasks.plan.plan_file import Stage
from tasks.stage.process import is_sent
from tasks.stage.streams import NOTE, printable

PAUSED_STATE = "Paused"
SECONDS_BETWEEN_UPDATES = 3.0
"""Minimum interval between updates of a progress artifact, each of which is a call to the API."""

CANCELLED = (RunStopped, KeyboardInterrupt, TerminationSignal)
"""Errors that end a cancelled run: by Ctrl-C, by SIGTERM, or by a worker, which sends SIGTERM to its run."""


def describe_cancellation(error: BaseException) -> str:
    """Describe what cancelled or interrupted a run."""
    if stop.number:
        return stop.reason()
    if isinstance(error, TerminationSignal) and not is_sent():
        return "SIGTERM"
    if isinstance(error, TerminationSignal) and not is_cancelled(flow_run.id):
        return WORKER_ENDED
    return "Ctrl-C" if isinstance(error, KeyboardInterrupt) else CANCELLED_IN_PREFECT


class PrefectFollower(Follower):
    """Follower that shows a run on a Prefect server and on the terminal."""

    def say(self, text: str) -> None:
        get_run_logger().info(printable(text))
        super().say(text)

    def run_step(self, kind: str, name: str, body: Callable[[], str]) -> str:
        """Call `body` as a Prefect task whose state shows the outcome; return its result or raise its error."""
        raised: list[BaseException] = []

        # The task has no tags: for each tag, Prefect requests a slot from the server, which takes seconds.
        @task(name=kind, task_run_name=name, cache_policy=NO_CACHE, retries=0)
        def attempt() -> str | State[str]:
            try:
                return body()
            except (RunFailed, RunPaused, *CANCELLED) as error:  # expected; Prefect would log a traceback
                if isinstance(error, CANCELLED) and describe_cancellation(error) == WORKER_ENDED:
                    raise
                raised.append(error)
                if isinstance(error, RunPaused):
                    return Completed(name=PAUSED_STATE, message=str(error))
                return Failed(message=str(error)) if isinstance(error, RunFailed) else Cancelled(message=str(error))

        state = attempt(return_state=True)
        if raised:
            raise raised[0]
        return cast(str, state.result())

    def describe_error(self, error: BaseException) -> str:
        if isinstance(error, CANCELLED):
            return "interrupted" if describe_cancellation(error) == WORKER_ENDED else "cancelled"
        return super().describe_error(error)

    def listen(self, stage: Stage, run: RunReport) -> Listener:
        artifact = _Progress(stage)

        def tell(line: str) -> None:
            get_run_logger().info(printable(line))  # on a worker, the log also goes to a terminal
            current_screen().line(line)

        def progress(percent: int, text: str) -> None:
            run.progress[stage.name] = format_progress(percent, text)
            get_run_logger().info(printable(run.progress[stage.name]))
            current_screen().progress(stage.name, percent, text)
            artifact(percent)

        return Listener(tell, lambda text: self.say(f"{NOTE}{text}"), progress)


class _Progress:
    def __init__(self, stage: Stage) -> None:
        counted = "training updates" if stage.plots else "rows"
        description = f"{markdown_text(stage.name)}: percentage of {counted} done"
        self._about = {"key": "stage-" + re.sub(r"[^a-z0-9]", "-", stage.name), "description": description}
        self._artifact: Any = None
        self._updated_at = 0.0

    def __call__(self, percent: float) -> None:
        if percent < 100 and time.monotonic() - self._updated_at < SECONDS_BETWEEN_UPDATES:
            return
        self._updated_at = time.monotonic()
        if self._artifact is None:
            self._artifact = call_optional(lambda: create_progress_artifact(progress=percent, **self._about))
        else:
            call_optional(lambda: update_progress_artifact(artifact_id=self._artifact, progress=percent))
