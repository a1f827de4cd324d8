"""Calling DVC: where its remote is, and what travels there and back."""

import shutil

import pytest

from flows import dvc
from flows.dvc import session as sessions
from flows.dvc.session import DvcSession, PushFailed
from tests.flows.toy_repro import repro


def with_remote(project, url):
    text = f"[core]\n    remote = store\n['remote \"store\"']\n    url = {url}\n"
    (project / ".dvc" / "config.local").write_text(text)


def test_a_remote_is_found_in_either_config_file(toy_project):
    assert not dvc.has_remote(toy_project)
    (toy_project / ".dvc" / "config.local").write_text("[core]\n    remote = store\n")
    assert dvc.has_remote(toy_project)


def test_what_one_checkout_pushed_another_restores_figures_included(toy_project, ran, monkeypatch):
    remote = toy_project.parent / "remote"
    with_remote(toy_project, remote)
    for stage in ("first", "second", "gate@squad"):
        repro(stage, toy_project)
    with DvcSession(toy_project) as session:
        session.push(["first", "second", "gate@squad"], print)
    other = toy_project.parent / "other"
    shutil.copytree(
        toy_project, other, ignore=shutil.ignore_patterns("data", "metrics", "cache", "tmp", "dvc.lock", "*.gitignore")
    )
    assert repro("gate@squad", other, sent=[]) == "restored", "nothing may run there"
    verdicts = [(project / "metrics" / "squad-gate.json").read_text() for project in (other, toy_project)]
    assert verdicts[0] == verdicts[1]
    assert ran() == ["first", "second"]


def test_a_remote_that_takes_nothing_ends_with_its_name_and_the_outs_stay(toy_project, monkeypatch):
    blocked = toy_project.parent / "file"
    blocked.write_text("no folder")
    with_remote(toy_project, f"{blocked}/store")
    monkeypatch.setattr(sessions, "PUSH_WAITS", (0.0,))
    repro("first", toy_project)
    said = []
    failed = pytest.raises(PushFailed, match=r"the remote store \(\S+file/store\) did not take the outs of first")
    with DvcSession(toy_project) as session, failed as failure:
        session.push(["first"], said.append)
    assert "Not a directory" in str(failure.value)
    assert len(said) == 1
    assert (toy_project / "data" / "first").read_text() == "done"
