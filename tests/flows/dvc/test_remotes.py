"""What travels to DVC's remote and back: a folder, and an SSH server (asyncssh's) and an S3 service (moto's)."""

import asyncio
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


def checkout_elsewhere(project):
    """A checkout of the same plan on a host that has none of its outputs."""
    other, made = project.parent / "other", ("data", "metrics", "cache", "tmp", "dvc.lock", "*.gitignore")
    shutil.copytree(project, other, ignore=shutil.ignore_patterns(*made))
    return other


class SshServer:
    """On loopback, in a thread: lets one key in and shows the folder `served` as its root."""

    def __init__(self, served, home):
        self._served, self._loop = served, asyncio.new_event_loop()
        self._host_key, user_key = (asyncssh.generate_private_key("ssh-ed25519") for _ in range(2))
        (home / ".ssh").mkdir(parents=True)
        user_key.write_private_key(str(home / ".ssh" / "id_ed25519"))
        self._users = asyncssh.import_authorized_keys(user_key.export_public_key().decode())
        self._ready = threading.Event()
        threading.Thread(target=self._serve, daemon=True).start()
        assert self._ready.wait(30)
        known = self._host_key.export_public_key().decode()
        (home / ".ssh" / "known_hosts").write_text(f"[127.0.0.1]:{self.port} {known}")

    def _serve(self):
        async def start():
            server = await asyncssh.listen(
                "127.0.0.1",
                0,
                server_host_keys=[self._host_key],
                authorized_client_keys=self._users,
                sftp_factory=lambda channel: asyncssh.SFTPServer(channel, chroot=str(self._served)),
            )
            self.port = server.get_port()
            self._ready.set()

        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(start())
        self._loop.run_forever()

    def close(self):
        self._loop.call_soon_threadsafe(self._loop.stop)


@pytest.fixture
def ssh(tmp_path, monkeypatch):
    """DVC's settings of a remote on an SSH server, and the URL of a folder there."""
    home, served = tmp_path / "home", tmp_path / "served"
    served.mkdir()
    server = SshServer(served, home)
    monkeypatch.setenv("HOME", str(home))
    yield {"url": f"ssh://podium@127.0.0.1:{server.port}/store"}, f"sftp://podium@127.0.0.1:{server.port}/checkpoints"
    assert any(served.rglob("*"))
    server.close()


@pytest.fixture
def s3(monkeypatch):
    """The same for a bucket."""
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    endpoint = f"http://{host}:{port}"
    for name, value in (
        ("AWS_ACCESS_KEY_ID", "key"),
        ("AWS_SECRET_ACCESS_KEY", "secret"),
        ("AWS_DEFAULT_REGION", "us-east-1"),
        ("AWS_ENDPOINT_URL", endpoint),
    ):
        monkeypatch.setenv(name, value)
    bucket = boto3.resource("s3").create_bucket(Bucket="podium")
    yield {"url": "s3://podium/store"}, "s3://podium/checkpoints"
    assert any(item.key.startswith("store/") for item in bucket.objects.all())
    server.stop()


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["ssh", "s3"])
def test_what_one_host_made_another_restores_over_the_network(kind, request, toy_project, ran, tmp_path):
    settings, checkpoints = request.getfixturevalue(kind)
    lines = "".join(f"    {name} = {value}\n" for name, value in settings.items())
    config = f"[core]\n    remote = store\n['remote \"store\"']\n{lines}"
    (toy_project / ".dvc" / "config.local").write_text(config)
    repro("second", toy_project)
    with DvcSession(toy_project) as session:
        session.push(["first", "second"], print)
    other = checkout_elsewhere(toy_project)
    assert repro("second", other, sent=[]) == "restored", "nothing may run there"
    assert (other / "data" / "second").read_text() == (toy_project / "data" / "second").read_text()
    assert ran() == ["first", "second"]

    place = Remote(checkpoints)
    for step in (2, 10, 9):
        place.push(write_checkpoint(tmp_path / "run", step))
    assert place.names() == ["step-00000010", "step-00000009"]
    Remote(checkpoints).fetch(tmp_path / "elsewhere")
    assert is_whole(tmp_path / "elsewhere" / "step-00000010")
    place.remove()
    assert place.names() == []


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
    other = checkout_elsewhere(toy_project)
    assert repro("gate@squad", other, sent=[]) == "restored", "nothing may run there"
    verdicts = [(project / "metrics" / "squad-gate.json").read_text() for project in (other, toy_project)]
    assert verdicts[0] == verdicts[1]
    assert ran() == ["first", "second"]


def test_a_remote_that_was_moved_away_is_neither_made_again_nor_passed_over(toy_project, remote, tmp_path, ran):
    said = []
    with DvcSession(toy_project) as session:
        session.request("require_store")
        assert not remote.exists(), "a question makes none"
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


def test_a_push_to_a_remote_that_goes_away_meanwhile_did_not_succeed(toy_project, remote, tmp_path, monkeypatch):
    with DvcSession(toy_project) as session:
        session.update("first", Listener(print), pull=True)
        session.push(["first"], print)
    monkeypatch.setattr("dvc.repo.Repo.push", lambda *_, **__: remote.exists() and remote.rename(tmp_path / "away"))
    with pytest.raises(RemoteChanged, match="podium-store is missing"):
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
