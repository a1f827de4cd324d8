"""A run believes no verdict for its times alone, and none that was restored and is not what its stage wrote."""

import os
import shutil

import pytest
import yaml

from flows import pipeline
from flows.runs.run_options import RunOptions
from flows.runs.run_request import resolve_request
from tests.flows.toy_runs import run, run_json, statuses

REJECTED, ACCEPTED = b'"accepted": false', b'"accepted": true '


def accept(path):
    """The verdict in place, size and time as before; DVC does not hash what is so protected."""
    before, text = path.stat(), path.read_bytes()
    assert REJECTED in text
    path.chmod(0o644)
    with path.open("r+b") as stream:
        stream.write(text.replace(REJECTED, ACCEPTED))
    path.chmod(0o444)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.fixture
def linked(prefect_session, toy_project):
    with (toy_project / ".dvc" / "config").open("a") as config:
        config.write('[cache]\n    type = "hardlink,copy"\n')
    return toy_project


def require_rejected_anew(project):
    assert statuses(project)["gate@squad"] == "ran"
    assert run_json(project)["results"]["gate@squad"]["decision"]["accepted"] is False


def test_a_verdict_changed_in_place_is_made_anew(linked, command):
    run()
    gate = linked / "metrics" / "squad-gate.json"
    assert gate.stat().st_nlink == 2
    accept(gate)
    assert command() is None, "not a run with nothing to do"
    assert not gate.exists()
    run()
    require_rejected_anew(linked)
    assert (statuses(linked)["first"], statuses(linked)["second"]) == ("skipped", "skipped")
    assert ACCEPTED in (linked / "runs" / "damaged" / "metrics" / "squad-gate.json").read_bytes()
    assert command()[0] == 3, "rejected, and nothing to do"


@pytest.mark.soak
def test_a_run_that_goes_the_whole_way_makes_it_anew_too(linked):
    run()
    accept(linked / "metrics" / "squad-gate.json")
    with pipeline.use_request(resolve_request(linked, RunOptions()), print):  # its DVC is not another one at work here
        pipeline.pipeline(return_state=True)
    require_rejected_anew(linked)
    assert not (linked / "published").exists()


@pytest.mark.faults
def test_a_verdict_that_a_remote_restores_changed_ends_the_run(linked):
    store, gate = linked.parent / "store", linked / "metrics" / "squad-gate.json"
    local = linked / ".dvc" / "config.local"
    local.write_text(f"[core]\n    remote = far\n['remote \"far\"']\n    url = {store}\n")
    run()
    outs = yaml.safe_load((linked / "dvc.lock").read_text())["stages"]["gate@squad"]["outs"]
    [md5] = [out["md5"] for out in outs if out["path"] == "metrics/squad-gate.json"]
    bad = store / "files" / "md5" / md5[:2] / md5[2:]
    accept(bad)
    shutil.rmtree(linked / ".dvc" / "cache")
    gate.unlink()
    for _ in range(2):
        run()
        report = run_json(linked)
        assert statuses(linked).get("gate@squad") == "restored", report
        assert "metrics/squad-gate.json is not what its stage wrote" in report["error"]
        assert f"the remote far ({store}) is damaged as well" in report["error"]
        assert report["results"] == {}
    bad.unlink()
    run()
    require_rejected_anew(linked)
    assert REJECTED in bad.read_bytes(), "pushed"
