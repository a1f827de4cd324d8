"""Fixtures of downstream tasks."""

import pytest

from tests.tasks.downstream.texts.glue_checkout import run_jobs_here


@pytest.fixture
def jobs_here(monkeypatch: pytest.MonkeyPatch) -> None:
    run_jobs_here(monkeypatch)
