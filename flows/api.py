"""Calls of the Prefect server that outlive a server that is gone for a while."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import sys
import time
from collections.abc import Callable
from typing import NoReturn, TypeVar
from uuid import UUID

import httpx
from prefect.client.orchestration import get_client
from prefect.exceptions import ObjectNotFound, PrefectHTTPStatusError
from tenacity import RetryCallState, Retrying, retry_if_exception, stop_after_delay, wait_fixed

PATIENCE_S = 900.0
"""How long a server may be away: a restart or an upgrade, not a lost machine."""
WAIT_S = 3.0

UNREACHED = (httpx.TransportError, PrefectHTTPStatusError)
"""What a call raises when the server is away, or answers with an error."""

Answer = TypeVar("Answer")


def patiently(call: Callable[[], Answer], say: Callable[[str], None], patience_s: float = PATIENCE_S) -> Answer:
    """What `call` returns; while the server does not answer, or answers with 5xx, it is called again.

    Args:
        call: asks the Prefect API; may be repeated.
        say: takes a line when the server is lost and when it is back.
        patience_s: seconds after which the server's last error is raised.

    Raises:
        httpx.TransportError, PrefectHTTPStatusError: the server stayed away, or it refused.
    """

    def lost(state: RetryCallState) -> None:
        if state.attempt_number == 1 and state.outcome is not None:
            error = type(state.outcome.exception()).__name__
            say(f"the Prefect server does not answer ({error}); waiting up to {patience_s:.0f} s")

    away, limit = retry_if_exception(is_away), stop_after_delay(patience_s)
    called = Retrying(retry=away, wait=wait_fixed(WAIT_S), stop=limit, before_sleep=lost, reraise=True)
    began = time.monotonic()
    answer = called(call)
    if called.statistics["attempt_number"] > 1:
        say(f"the Prefect server is back after {time.monotonic() - began:.0f} s")
    return answer


def is_away(error: BaseException) -> bool:
    """Whether nobody answers, or the server has a fault of its own; a refusal stays one however often it is asked."""
    if isinstance(error, PrefectHTTPStatusError):
        return error.response.status_code >= 500
    return isinstance(error, UNREACHED)


@functools.cache  # asked while the process of the run is ended, by each who ends
def is_cancelled(run: str | None) -> bool:
    """Whether a person, or a deadline, cancelled a flow run; False where the server does not say."""
    with contextlib.suppress(ObjectNotFound, *UNREACHED), get_client(sync_client=True) as client:
        state = client.read_flow_run(UUID(run)).state if run is not None else None
        return state is not None and (state.is_cancelling() or state.is_cancelled())
    return False


QUIET_S = 120.0
"""Once its client has tried for a minute, a server that is away is left alone for so long by calls nobody needs."""


class Extras:
    """Calls that a run can do without, such as its progress bars: a server that is away costs the run only them."""

    def __init__(self) -> None:
        self._quiet_until = 0.0

    def __call__(self, call: Callable[[], Answer]) -> Answer | None:
        """What `call` returns; None where the server did not answer, or did not lately."""
        if time.monotonic() < self._quiet_until:
            return None
        try:
            return call()
        except UNREACHED:
            self._quiet_until = time.monotonic() + QUIET_S
            return None


extra = Extras()


OBSERVERS = ("FlowRunSuspendingObserver", "FlowRunCancellingObserver")


class OutageFilter(logging.Filter):
    """Leaves out what services of Prefect, which try again, say of a server that is away, each for itself."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a record is about something else."""
        text = record.getMessage()
        if record.name == "asyncio":
            return not any(name in text for name in OBSERVERS)
        if record.name.endswith(OBSERVERS) or record.name.startswith("websockets."):
            return record.exc_info is None
        return not text.startswith(("Unable to connect to 'ws", "Service 'EventsWorker' failed to process item"))


def quiet_outages() -> None:
    """Let this process say in its own words that the server is away, as `patiently` and a worker do."""
    loggers = [logging.getLogger(), *map(logging.getLogger, logging.root.manager.loggerDict)]
    for handler in {handler for logger in loggers for handler in logger.handlers}:
        handler.addFilter(OutageFilter())
    logging.raiseExceptions = False  # log lines that do not reach the server are in the log of this process


def end_without_server(code: int) -> NoReturn:
    """End this process at once, its server being lost for good.

    Prefect holds events and log lines for the server back, and would try each of them for seconds before it gives up.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
