"""What the cases share: one Prefect server and one undisturbed run with a picture of the project before every stage."""

from __future__ import annotations

import fcntl
import json
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from flows.stages import PLAN
from tasks.process import die_with_parent
from tests.faults.pictures import Pictures
from tests.faults.processes import wait_for
from tests.faults.small_run import Case, make_project


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Path:
    """A folder for all workers of this pytest run."""
    base = tmp_path_factory.getbasetemp()
    return base if worker_id == "master" else base.parent


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The API address of a Prefect server of this worker, so that not every run has to start one."""
    home = tmp_path_factory.mktemp("server")
    with PrefectServer(home) as running:
        yield running.api_url


class PrefectServer:
    """A real server on the loopback address, which ends with this process."""

    def __init__(self, home: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.home = home
        self.api_url = f"http://127.0.0.1:{self.port}/api"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> PrefectServer:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def start(self) -> None:
        case = Case(self.home, self.home)
        environment = {**case.environment(), "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
                       "PREFECT_SERVER_UI_ENABLED": "false"}  # fmt: skip
        command = [sys.executable, "-m", "uvicorn", "--factory", "prefect.server.api.server:create_app", "--host",
                   "127.0.0.1", "--port", str(self.port), "--log-level", "error"]  # fmt: skip
        self._process = subprocess.Popen(
            command, cwd=self.home, env=environment, stdout=(self.home / "server.log").open("ab"),
            stderr=subprocess.STDOUT, preexec_fn=die_with_parent,
        )  # fmt: skip
        wait_for(self._answers, 90.0, "the Prefect server does not answer")

    def stop(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.api_url}/health", timeout=5) as answer:
                return answer.status == 200
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return False


@pytest.fixture(scope="session")
def pictures(shared: Path, server: str) -> Pictures:
    """The undisturbed run, made once for all workers."""
    folder = shared / "pictures"
    with (shared / "pictures.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "seconds.json").exists():
            shutil.rmtree(folder, ignore_errors=True)
            take_pictures(folder, server)
    return Pictures(folder)


def take_pictures(folder: Path, server: str) -> None:
    """Run stage by stage, copying the project before each; then publish, by the flow."""
    folder.mkdir()
    case = Case(make_project(folder / "work"), folder, server)
    seconds = {}
    for stage in (*PLAN, "publish"):
        shutil.copytree(case.project, folder / "before" / stage, symlinks=True)
        started_at = time.monotonic()
        words = case.flow("publish") if stage == "publish" else ["-m", "dvc", "repro", stage]
        done = case.run(*words)
        assert done.returncode == 0, done.stdout
        seconds[stage] = round(time.monotonic() - started_at, 2)
    (folder / "seconds.json").write_text(json.dumps(seconds))


@pytest.fixture
def new_case(tmp_path: Path, server: str) -> Callable[[Path], Case]:
    """Makes a case of a project folder."""
    return lambda project: Case(project, tmp_path, server)
