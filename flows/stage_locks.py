"""Equal stages on several hosts: one runs, the others wait for what it pushes.

The lock of a stage is a variable on the Prefect server, which makes each name once. It holds the flow run that has the
lock, so that a run whose worker was lost keeps nobody waiting once the server has seen its end.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import VariableCreate
from prefect.exceptions import ObjectAlreadyExists, ObjectNotFound

from flows.api import UNREACHED, patiently

NAME = "podium_stage_"
LOOK_S = 2.0
"""Seconds between looks at a lock that another run has."""


class StageLocks:
    """The locks of one flow run, which holds at most one at a time."""

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
        name, waited = f"{NAME}{fingerprint}", False
        with get_client(sync_client=True) as client:
            # It is this run's own where a stage is tried again, as its remote was away.
            while (holder := patiently(lambda: self._create(client, name), self._say)) not in (None, self._run):
                if patiently(lambda holder=holder: _has_ended(client, holder), self._say):  # type: ignore[misc]
                    _delete(client, name)
                    continue
                if not waited:
                    self._say(f"stage {stage}: an equal stage is running on another host; waiting for it")
                waited = True
                time.sleep(LOOK_S)
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
