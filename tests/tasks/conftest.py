"""Fixtures of more than one test file."""

from collections.abc import Iterator

import pytest

from tests.hub_server import HubServer, running_hub
from tests.tasks.release.hub_publishing import TOKEN


@pytest.fixture(name="hub")
def hub_over_http(monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    """A Hub with one user, whom the environment names; at the end the test fails if the protocol was broken."""
    with running_hub() as server:
        monkeypatch.setenv("HF_TOKEN", server.add_user(TOKEN))
        monkeypatch.setenv("HF_ENDPOINT", server.endpoint)
        yield server
