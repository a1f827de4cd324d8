"""DVC's remote and `checkpoint.remote` on an SSH server (asyncssh's, SFTP) and an S3 service (moto's)."""

import asyncio
import shutil
import threading

import asyncssh
import boto3
import pytest
from moto.server import ThreadedMotoServer

from flows.dvc.session import DvcSession
from tasks.host.checkpoint_sync import Remote, is_whole
from tests.flows.dvc.toy_repro import repro
from tests.tasks.host.made_checkpoints import write_checkpoint


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
    other = toy_project.parent / "other"
    shutil.copytree(
        toy_project, other, ignore=shutil.ignore_patterns("data", "metrics", "cache", "tmp", "dvc.lock", "*.gitignore")
    )
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
