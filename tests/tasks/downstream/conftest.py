"""Fixtures of downstream tasks."""

from __future__ import annotations

import pytest

from tests.tasks.downstream.texts.glue_checkout import run_jobs_here


@pytest.fixture
def jobs_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Device jobs run in this process."""
    run_jobs_here(monkeypatch)
