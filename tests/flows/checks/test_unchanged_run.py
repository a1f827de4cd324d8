"""A run with nothing to do: said without Prefect; what was published is looked at all the same."""

import json
import os
import subprocess
import sys

from flows.server.local_server import may_be_configured
from tests.flows.conftest import TOY_PLAN
from tests.flows.toy_runs import ACCEPTED, FASTER, run, run_json, statuses
from tests.places import ROOT


def test_nothing_changed_is_said_at_once_and_the_report_stays_that_of_the_run_that_made_things(
    toy_project, request, command, ran
):
    assert command() is None, "nothing was made yet"
    request.getfixturevalue("rejected")
    report = (toy_project / "reports" / "run.json").read_bytes()
    ran()
    code, said = command()
    assert code == 3, "the gate rejected, and still does"
    assert said.out.startswith("nothing changed: ")
    assert (toy_project / "reports" / "run.json").read_bytes() == report
    assert ran() == []
    assert command("--to", "second") is None, "another plan"
    (toy_project / "data" / "second").unlink()
    assert command() is None
    assert statuses(toy_project)["second"] == "ran", "the report of before"


def test_what_was_published_is_looked_at_and_published_again_where_it_is_gone(accepted, toy_project, command):
    made = run_json(toy_project)
    code, said = command("--set", *ACCEPTED)
    assert (code, "published: published/podium-demo (unchanged)" in said.out) == (0, True)
    run(FASTER)
    assert command("--set", *ACCEPTED)[0] == 0
    assert run_json(toy_project) == made, "the report of the run that was asked for"
    (toy_project / "published" / "podium-demo").rmdir()
    code, said = command("--set", *ACCEPTED)
    assert (code, "published: published/podium-demo\n" in said.out) == (0, True)
    assert (toy_project / "published" / "podium-demo").is_dir()
    assert list(statuses(toy_project).values()) == ["skipped", "skipped", "skipped", "ran"]


def test_a_publish_that_fails_is_an_error(accepted, command, monkeypatch):
    monkeypatch.setenv("TOY_FAILS", "publish")
    code, said = command("--set", *ACCEPTED)
    assert (code, "the hub is not there" in said.err) == (1, True)
    assert command("--set", *ACCEPTED) is None, "the report is of a run that failed"


def test_a_run_that_is_to_be_seen_elsewhere_goes_the_whole_way(rejected, toy_project, command, monkeypatch):
    monkeypatch.delenv("PREFECT_PROFILES_PATH", raising=False)
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:9/api")
    assert may_be_configured()
    monkeypatch.delenv("PREFECT_API_URL")
    assert not may_be_configured()
    home = toy_project.parent / "home"
    home.mkdir()
    (home / "profiles.toml").write_text('[profiles.ours]\nPREFECT_API_URL = "http://127.0.0.1:9/api"\n')
    assert command() is None, "named in a profile of Prefect"
    (home / "profiles.toml").rename(home / "others.toml")
    assert not may_be_configured()
    monkeypatch.setenv("PREFECT_PROFILES_PATH", str(home / "others.toml"))
    assert may_be_configured()
    monkeypatch.delenv("PREFECT_PROFILES_PATH")
    with (toy_project / ".dvc" / "config").open("a") as config:
        config.write("    remote = far\n['remote \"far\"']\n    url = /nowhere\n")
    assert command() is None, "other hosts may lack what is here"


def test_prefect_is_not_even_imported(rejected, toy_project, command):
    code = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
{TOY_PLAN}
from flows import cli
from flows.runs import checkout
try:
    cli.main(["run"])
except SystemExit as end:
    sys.exit(50 + end.code if "prefect" not in sys.modules else "prefect was imported")
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=toy_project, env=os.environ, text=True, capture_output=True)
    assert done.returncode == 53, done.stdout + done.stderr
    assert json.loads((toy_project / "reports" / "run.json").read_text())["stages"][0]["status"] == "ran"
