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
def linked(toy_project):
    """The toy project with a cache of hard links."""
    with (toy_project / ".dvc" / "config").open("a") as config:
        config.write('[cache]\n    type = "hardlink,copy"\n')
    return toy_project


def object_of(root, store):
    stages = yaml.safe_load((root / "dvc.lock").read_text())["stages"]
    md5 = next(out["md5"] for out in stages["gate@squad"]["outs"] if out["path"] == "metrics/squad-gate.json")
    return store / "files" / "md5" / md5[:2] / md5[2:]


def test_a_verdict_changed_in_place_is_made_anew(prefect_session, linked, command):  # noqa: F811
    run()
    gate = linked / "metrics" / "squad-gate.json"
    assert gate.stat().st_nlink == 2
    accept(gate)
    assert command() is None, "not a run with nothing to do"
    assert not gate.exists()
    run()
    assert statuses(linked) == {"first": "skipped", "second": "skipped", "gate@squad": "ran"}
    assert run_json(linked)["results"]["gate@squad"]["decision"]["accepted"] is False
    assert ACCEPTED in (linked / "runs" / "damaged" / "metrics" / "squad-gate.json").read_bytes()
    assert command()[0] == 3, "rejected, and nothing to do"


@pytest.mark.soak
def test_a_run_that_goes_the_whole_way_makes_it_anew_too(prefect_session, linked):
    run()
    accept(linked / "metrics" / "squad-gate.json")
    with pipeline.use_request(resolve_request(linked, RunOptions()), print):  # its DVC is not another one at work here
        pipeline.pipeline(return_state=True)
    assert statuses(linked)["gate@squad"] == "ran"
    assert run_json(linked)["results"]["gate@squad"]["decision"]["accepted"] is False
    assert not (linked / "published").exists()


@pytest.mark.faults
def test_a_verdict_that_a_remote_restores_changed_ends_the_run(prefect_session, linked):
    store = linked.parent / "store"
    local = linked / ".dvc" / "config.local"
    local.write_text(f"[core]\n    remote = far\n['remote \"far\"']\n    url = {store}\n")
    run()
    bad = object_of(linked, store)
    accept(bad)
    shutil.rmtree(linked / ".dvc" / "cache")
    (linked / "metrics" / "squad-gate.json").unlink()
    for _ in range(2):
        run()
        report = run_json(linked)
        assert statuses(linked).get("gate@squad") == "restored", report
        assert "metrics/squad-gate.json is not what its stage wrote" in report["error"]
        assert f"the remote far ({store}) is damaged as well" in report["error"]
        assert report["results"] == {}
    bad.unlink()
    run()
    assert statuses(linked)["gate@squad"] == "ran"
    assert run_json(linked)["results"]["gate@squad"]["decision"]["accepted"] is False
    assert REJECTED in bad.read_bytes(), "pushed"
