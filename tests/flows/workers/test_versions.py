"""`podium doctor` names workers whose versions do not fit, by what they state on a real Prefect server."""

import json
import shutil
import subprocess
import sys

import pytest
from prefect.client.orchestration import get_client
from prefect.settings import PREFECT_API_URL

from flows.workers import versions
from flows.workers.deploy import create_pools
from flows.workers.versions import check_workers, state_versions
from tests.places import ROOT


@pytest.fixture
def other_code(tmp_path):
    for part in ("flows", "tasks", "ipu_model"):
        shutil.copytree(ROOT / part, tmp_path / part, ignore=shutil.ignore_patterns("__pycache__"))
    for name in (".dvcignore", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path / name)
    with (tmp_path / "flows/cli.py").open("a") as file:
        file.write("# changed\n")
    return tmp_path


def see(name, pool):
    with get_client(sync_client=True) as client:
        create_pools(client, lambda text: None)
        body = {"name": name, "heartbeat_interval_seconds": 30}
        client.request("POST", f"/work_pools/{pool}/workers/heartbeat", json=body)


def test_a_worker_of_other_code_a_newer_prefect_or_none_stated_is_named_with_what_to_do(
    prefect_server, other_code, monkeypatch
):
    assert [*check_workers(ROOT)] == [], "no worker is online"
    see("same", "cpu")
    state_versions(ROOT, "cpu", [], "same")
    [alike] = check_workers(ROOT)
    assert (alike.name, alike.level) == ("workers", "ok")
    assert alike.text == "1 worker online, of the same code as this checkout"

    see("other", "ipu")
    state_versions(other_code, "ipu", ["pod-a"], "other")
    see("silent", "flows")
    found = {one.text for one in check_workers(ROOT)}
    silent, other = sorted(found, key=lambda text: "runs other code" in text)
    assert silent.startswith("silent of pool flows states no versions, as it is of an older Podium: bring both to one")
    assert other.startswith("other of pool ipu on ")
    assert "runs other code than this checkout in flows (commit " in other
    assert "restart the worker" in other

    state_versions(ROOT, "ipu", ["pod-a"], "other")
    state_versions(ROOT, "flows", [], "silent")
    monkeypatch.setattr(versions.metadata, "version", lambda name: "99.1.0")
    state_versions(ROOT, "ipu", ["pod-a"], "other")
    host, worker = (one.text for one in check_workers(ROOT))
    assert "this host 99.1.0: update the server first" in host
    assert worker.startswith("other of pool ipu has Prefect 99.1.0, newer than the server's 3.")

    probe = [sys.executable, "-m", "flows.workers.versions"]
    env = {"PATH": "/usr/bin", "PREFECT_API_URL": PREFECT_API_URL.value()}
    asked = json.dumps({"project": str(ROOT)})
    said = subprocess.run(probe, input=asked, env=env, cwd=ROOT, text=True, capture_output=True)
    assert json.loads(said.stdout)["text"] == worker, said.stderr


def test_a_server_that_does_not_answer_is_reported_by_another_check(monkeypatch):
    probe = [sys.executable, "-m", "flows.workers.versions"]
    env = {"PATH": "/usr/bin", "PREFECT_API_URL": "http://127.0.0.1:9/api", "PREFECT_CLIENT_MAX_RETRIES": "0"}
    said = subprocess.run(probe, input='{"project": "."}', env=env, cwd=ROOT, text=True, capture_output=True)
    assert (said.returncode, said.stdout) == (0, ""), said.stderr
