"""A small project of three stages under a real DVC, and one Prefect test server per session."""

import os
import shutil
from unittest import mock

import pytest
from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings
from prefect.testing.utilities import prefect_test_harness

from flows.commands import run as run_command
from flows.server.local_server import LocalServer
from ipu_model.core.files import exclusive_lock
from tasks.plan import stages
from tasks.plan.plan_file import read_definitions
from tests.flows.toy_runs import ACCEPTED, FASTER, podium, run
from tests.places import DVC_FOLDERS, ROOT, copy_project
from tests.prefect_home import make_home

DVC_YAML = """
stages:
  first: {cmd: python stage.py first, deps: [stage.py], params: [corpus], outs: [data/first]}
  second:
    {cmd: python stage.py second, deps: [stage.py, data/first], params: [downstream.squad.finetune.learning_rate],
     outs: [data/second], metrics: [metrics/squad.json], meta: {page: evaluation/squad/report.html}}
  gate:
    foreach: [squad]
    do:
      {cmd: python stage.py gate, deps: [stage.py, data/second, metrics/squad.json], params: [downstream.squad.gate],
       metrics: [metrics/squad-gate.json], meta: {publish: tasks.release.publish}}
"""

TOY_PLAN = """
from pathlib import Path
from tasks.plan import plan_file, stages
PROJECT = Path.cwd()
stages.define = lambda params: plan_file.read_definitions(PROJECT)
"""
"""In a process of its own, the stages are those of the dvc.yaml in its folder, as in `toy_project`."""

STAGE = """
import json, os, pathlib, sys
from tasks.stage.events import report
name = sys.argv[1]
if os.environ.get("TOY_FAILS") == name:
    pathlib.Path("data").mkdir(exist_ok=True)
    pathlib.Path("data/second").write_text("half of it")
    report("failed", text="the toy stage was told to fail")
    sys.exit("error: the toy stage was told to fail")
print("stage output")
report("progress", percent=50, text="half way")
report("progress", percent=100, text="all the way")
pathlib.Path("metrics").mkdir(exist_ok=True)
if name == "gate":
    floor = "min_f1: 85.0"
    accepted = floor not in pathlib.Path("params.yaml").read_text()
    gate = {"accepted": accepted, "reasons": [] if accepted else ["f1 80.50 is under the floor 85.00"]}
    pathlib.Path("metrics/squad-gate.json").write_text(json.dumps(gate))
else:
    pathlib.Path("data").mkdir(exist_ok=True)
    pathlib.Path("data", name).write_text("done")
    if name == "second":
        scores = {"exact_match": 70.0, "exact_match_low": 60.0, "f1": 80.5, "f1_low": 70.0, "total": 4}
        pathlib.Path("metrics/squad.json").write_text(json.dumps(scores))
    with open(os.environ["TOY_LOG"], "a") as log:
        log.write(name + "\\n")
"""

PUBLISH = """
import json, os, pathlib, sys, yaml
if os.environ.get("TOY_FAILS") == "publish":
    sys.exit("error: the hub is not there")
entry = sys.argv[1]
folder = yaml.safe_load(pathlib.Path("params.yaml").read_text())["downstream"][entry]["publish"]["folder"]
unchanged = pathlib.Path(folder).is_dir()
pathlib.Path(folder).mkdir(parents=True, exist_ok=True)
pathlib.Path("reports").mkdir(exist_ok=True)
pathlib.Path(f"reports/publish-{entry}.json").write_text(json.dumps({"folder": folder, "unchanged": unchanged}))
"""


@pytest.fixture(scope="session")
def prefect_server(tmp_path_factory):
    """One temporary server; without heartbeats a flow takes a tenth of a second instead of one."""
    home = make_home(tmp_path_factory.mktemp("prefect"), "prefect-test.db")
    with (
        mock.patch("prefect.testing.utilities.mkdtemp", return_value=str(home)),
        temporary_settings({PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}),
        prefect_test_harness(server_startup_timeout=120),
    ):
        yield


@pytest.fixture
def prefect_session(prefect_server, monkeypatch):
    """That server; a command starts none of its own, which it would end as soon as it sees that one."""
    monkeypatch.setattr(run_command, "start_early", lambda log: mock.Mock(spec=LocalServer))


@pytest.fixture
def toy_project(tmp_path, monkeypatch):
    """A project with the three stages of its dvc.yaml and the real params.yaml, and a DVC apart from the user's."""
    project = tmp_path / "project"
    for folder in (".dvc", "flows", "ipu_model", "tasks/release"):
        (project / folder).mkdir(parents=True)
    (project / ".dvc" / "config").write_text("[core]\n    no_scm = true\n    analytics = false\n")
    (project / "dvc.yaml").write_text(DVC_YAML)
    (project / "stage.py").write_text(STAGE)
    for package in ("tasks", "tasks/release"):
        # It comes before the installed one; what it lacks is the real one's.
        (project / package / "__init__.py").write_text(f"__path__.append({str(ROOT / package)!r})\n")
    (project / "tasks/release/publish.py").write_text(PUBLISH)
    copy_project(project, ("params.yaml", ".dvcignore", "pyproject.toml", "inputs", "presets"))
    for name in DVC_FOLDERS:
        monkeypatch.setenv(name, str(tmp_path / name.lower()))
    monkeypatch.setenv("TOY_LOG", str(tmp_path / "ran.txt"))
    monkeypatch.setattr("flows.runs.checkout.CODE", ("stage.py", "tasks", ".dvcignore"))
    monkeypatch.setattr(stages, "define", lambda params: read_definitions(project))
    monkeypatch.chdir(project)
    return project


@pytest.fixture
def after(toy_project, tmp_path_factory):
    """Brings the toy project to where it is after some runs, which happen once for all processes of pytest-xdist."""
    base = tmp_path_factory.getbasetemp()
    kept = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "made-runs"
    kept.mkdir(exist_ok=True)

    def bring(name, make):
        with exclusive_lock(kept / f"{name}.lock"):
            if not (kept / name).is_dir():
                make()
                shutil.copytree(toy_project, kept / f"{name}.part", symlinks=True)
                (kept / f"{name}.part").rename(kept / name)
                return toy_project
        return shutil.copytree(kept / name, toy_project, symlinks=True, dirs_exist_ok=True)

    return bring


@pytest.fixture
def rejected(prefect_session, after):
    return after("rejected", run)


@pytest.fixture
def mine(prefect_session, after):
    return after("mine", lambda: run(name="mine"))


@pytest.fixture
def three(prefect_session, after):
    """The toy project after its own run, the published `good` and the rejected `fast`."""

    def make():
        run(command="podium run")
        run(*ACCEPTED, name="good", command="podium run --name good")
        run(FASTER, name="fast")

    return after("three", make)


@pytest.fixture
def ran(tmp_path):
    """Which of the toy stages really ran since the last call, in order."""
    log = tmp_path / "ran.txt"

    def since():
        stages = log.read_text().split() if log.exists() else []
        log.unlink(missing_ok=True)
        return stages

    return since


@pytest.fixture
def command(toy_project, monkeypatch, capsys):
    """Calls `podium run` where no Prefect may start; returns its exit code and what it printed, None where it would."""
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    monkeypatch.setenv("PREFECT_HOME", str(toy_project.parent / "home"))

    def call(*words):
        monkeypatch.setattr(run_command, "start_early", lambda log: None)
        monkeypatch.setattr(run_command, "_run", mock.Mock(side_effect=SystemExit("would start")))
        code, printed = podium(capsys, "run", *words)
        return None if code == "would start" else (code, printed)

    return call
