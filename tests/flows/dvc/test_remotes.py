"""What travels to DVC's remote and back: a folder, and an SSH server (asyncssh's) and an S3 service (moto's)."""

import asyncio
import contextlib
import re
import shutil
import threading
from pathlib import Path

import asyncssh
import boto3
import pytest
from moto.server import ThreadedMotoServer

from flows.dvc import session as sessions
from flows.dvc.child import CheckoutRepo, RemoteChanged
from flows.dvc.session import DvcSession, Listener, RemoteFailed
from tasks.host.checkpoint_sync import Remote, is_whole
from tests.flows.toy_runs import repro
from tests.tasks.host.made_checkpoints import write_checkpoint

SAY = Listener(print)


def configure(project, url):
    text = f"[core]\n    remote = store\n['remote \"store\"']\n    url = {url}\n"
    (project / ".dvc" / "config.local").write_text(text)


def checkout_elsewhere(project):
    """A checkout of the same plan on a host that has none of its outputs."""
    outputs = ("data", "metrics", "cache", "tmp", "dvc.lock", "*.gitignore")
    return shutil.copytree(project, project.parent / "other", ignore=shutil.ignore_patterns(*outputs))


@pytest.fixture
def ssh(tmp_path, monkeypatch):
    """URLs of a store and of checkpoints on an SSH server in a thread, which lets one key in."""
    home, served = tmp_path / "home", tmp_path / "served"
    served.mkdir()
    (home / ".ssh").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    host_key, user_key = (asyncssh.generate_private_key("ssh-ed25519") for _ in range(2))
    user_key.write_private_key(str(home / ".ssh" / "id_ed25519"))
    loop = asyncio.new_event_loop()
    options = {
        "server_host_keys": [host_key],
        "authorized_client_keys": asyncssh.import_authorized_keys(user_key.export_public_key().decode()),
        "sftp_factory": lambda channel: asyncssh.SFTPServer(channel, chroot=str(served)),
    }
    server = loop.run_until_complete(asyncssh.listen("127.0.0.1", 0, **options))
    threading.Thread(target=loop.run_forever, daemon=True).start()
    port = server.get_port()
    (home / ".ssh" / "known_hosts").write_text(f"[127.0.0.1]:{port} {host_key.export_public_key().decode()}")
    yield f"ssh://podium@127.0.0.1:{port}/store", f"sftp://podium@127.0.0.1:{port}/checkpoints"
    assert any(served.rglob("*"))
    loop.call_soon_threadsafe(loop.stop)


@pytest.fixture
def s3(monkeypatch):
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    keys = {"ACCESS_KEY_ID": "key", "SECRET_ACCESS_KEY": "secret", "DEFAULT_REGION": "us-east-1"}
    for name, value in {**keys, "ENDPOINT_URL": f"http://{host}:{port}"}.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    bucket = boto3.resource("s3").create_bucket(Bucket="podium")
    yield "s3://podium/store", "s3://podium/checkpoints"
    assert any(item.key.startswith("store/") for item in bucket.objects.all())
    server.stop()


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["ssh", "s3"])
def test_what_one_host_made_another_restores_over_the_network(kind, request, toy_project, ran, tmp_path):
    store, checkpoints = request.getfixturevalue(kind)
    configure(toy_project, store)
    repro("second", toy_project)
    with DvcSession(toy_project) as session:
        session.push(["first", "second"], print)
    other = checkout_elsewhere(toy_project)
    assert repro("second", other, sent=[]) == "restored", "nothing may run there"
    assert (other / "data" / "second").read_text() == (toy_project / "data" / "second").read_text()
    assert ran() == ["first", "second"]

    remote = Remote(checkpoints)
    for step in (2, 10, 9):
        remote.push(write_checkpoint(tmp_path / "run", step))
    assert remote.names() == ["step-00000010", "step-00000009"]
    Remote(checkpoints).fetch(tmp_path / "elsewhere")
    assert is_whole(tmp_path / "elsewhere" / "step-00000010")
    remote.remove()
    assert remote.names() == []


@pytest.fixture
def remote(toy_project, monkeypatch):
    """The folder of a remote of the toy project, not made yet, for which nothing waits long."""
    folder = toy_project.parent / "remote"
    configure(toy_project, folder)
    monkeypatch.setattr(sessions, "REMOTE_WAITS", (0.0,))
    return folder


@pytest.fixture
def session(toy_project, remote):
    with DvcSession(toy_project) as session:
        yield session


def test_what_one_checkout_pushed_another_restores_figures_included(toy_project, remote, session, ran):
    for stage in ("first", "second", "gate@squad"):
        session.update(stage, SAY)
    for stages, count in ((["first"], 1), (["second", "gate@squad"], 3)):
        session.push(stages, print)
        assert len(list((remote / "runs").glob("*/*"))) == count, "of the run cache, what it knows of its stages"
    other = checkout_elsewhere(toy_project)
    assert repro("gate@squad", other, sent=[]) == "restored", "nothing may run there"
    verdicts = [(project / "metrics" / "squad-gate.json").read_text() for project in (other, toy_project)]
    assert verdicts[0] == verdicts[1]
    assert ran() == ["first", "second"]


def test_a_remote_that_was_moved_away_is_neither_made_again_nor_passed_over(remote, session, tmp_path, ran):
    lines = []
    session.request("require_store")
    assert not remote.exists(), "a question makes none"
    session.update("first", SAY, pull=True)
    for _ in range(2):  # the second records what the first made
        session.push(["first"], print)
    remote.rename(tmp_path / "away")
    with pytest.raises(RemoteFailed, match=r"(?s)store \(\S+\) is not available.*podium-store is missing: restore"):
        session.update("second", Listener(lines.append), pull=True)
    with pytest.raises(RemoteFailed, match="did not accept the outs of first"):
        session.push(["first"], print)
    assert not remote.exists()
    assert len(lines) == 1, "it was asked twice"
    (tmp_path / "away").rename(remote)
    assert session.update("second", SAY, pull=True) == "ran"
    assert ran() == ["first", "second"]


@pytest.mark.soak
def test_another_remote_in_the_place_of_one_is_refused_until_its_record_is_removed(remote, session):
    session.update("first", SAY, pull=True)
    for _ in range(2):
        session.push(["first"], print)
    (remote / "podium-store").write_text("another")
    with pytest.raises(RemoteFailed, match="belongs to another store") as refused:
        session.push(["first"], print)
    record = re.search(r"replaced it on purpose, remove (\S+)", str(refused.value))
    Path(record[1]).unlink()
    session.push(["first"], print)


def test_an_entry_of_the_run_cache_arrives_after_its_outputs(remote, session):
    remote.mkdir()
    (remote / "files").write_text("no folder")  # no data arrives
    session.update("first", SAY)
    with pytest.raises(RemoteFailed, match="did not accept the outs of first"):
        session.push(["first"], print)
    assert not (remote / "runs").exists()
    (remote / "files").unlink()
    session.push(["first"], print)
    assert (remote / "runs").exists()


def test_a_push_to_a_remote_that_goes_away_meanwhile_did_not_succeed(remote, session, tmp_path, monkeypatch):
    session.update("first", SAY, pull=True)
    session.push(["first"], print)
    monkeypatch.setattr("dvc.repo.Repo.push", lambda *_, **__: remote.exists() and remote.rename(tmp_path / "away"))
    with pytest.raises(RemoteChanged, match="podium-store is missing"):
        CheckoutRepo(print).push(["first"])


def test_a_stage_whose_remote_goes_away_waits_for_it_and_is_not_made_again(toy_project, remote, ran):
    away, waited = remote.with_name("away"), []
    with DvcSession(toy_project) as session:
        session.update("first", SAY, pull=True)
        session.push(["first"], print)
    for folder in (".dvc/cache/files", ".dvc/cache/runs", "data"):
        shutil.rmtree(toy_project / folder)

    def bring_back(line):
        if "is not available; retrying in" in line:
            waited.append(line)
            away.rename(remote)

    @contextlib.contextmanager
    def lose(stage, key):  # after the remote was seen
        remote.rename(away)
        yield

    with DvcSession(toy_project, lock=lose) as session:
        assert session.update("first", Listener(bring_back), pull=True) == "restored"
    assert len(waited) == 1
    assert ran() == ["first"]
