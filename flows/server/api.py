"""Calls of the Prefect server that outlive a server that is gone for a while, and locks that it keeps for hosts."""

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
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import VariableCreate
from prefect.exceptions import ObjectAlreadyExists, ObjectNotFound, PrefectHTTPStatusError
from tenacity import RetryCallState, Retrying, retry_if_exception, stop_after_delay, wait_fixed

PATIENCE_S = 900.0
"""How long a server may be away: a restart or an upgrade, not a lost machine."""
WAIT_S = 3.0

UNREACHED = (httpx.TransportError, PrefectHTTPStatusError)
"""What a call raises when the server is away, or answers with an error."""

Answer = TypeVar("Answer")
QUIET_S = 120.0
"""Once its client has tried for a minute, a server that is away is left alone for so long by calls nobody needs."""
STAGE_LOCK = "podium_stage_"
"""How the names of variables begin that are locks of stages."""
LOCK_LOOK_S = 2.0
"""Seconds between looks at a lock that another run has."""


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


class StageLocks:
    """Equal stages on several hosts: one runs, the others wait for what it pushes.

    The lock of a stage is a variable on the Prefect server, which makes each name once. It holds the flow run that has
    the lock, so that a run whose worker was lost keeps nobody waiting once the server has seen its end. A flow run has
    one lock at most.
    """

    def __init__(self, run: str, say: Callable[[str], None]) -> None:
        """Hold none yet.

        Args:
            run: id of the flow run.
            say: takes a line for people.
        """
        self._run, self._say, self._name = run, say, ""

    def take(self, stage: str, fingerprint: str) -> bool:
        """Take the lock of a stage as soon as no other run has it; return whether another run had it.

        Args:
            stage: its name, for people.
            fingerprint: hash of its command, parameters and inputs.
        """
        name, waited = f"{STAGE_LOCK}{fingerprint}", False
        with get_client(sync_client=True) as client:
            # It is this run's own where a stage is tried again, as its remote was away.
            while (holder := patiently(lambda: self._create(client, name), self._say)) not in (None, self._run):
                if patiently(lambda holder=holder: _has_ended(client, holder), self._say):  # type: ignore[misc]
                    _delete(client, name)
                    continue
                if not waited:
                    self._say(f"stage {stage}: an equal stage is running on another host; waiting for it")
                waited = True
                time.sleep(LOCK_LOOK_S)
        self._name = name
        return waited

    def release(self) -> None:
        """Give the lock back, if this run has one; a server that is away sees by the end of the run that it is free."""
        if name := self._name:
            self._name = ""
            with contextlib.suppress(*UNREACHED), get_client(sync_client=True) as client:
                _delete(client, name)

    def _create(self, client: SyncPrefectClient, name: str) -> str | None:
        """Create the variable, and return None; or return the run that has it."""
        with contextlib.suppress(ObjectAlreadyExists):
            client.create_variable(VariableCreate(name=name, value=self._run))
            return None
        found = client.read_variable_by_name(name)
        return self._create(client, name) if found is None else str(found.value)


def _has_ended(client: SyncPrefectClient, run: str) -> bool:
    try:
        state = client.read_flow_run(UUID(run)).state
    except (ObjectNotFound, ValueError):  # it was deleted, or the variable is not ours
        return True
    return state is None or state.is_final()


def _delete(client: SyncPrefectClient, name: str) -> None:
    with contextlib.suppress(ObjectNotFound):
        client.delete_variable_by_name(name)


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
