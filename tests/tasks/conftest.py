"""Fixtures of more than one test file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hub_server import HubServer, running_hub
from tests.tasks.release.hub_publishing import TOKEN


@pytest.fixture(name="hub")
def hub_over_http(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    """A Hub with one user, whom the environment names; at the end the test fails if the protocol was broken."""
    with running_hub(tmp_path / "hub") as server:
        monkeypatch.setenv("HF_TOKEN", server.add_user(TOKEN))
        monkeypatch.setenv("HF_ENDPOINT", server.endpoint)
        yield server
