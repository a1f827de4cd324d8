"""A real Prefect server on the loopback address, which can be killed and started again on the same database."""

from __future__ import annotations

import socket
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

from tasks.stage.process import die_with_parent
from tests.faults.processes import wait_for
from tests.faults.small_run import Case


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
        environment = {
            **case.environment(),
            "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
            "PREFECT_SERVER_UI_ENABLED": "false",
        }
        command = [
            sys.executable,
            "-m",
            "uvicorn",
            "--factory",
            "prefect.server.api.server:create_app",
            "--host",
            "127.0.0.1",
            "--port",
            str(self.port),
            "--log-level",
            "error",
        ]
        self._process = subprocess.Popen(
            command,
            cwd=self.home,
            env=environment,
            stdout=(self.home / "server.log").open("ab"),
            stderr=subprocess.STDOUT,
            preexec_fn=die_with_parent,
        )
        wait_for(self._answers, 180.0, "the Prefect server does not answer")

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
