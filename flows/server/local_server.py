"""A local Prefect server for one run, if no other server is configured.

Prefect can start such a server itself, but if the run is killed the server keeps running with an open database. This
one ends with the process that started it, however that process ends (Linux).
"""

import contextlib
import os
import socket
import subprocess
import sys
import time
import tomllib
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasks.stage import process
from tasks.stage.errors import PodiumError
from tasks.stage.process import describe_exit, die_with_parent

LOOPBACK = "127.0.0.1"
URL = "PREFECT_API_URL"
UVICORN = ("--factory", "flows.server.local_server:create_app", "--log-level", "error", "--lifespan", "on")
# Prefect's own settings for a temporary server: one client, no UI. Profiles configure other servers.
LOCAL_SETTINGS = {
    "PREFECT_UI_ENABLED": "0",
    "PREFECT__SERVER_EPHEMERAL": "1",
    "PREFECT__SERVER_FINAL": "1",
    "PREFECT_PROFILES_PATH": os.devnull,
}
SHARED_SETTINGS = ("PREFECT_SERVER_API_AUTH_STRING", "PREFECT_SERVER_API_BASE_PATH")
"""Settings of shared servers, with which a local server would not answer."""


@dataclass(frozen=True)
class LocalServer:
    """Server process that may not answer yet; it ends with this process."""

    process: subprocess.Popen[bytes]
    url: str

    def end(self) -> None:
        """Stop the server."""
        self.process.terminate()
        self.process.wait()


def start_early(log: Path) -> LocalServer | None:
    """Start a local server before Prefect is imported, which takes seconds; None if another may be configured."""
    return None if may_be_configured() else _start(log)


@contextlib.contextmanager
def connect_server(log: Path, started: LocalServer | None = None) -> Iterator[bool]:
    """Connect flows in the body to the server in PREFECT_API_URL, or else to a local one.

    Args:
        log: receives the local server's output.
        started: the local server, if it is running; the caller stops it.

    Yields:
        Whether the server is local.

    Raises:
        PodiumError: the server did not start.
    """
    # Imported here, because the import takes seconds, during which the server starts.
    from prefect.logging.handlers import APILogHandler
    from prefect.settings import PREFECT_API_URL, temporary_settings

    with contextlib.ExitStack() as held:
        if PREFECT_API_URL.value():
            if started is not None:
                started.end()
            yield False
            return
        if started is None:
            started = _start(log)
            held.callback(started.end)
        _wait_for(started, log)
        with temporary_settings({PREFECT_API_URL: started.url}):
            try:
                yield True
            finally:
                APILogHandler().flush()  # the last lines are sent in the background, and fail once the server is gone


def _start(log: Path) -> LocalServer:
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        port: int = probe.getsockname()[1]  # a free port
    with log.open("ab") as out:
        command = [sys.executable, "-m", "uvicorn", *UVICORN, "--host", LOOPBACK, "--port", str(port)]
        own = {name: value for name, value in os.environ.items() if name not in SHARED_SETTINGS}
        env, end = {**own, **LOCAL_SETTINGS}, die_with_parent
        # In its own session, because Ctrl-C would otherwise end it before the run has reported its end.
        process = subprocess.Popen(command, env=env, preexec_fn=end, start_new_session=True, stdout=out, stderr=out)
    return LocalServer(process, f"http://{LOOPBACK}:{port}/api")


def _wait_for(started: LocalServer, log: Path) -> None:
    from prefect.settings import PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS

    seconds = PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS.value()
    until = time.monotonic() + seconds
    while True:
        with (
            contextlib.suppress(urllib.error.URLError, ConnectionError, TimeoutError),
            urllib.request.urlopen(f"{started.url}/health", timeout=5),
        ):
            return
        if (code := started.process.poll()) is not None:
            raise PodiumError(f"Prefect's temporary server ended with {describe_exit(code)}. Its output is in {log}")
        if time.monotonic() > until:
            raise PodiumError(
                f"Prefect's temporary server does not answer after {seconds} s. Raise "
                "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS, or set PREFECT_API_URL to a running server"
            )
        time.sleep(0.1)


def create_app() -> Any:
    """Return Prefect's application for uvicorn; garbage collection is off while it loads."""
    with process.loading_packages():
        from prefect.server.api import server

    return server.create_app()  # collects garbage, which now is quick


def may_be_configured() -> bool:
    """Return whether the environment, the project or a profile may configure a server, even in an invalid file.

    This is quick; importing Prefect's settings takes a second.
    """
    if os.environ.get(URL) or os.path.isfile("prefect.toml"):
        return True
    profiles = _read_text(profiles_path())
    try:
        tomllib.loads(profiles)
    except tomllib.TOMLDecodeError:
        return True
    return URL in profiles or URL in _read_text(Path(".env"))


def profiles_path() -> Path:
    """Return the file with Prefect's profiles."""
    home = Path(os.environ.get("PREFECT_HOME") or "~/.prefect").expanduser()
    return Path(os.environ.get("PREFECT_PROFILES_PATH") or home / "profiles.toml")


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
