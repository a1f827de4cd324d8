"""Tools below a run that belong to someone else: what their settings, files and versions on a host may not change."""

import json
import os
import shutil
import subprocess
import sys
from importlib import metadata
from types import SimpleNamespace

import pytest

from flows.checks.preflight import OLDEST, check_git, check_packages
from flows.dvc.session import DvcSession
from flows.runs.checkout import share_cache
from flows.runs.report import read_revision
from flows.runs.stopping import RunFailed
from tasks.plan.code_state import git_state
from tasks.plan.dvc_records import find_cache
from tests.flows.toy_runs import git

CACHES = {
    "user": ({}, {"home/.config/dvc/config": "/team"}),
    "XDG": ({"XDG_CONFIG_HOME": "HERE/own"}, {"own/dvc/config": "/team", "home/.config/dvc/config": "/unread"}),
    "environment": ({"DVC_GLOBAL_CONFIG_DIR": "HERE/own"}, {"own/config": "/team"}),
    "system": ({"DVC_SYSTEM_CONFIG_DIR": "HERE/all"}, {"all/config": "/team"}),
    "project": ({}, {"home/.config/dvc/config": "/team", "project/.dvc/config": "/ours"}),
    "local file": ({}, {"project/.dvc/config": "/ours", "project/.dvc/config.local": "/here"}),
    "none": ({}, {}),
}
"""Variables of an environment, and files that configure a cache."""
USED = """
import json, os, sys
from dvc.repo import Repo
for folder, variables in json.load(sys.stdin):
    os.environ.update(variables)
    print(Repo(folder).cache.local.path)
    for name in variables:
        del os.environ[name]
"""


def test_the_cache_is_the_one_that_dvc_uses_whoever_configured_it(tmp_path, monkeypatch):
    for name in ("XDG_CONFIG_HOME", "XDG_CONFIG_DIRS", "DVC_GLOBAL_CONFIG_DIR", "DVC_SYSTEM_CONFIG_DIR"):
        monkeypatch.delenv(name, raising=False)
    asked, caches = [], []
    for situation, (variables, files) in CACHES.items():
        here = tmp_path / situation
        project, checkout = here / "project", here / "project/runs/checkouts/one"
        for folder in (project / ".dvc", here / "home", checkout):
            folder.mkdir(parents=True)
        (project / ".dvc/config").write_text("[core]\n    no_scm = true\n")
        for name, cache in files.items():
            (here / name).parent.mkdir(parents=True, exist_ok=True)
            with (here / name).open("a") as stream:
                stream.write(f"[cache]\n    dir = {here}{cache}\n")
        environment = {name: value.replace("HERE", str(here)) for name, value in variables.items()}
        environment["HOME"] = str(here / "home")
        asked.append((str(project), environment))
        with monkeypatch.context() as patch:
            for name, value in environment.items():
                patch.setenv(name, value)
            caches.append(str(find_cache(project) / "files" / "md5"))
            share_cache(project, checkout)
            assert find_cache(checkout).resolve() == find_cache(project).resolve(), situation
    words = [sys.executable, "-c", USED]
    done = subprocess.run(words, input=json.dumps(asked), text=True, stdout=subprocess.PIPE, check=True, cwd=tmp_path)
    assert dict(zip(CACHES, caches, strict=True)) == dict(zip(CACHES, done.stdout.splitlines(), strict=True))


def commit(folder, *words):
    git(folder, "init", "-q")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "all", *words)


@pytest.fixture
def clone(tmp_path):
    project = tmp_path / "outer" / "project"
    (project / "tasks").mkdir(parents=True)
    (project / "tasks/gate.py").write_text("x = 1\n")
    commit(project)
    return project


def of_a_hook(project, monkeypatch):
    other = project.parent / "other"
    other.mkdir()
    commit(other, "--allow-empty")
    for name, value in (("DIR", other / ".git"), ("WORK_TREE", other), ("INDEX_FILE", other / ".git/index")):
        monkeypatch.setenv(f"GIT_{name}", str(value))


def of_another_user(project, monkeypatch):
    if os.geteuid():
        pytest.skip("needs root, to give files to another user")
    for path in (project, *project.rglob("*")):
        os.chown(path, 12345, 12345)
    monkeypatch.setenv("HOME", str(project.parent))
    refused = subprocess.run(["git", "-C", project, "status"], capture_output=True, check=False).returncode
    assert refused, "git refuses it"


def unpacked(project, monkeypatch):
    shutil.rmtree(project / ".git")
    (project.parent / ".gitignore").write_text("project\n")
    commit(project.parent)


def without_git(project, monkeypatch):
    monkeypatch.setenv("PATH", str(project))


def with_git(version, refused="none"):
    """Return a change to a host with a git of this version, which does not know the option `refused`."""

    def change(project, monkeypatch):
        program = project.parent / "bin/git"
        program.parent.mkdir()
        program.write_text(
            f'#!/bin/sh\ncase " $* " in *" version "*) echo "git version {version}"; exit;;\n'
            f'*" {refused} "*) echo "error: unknown option" >&2; exit 129;; esac\n'
            f'exec {shutil.which("git")} "$@"\n'
        )
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")

    return change


NO_RENAMES = with_git("2.17.1", "--no-renames")


@pytest.mark.parametrize(
    ("change", "recorded", "warning"),
    [
        (lambda project, monkeypatch: None, True, None),
        (of_a_hook, True, None),
        (of_another_user, True, None),
        (unpacked, False, "(the repository does not track the code)"),
        (without_git, False, "(git is not installed)"),
        (NO_RENAMES, False, "install git 2.18 or newer"),
        (with_git("2.11.0", "--no-optional-locks"), False, "install git 2.18 or newer"),
        (with_git("3.0.0"), True, None),
    ],
)
def test_the_revision_is_that_of_the_repository_that_tracks_the_code(clone, monkeypatch, change, recorded, warning):
    revision = git(clone, "rev-parse", "HEAD")
    change(clone, monkeypatch)
    state = git_state(clone)
    assert (state["revision"], state["dirty"]) == ((revision, False) if recorded else (None, None))
    assert (read_revision(clone)[0] is not None) is (recorded or change is NO_RENAMES)
    texts = [result.text for result in check_git(SimpleNamespace(project=clone))]
    assert [warning in text for text in texts] == [True] * (warning is not None)
    (clone / "tasks/gate.py").write_text("x = 2\n")
    assert git_state(clone)["changed"] == (["tasks/gate.py"] if recorded else [])


@pytest.mark.parametrize(
    ("package", "version", "works"),
    [("dvc", "3.60.1", False), ("dvc", "4.0rc1", True), ("dvc", None, False), ("prefect", "3.10.0", True)],
)
def test_a_version_that_cannot_work_is_refused_before_the_first_stage(monkeypatch, package, version, works):
    def read_version(name):
        if name == package and version is None:
            raise metadata.PackageNotFoundError(name)
        return version if name == package else OLDEST[name]

    monkeypatch.setattr(metadata, "version", read_version)
    needed = f"'{package}>={OLDEST[package]}'"
    findings = [(finding.level, finding.text.endswith(needed)) for finding in check_packages(SimpleNamespace())]
    assert findings == ([] if works else [("problem", True)])


def test_packages_with_which_dvc_cannot_be_imported_are_named_before_the_first_stage(tmp_path, monkeypatch):
    (tmp_path / "dvc.py").write_text("from pathlib import missing\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with DvcSession(tmp_path) as session, pytest.raises(RunFailed, match=r"DVC \d.* cannot be imported .*'missing'"):
        session.require_dvc()


def test_a_named_run_in_a_larger_repository_has_the_changes_of_its_project(clone):
    shutil.rmtree(clone / ".git")
    (clone / ".gitignore").write_text("/runs/\n")
    commit(clone.parent)
    run = clone / "runs/checkouts/mine"
    shutil.copytree(clone / "tasks", run / "tasks")
    assert git_state(run) == {"revision": git(clone, "rev-parse", "HEAD"), "dirty": False, "changed": []}
    (clone / "tasks/gate.py").write_text("x = 2\n")
    assert git_state(run)["changed"] == ["project/tasks/gate.py"]
