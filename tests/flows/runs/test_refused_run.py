"""`podium run` on a host whose memory is too small for a device job: refused before anything starts, unless forced."""

import os
import resource
import subprocess
import sys

import pytest

from tests.flows.checks.preflight_project import asks_device, empty_clone, tree  # noqa: F401 (fixtures)
from tests.places import ROOT

LIMIT = 200 << 20
"""Bytes of data that a process may have: Python and what a plan loads, and not torch with the demo's model."""


def podium(project, *words):
    return subprocess.run(
        [sys.executable, "-m", "flows", "--project", str(project), *words],
        cwd=ROOT,
        text=True,
        capture_output=True,
        timeout=300,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PODIUM_LEDGER": ""},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_DATA, (LIMIT, LIMIT)),
    )


@pytest.mark.soak
@pytest.mark.usefixtures("asks_device")
def test_a_run_that_cannot_fit_is_refused_and_leaves_nothing(project):
    before = tree(project)
    done = podium(project, "run")
    assert done.returncode == 1, done.stderr
    assert "nothing was started" in done.stderr
    for job in ("pretrain@phase1", "pretrain@phase2", "finetune@squad", "predict@squad"):
        assert f"{job} does not fit: the process needs " in done.stderr
    assert "The largest part is Python, torch and its libraries" in done.stderr
    assert "Use podium run --force" in done.stderr
    kept = {path: seen for path, seen in tree(project).items() if path.parts[0] != "runs"}
    assert kept == before, "but for the lock of the run"
