"""A slice of `make load`: six runs, each kind of worker killed once, the server restarted, the remote away."""

import tempfile
from pathlib import Path

import pytest

from tests.load.findings import holds, markdown, rows
from tests.load.trial import Options, try_load

pytestmark = pytest.mark.soak


def test_six_runs_of_two_sets_end_right_though_workers_server_and_remote_are_lost():
    # Not in pytest's folder, which PostgreSQL's user may not pass through.
    with tempfile.TemporaryDirectory(prefix="podium-load-") as name:
        Path(name).chmod(0o755)
        trial = try_load(Options(runs=6, sets=2, minutes=15, kills=2), Path(name))
        found = rows(trial)
    assert holds(found), markdown(trial, found)
    assert [trial.disturbances.count(kind) for kind in ("flows", "cpu-1", "server", "remote")] == [1, 1, 2, 1]
