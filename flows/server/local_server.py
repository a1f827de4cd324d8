"""A Prefect server for the time of one run, where none is named.

Prefect starts such a server by itself, but nothing ends it when the run is killed: it stays, and keeps the database
open. This one ends with the process that started it, however that ends (Linux).
"""

from __future__ import annotations

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
# What Prefect tells a temporary server: that it serves one program, and no pages. Profiles are about other servers.
SERVES_ONE = {
    "PREFECT_UI_ENABLED": "0",
    "PREFECT__SERVER_EPHEMERAL": "1",
    "PREFECT__SERVER_FINAL": "1",
    "PREFECT_PROFILES_PATH": os.devnull,
}
FOR_OTHERS = ("PREFECT_SERVER_API_AUTH_STRING", "PREFECT_SERVER_API_BASE_PATH")
"""Settings of a server that others reach, under which one's own would not answer."""


@dataclass(frozen=True)
class Started:
    """A server that may not answer yet; it ends with this process."""

    process: subprocess.Popen[bytes]
    url: str

    def end(self) -> None:
        """End it."""
        self.process.terminate()
        self.process.wait()


def started_early(log: Path) -> Started | None:
    """Start the server of a run before Prefect is imported here, which takes seconds; None where one may be named.

    Args:
        log: takes what it prints.
    """
    return None if may_be_named() else _start(log)


@contextlib.contextmanager
def own_server(log: Path, started: Started | None = None) -> Iterator[bool]:
    """Let flows of the body report to a server: the one PREFECT_API_URL names, else one of their own.

    Args:
        log: takes what their own server prints.
        started: it, if it was; it ends behind the body, or where Prefect's settings name another.

    Yields:
        Whether it is their own.

    Raises:
        PodiumError: the server did not come up.
    """
    # Imported here: it takes seconds, in which the server that was started comes up.
    from prefect.logging.handlers import APILogHandler
    from prefect.settings import PREFECT_API_URL, temporary_settings

    with contextlib.ExitStack() as held:
        if started is not None:
            held.callback(started.end)
        if PREFECT_API_URL.value():
            held.close()
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
                APILogHandler().flush()  # the last lines are sent in the background, and complain of a server gone


def _start(log: Path) -> Started:
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        port: int = probe.getsockname()[1]  # that is free
    with log.open("ab") as said:
        command = [sys.executable, "-m", "uvicorn", *UVICORN, "--host", LOOPBACK, "--port", str(port)]
        own = {name: value for name, value in os.environ.items() if name not in FOR_OTHERS}
        env, end = {**own, **SERVES_ONE}, die_with_parent
        # A session of its own: Ctrl-C, sent to all, would end it before the run has said how it ended.
        process = subprocess.Popen(command, env=env, preexec_fn=end, start_new_session=True, stdout=said, stderr=said)
    return Started(process, f"http://{LOOPBACK}:{port}/api")


def _wait_for(started: Started, log: Path) -> None:
    from prefect.settings import PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS

    seconds = PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS.value()
    until = time.monotonic() + seconds
    while not _answers(started.url):
        if (code := started.process.poll()) is not None:
            raise PodiumError(
                f"Prefect's temporary server ended with {describe_exit(code)}; its own words are in {log}"
            )
        if time.monotonic() > until:
            raise PodiumError(
                f"Prefect's temporary server does not answer after {seconds} s: raise "
                "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS, or name a server in PREFECT_API_URL"
            )
        time.sleep(0.1)


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return False


def create_app() -> Any:
    """Prefect's application, for uvicorn; loaded without a look for garbage."""
    with process.loading_packages():
        from prefect.server.api import server

        return server.create_app()


def may_be_named() -> bool:
    """Return whether the environment, the project or a profile may name a server, or hide it behind a mistake.

    Prefect's settings, which know, take a second to import.
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
    """Return the file that Prefect reads its profiles from."""
    home = Path(os.environ.get("PREFECT_HOME") or "~/.prefect").expanduser()
    return Path(os.environ.get("PREFECT_PROFILES_PATH") or home / "profiles.toml")


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
