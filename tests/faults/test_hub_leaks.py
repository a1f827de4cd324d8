"""Secrets that were planted are found nowhere: not in what a run wrote or printed, nor in what it sent."""

import base64
import os
import subprocess
import sys

import pytest
import yaml

from tests.flows.conftest import TOY_PLAN
from tests.places import DVC_FOLDERS, ROOT
from tests.tasks.release.hub_publishing import NAME, TOKEN
from tests.tasks.trained_checkout import make_checkout

SECRETS = {
    "HF_TOKEN": TOKEN,
    "PREFECT_API_AUTH_STRING": "admin:PlantedServerPassword77",
    "AWS_SECRET_ACCESS_KEY": "PlantedAwsKey4411aBcD",
    "remote": "PlantedRemotePassword2906",
}
DVC_YAML = """
stages:
  gate:
    foreach: [squad]
    do:
      cmd: python stage.py
      meta: {publish: publish_toy}
      deps: [stage.py]
      params: [downstream.squad.gate]
      metrics: [{metrics/squad-gate.json: {persist: true}}]
"""
STAGE = """
import os, pathlib, sys
verdict = pathlib.Path("metrics/squad-gate.json")
if not verdict.exists():
    verdict.parent.mkdir()
    verdict.write_text('{"accepted": false, "reasons": []}')
sys.exit(os.environ.get("TOY_FAILS"))
"""
PUBLISH = f"""
from tasks.plan.main import run_main
from tasks.release import publish
{TOY_PLAN}
run_main(publish.main)
"""
FLOW = f"""
import sys
from flows import cli
from flows.runs import checkout
checkout.CODE = ("stage.py", "publish_toy.py")
{TOY_PLAN}
cli.main(["run", *sys.argv[1:]])
"""
REFUSED = {"method": "GET", "pattern": "whoami", "status": 401, "times": 99}
REPEATED = {"method": "POST", "pattern": "/commit/", "status": 403, "times": 99}
WAYS = {
    "published": ({}, "", 0, "Podium run: published"),
    "token refused": (REFUSED, "", 1, "checking the token failed"),
    "the Hub repeats the token": (REPEATED, "", 1, "*** is not enough"),
    "nothing to publish": ({}, "downstream.squad.gate.min_f1=1", 3, "Podium run: rejected"),
    "wrong parameters": ({}, "publish.reviewed=true", 2, "publish.reviewed is not known"),
}
"""What goes wrong, a parameter of a checkout of its own, exit code, and the message."""


@pytest.fixture
def project(tmp_path):
    """Everything up to the gate is there; secrets are where users put them."""
    project = make_checkout(tmp_path / "project")
    values = yaml.safe_load((project / "params.yaml").read_text())
    values["publish"]["target"] = "hub"
    values["downstream"]["squad"]["publish"]["repository"] = NAME
    (project / "params.yaml").write_text(yaml.safe_dump(values))
    (project / "dvc.yaml").write_text(DVC_YAML)
    (project / "stage.py").write_text(STAGE)
    (project / "publish_toy.py").write_text(PUBLISH)
    for name in ("inputs", "presets"):
        (project / name).symlink_to(ROOT / name)
    (project / ".dvc").mkdir()
    (project / ".dvc" / "config").write_text("[core]\n    no_scm = true\n    analytics = false\n")
    remote = f"['remote \"far\"']\n    url = ssh://me@127.0.0.1/store\n    password = {SECRETS['remote']}\n"
    (project / ".dvc" / "config.local").write_text(remote)
    return project


def environment(home):
    places = ("PREFECT_HOME", "HOME", "HF_HOME", *DVC_FOLDERS)
    return {
        **os.environ,
        **{name: value for name, value in SECRETS.items() if name != "remote"},
        **{name: str(home / name.lower()) for name in places},
        "PREFECT_SERVER_API_AUTH_STRING": SECRETS["PREFECT_API_AUTH_STRING"],
        "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "120",
        "PYTHONPATH": str(ROOT),
    }


def run(words, project, code):
    """Run in the project; what it printed is kept next to it, to be searched like everything else."""
    done = subprocess.run(
        words, cwd=project, env=environment(project.parent), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    with (project.parent / "printed.txt").open("a", encoding="utf-8") as printed:
        printed.write(done.stdout)
    assert done.returncode == code, done.stdout


def require_no_leak(folder):
    """No secret is in a file below `folder`, but in the one that a user wrote it into."""
    leaks = set()
    for path in folder.rglob("*"):
        if path.is_symlink() or not path.is_file() or path == folder / "project" / ".dvc" / "config.local":
            continue
        content = path.read_bytes()
        for name, secret in SECRETS.items():
            forms = (secret.encode(), base64.b64encode(secret.encode()), secret.partition(":")[2].encode())
            leaks |= {(name, path) for form in forms if form and form in content}
    assert leaks == set()


def test_a_publish_leaks_nothing_whether_it_succeeds_or_fails(hub, project):
    words = [sys.executable, "-m", "tasks.release.publish", "squad"]
    hub.fault("POST", "/commit/", status=403, body=f'{{"error": "{TOKEN} may not"}}'.encode())
    hub.fault("GET", "whoami", status=503)
    run(words, project, 1)
    run(words, project, 0)
    require_no_leak(project.parent)
    printed = (project.parent / "printed.txt").read_text()
    assert "GET /api/whoami-v2: status 503" in printed, "waiting is reported"
    assert "*** may not" in printed
    assert len(hub.store.repositories["model", NAME].tags) == 1, "it did publish"
    (project.parent / "log.txt").write_text(f"token {TOKEN}")
    with pytest.raises(AssertionError, match=r"HF_TOKEN.*log\.txt"):  # what was written is found
        require_no_leak(project.parent)


@pytest.mark.faults
@pytest.mark.parametrize("way", WAYS)
def test_a_run_of_the_flow_leaks_nothing(hub, project, way):
    fault, override, code, message = WAYS[way]
    if fault:
        hub.fault(**fault, body=f'{{"error": "{TOKEN} is not enough"}}'.encode())
    run([sys.executable, "-c", FLOW, *(["--set", override] if override else [])], project, code)
    require_no_leak(project.parent)
    printed = (project.parent / "printed.txt").read_text()
    assert message in printed
    if code != 2 and "nothing was started" not in printed:
        assert any(project.parent.rglob("*.db")), "the database of the server was searched as well"
