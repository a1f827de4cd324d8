"""Calling DVC: where its remote is, and what travels there and back."""

import re
import shutil
from pathlib import Path

import pytest

from flows.dvc import session as sessions
from flows.dvc.child import CheckoutRepo, RemoteChanged
from flows.dvc.session import DvcSession, Listener, RemoteFailed
from tests.flows.dvc.toy_repro import repro


@pytest.fixture
def remote(toy_project, monkeypatch):
    """The folder of a remote of the toy project, not made yet, for which nothing waits long."""
    folder = toy_project.parent / "remote"
    text = f"[core]\n    remote = store\n['remote \"store\"']\n    url = {folder}\n"
    (toy_project / ".dvc" / "config.local").write_text(text)
    monkeypatch.setattr(sessions, "REMOTE_WAITS", (0.0,))
    return folder


def forget(project):
    for folder in (".dvc/cache/files", ".dvc/cache/runs", "data"):
        shutil.rmtree(project / folder)


def test_what_one_checkout_pushed_another_restores_figures_included(toy_project, remote, ran):
    with DvcSession(toy_project) as session:
        for stage in ("first", "second", "gate@squad"):
            session.update(stage, Listener(print))
        session.push(["first"], print)
        assert len(list((remote / "runs").glob("*/*"))) == 1, "of the run cache, what it knows of its stages"
        session.push(["second", "gate@squad"], print)
        assert len(list((remote / "runs").glob("*/*"))) == 3
    other = toy_project.parent / "other"
    shutil.copytree(
        toy_project, other, ignore=shutil.ignore_patterns("data", "metrics", "cache", "tmp", "dvc.lock", "*.gitignore")
    )
    assert repro("gate@squad", other, sent=[]) == "restored", "nothing may run there"
    verdicts = [(project / "metrics" / "squad-gate.json").read_text() for project in (other, toy_project)]
    assert verdicts[0] == verdicts[1]
    assert ran() == ["first", "second"]


def test_a_remote_that_was_moved_away_is_neither_made_again_nor_passed_over(toy_project, remote, tmp_path, ran):
    said = []
    with DvcSession(toy_project) as session:
        session.update("first", Listener(print), pull=True)
        for _ in range(2):  # the second records what the first made
            session.push(["first"], print)
        remote.rename(tmp_path / "away")
        with pytest.raises(RemoteFailed, match=r"(?s)store \(\S+\) is not available.*podium-store is missing: restore"):
            session.update("second", Listener(said.append), pull=True)
        with pytest.raises(RemoteFailed, match="did not accept the outs of first"):
            session.push(["first"], print)
        assert not remote.exists()
        assert len(said) == 1, "it was asked twice"
        (tmp_path / "away").rename(remote)
        assert session.update("second", Listener(print), pull=True) == "ran"
    assert ran() == ["first", "second"]


@pytest.mark.soak
def test_another_remote_in_the_place_of_one_is_refused_until_its_record_is_removed(toy_project, remote):
    with DvcSession(toy_project) as session:
        session.update("first", Listener(print), pull=True)
        for _ in range(2):
            session.push(["first"], print)
        (remote / "podium-store").write_text("another")
        with pytest.raises(RemoteFailed, match="belongs to another store") as refused:
            session.push(["first"], print)
        record = re.search(r"replaced it on purpose, remove (\S+)", str(refused.value))
        Path(record[1]).unlink()
        session.push(["first"], print)


def test_an_entry_of_the_run_cache_arrives_after_its_outputs(toy_project, remote):
    remote.mkdir()
    (remote / "files").write_text("no folder")  # no data arrives
    with DvcSession(toy_project) as session:
        session.update("first", Listener(print))
        with pytest.raises(RemoteFailed, match="did not accept the outs of first"):
            session.push(["first"], print)
        assert not (remote / "runs").exists()
        (remote / "files").unlink()
        session.push(["first"], print)
    assert (remote / "runs").exists()


def test_a_remote_is_made_by_a_push_alone(toy_project, remote):
    with DvcSession(toy_project) as session:
        session.request("require_store")
        assert not remote.exists()
        session.update("first", Listener(print), pull=True)
    assert (remote / "podium-store").exists()


def test_a_push_to_a_remote_that_goes_away_meanwhile_did_not_succeed(toy_project, remote, tmp_path, monkeypatch):
    with DvcSession(toy_project) as session:
        session.update("first", Listener(print), pull=True)
        session.push(["first"], print)
    monkeypatch.setattr("dvc.repo.Repo.push", lambda *_, **__: remote.exists() and remote.rename(tmp_path / "away"))
    with pytest.raises(RemoteChanged, match="podium-store is missing: restore"):
        CheckoutRepo(print).push(["first"])


def test_a_stage_whose_remote_goes_away_waits_for_it_and_is_not_made_again(toy_project, remote, ran, monkeypatch):
    away, waited = remote.with_name("away"), []
    with DvcSession(toy_project) as session:
        session.update("first", Listener(print), pull=True)
        session.push(["first"], print)
    forget(toy_project)
    with DvcSession(toy_project) as session:
        ask = session._send

        def lose(what, take, **arguments):
            if what == "update" and not waited:
                remote.rename(away)
            return ask(what, take, **arguments)

        def bring_back(line):
            if "is not available; retrying in" in line:
                waited.append(line)
                away.rename(remote)

        monkeypatch.setattr(session, "_send", lose)
        assert session.update("first", Listener(bring_back), pull=True) == "restored"
    assert len(waited) == 1
    assert ran() == ["first"]
