"""Calls to the Prefect server that survive outages, and locks between hosts that are stored on the server."""

import contextlib
import functools
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import NoReturn, TypeVar
from uuid import UUID

import httpx
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import VariableCreate
from prefect.client.schemas.objects import State
from prefect.exceptions import ObjectAlreadyExists, ObjectNotFound, PrefectHTTPStatusError
from tenacity import RetryCallState, Retrying, retry_if_exception, stop_after_delay, wait_fixed

PATIENCE_S = 900.0
"""Seconds that a server may be away: enough for a restart or an upgrade."""
WAIT_S = 3.0

SERVER_ERRORS = (httpx.TransportError, PrefectHTTPStatusError)
"""Errors of a call when the server is away or answers with an error."""

Answer = TypeVar("Answer")
QUIET_S = 120.0
"""Seconds without optional calls after one failed; the client itself retries for a minute."""
LOCK_PREFIX = "podium_stage_"
"""Prefix of the variables that are stage locks."""
LOCK_POLL_S = 2.0
"""Seconds between checks of a lock that another run has."""


def retry_call(call: Callable[[], Answer], say: Callable[[str], None], patience_s: float = PATIENCE_S) -> Answer:
    """Return the result of a call of the Prefect API; repeat it while the server does not answer, or answers with 5xx.

    `say` receives a message when the server is lost, and when it is back.

    Raises:
        httpx.TransportError, PrefectHTTPStatusError: the server stayed away for `patience_s`, or refused the call.
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
    """Return whether the server does not answer or answers with 5xx; other errors would not go away by a retry."""
    if isinstance(error, PrefectHTTPStatusError):
        return error.response.status_code >= 500
    return isinstance(error, SERVER_ERRORS)


@functools.cache  # called several times while the process of the run is ending
def is_cancelled(run: str | None) -> bool:
    """Return whether a user or a deadline cancelled a flow run; False if the server does not answer."""
    state = None if run is None else read_state(UUID(run))
    return state is not None and (state.is_cancelling() or state.is_cancelled())


def read_state(run: UUID) -> State | None:
    """Return the state of a flow run; None if it is unknown or the server does not answer."""
    with contextlib.suppress(ObjectNotFound, *SERVER_ERRORS), get_client(sync_client=True) as client:
        return client.read_flow_run(run).state
    return None


class OptionalCalls:
    """Runner of optional calls, such as updates of progress bars: if the server is away they are skipped."""

    def __init__(self) -> None:
        self._quiet_until = 0.0

    def __call__(self, call: Callable[[], Answer]) -> Answer | None:
        """Return the result of `call`; None if the server does not answer, or did not answer recently."""
        if time.monotonic() < self._quiet_until:
            return None
        try:
            return call()
        except SERVER_ERRORS:
            self._quiet_until = time.monotonic() + QUIET_S
            return None


call_optional = OptionalCalls()


class StageLock:
    """Locks for identical stages on several hosts: one host runs the stage, the others wait for its pushed outs.

    The lock of a stage is a variable on the Prefect server, where names are unique. Its value is the flow run that has
    the lock, so that a lock expires when the server has recorded the end of that run. A flow run has at most one lock.
    """

    def __init__(self, run: str, say: Callable[[str], None]) -> None:
        """Create an object without a lock for the flow run with the ID `run`."""
        self._run, self._say = run, say

    @contextlib.contextmanager
    def __call__(self, stage: str, fingerprint: str) -> Iterator[None]:
        """Wait for the lock of a stage, by the hash of its command, parameters and inputs; hold it within the context.

        If the server is away at the end, the lock expires with the run.
        """
        name, waited = f"{LOCK_PREFIX}{fingerprint}", False
        with get_client(sync_client=True) as client:
            # This run already has the lock if it retries a stage whose remote was away.
            while (holder := retry_call(lambda: self._create(client, name), self._say)) not in (None, self._run):
                if retry_call(lambda holder=holder: _has_ended(client, holder), self._say):  # type: ignore[misc]
                    _delete(client, name)
                    continue
                if not waited:
                    self._say(f"stage {stage}: another host is running the same stage; waiting for it")
                waited = True
                time.sleep(LOCK_POLL_S)
        try:
            yield
        finally:
            with contextlib.suppress(*SERVER_ERRORS), get_client(sync_client=True) as client:
                _delete(client, name)

    def _create(self, client: SyncPrefectClient, name: str) -> str | None:
        """Create the variable and return None, or return the run that has the lock."""
        with contextlib.suppress(ObjectAlreadyExists):
            client.create_variable(VariableCreate(name=name, value=self._run))
            return None
        variable = client.read_variable_by_name(name)
        return self._create(client, name) if variable is None else str(variable.value)


def _has_ended(client: SyncPrefectClient, run: str) -> bool:
    try:
        state = client.read_flow_run(UUID(run)).state
    except (ObjectNotFound, ValueError):  # the run was deleted, or the variable is not Podium's
        return True
    return state is None or state.is_final()


def _delete(client: SyncPrefectClient, name: str) -> None:
    with contextlib.suppress(ObjectNotFound):
        client.delete_variable_by_name(name)


OBSERVERS = ("FlowRunSuspendingObserver", "FlowRunCancellingObserver")


def filter_outages(record: logging.LogRecord) -> bool:
    """Return False for messages of Prefect's services about a server that is away; they retry by themselves."""
    text = record.getMessage()
    if record.name == "asyncio":
        return not any(name in text for name in OBSERVERS)
    if record.name.endswith(OBSERVERS) or record.name.startswith("websockets."):
        return record.exc_info is None
    return not text.startswith(("Unable to connect to 'ws", "Service 'EventsWorker' failed to process item"))


def silence_outages() -> None:
    """Suppress Prefect's messages about outages in this process, since `retry_call` and workers report them."""
    loggers = [logging.getLogger(), *map(logging.getLogger, logging.root.manager.loggerDict)]
    for handler in {handler for logger in loggers for handler in logger.handlers}:
        handler.addFilter(filter_outages)
    logging.raiseExceptions = False  # lines that do not reach the server are still in the log of this process


def exit_without_server(code: int) -> NoReturn:
    """Exit immediately after the server was lost.

    A normal exit would take long, because Prefect retries each pending event and log line for seconds.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
