"""A local Prefect server for one run, if no other server is configured.

Prefect can start such a server itself, but if the run is killed the server keeps running with an open database. This
one ends with the process that started it, however that process ends (Linux).

Settings of Prefect on a host are for other servers. Some name a team's database, which a newer Prefect would migrate.
The local server and its run read none but PASSED_SETTINGS, whether from the environment, a file or a profile.
"""

import contextlib
import importlib.util
import os
import socket
import subprocess
import sys
import time
import tomllib
import urllib.error
import urllib.request
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from flows.runs.environment import is_writable
from tasks.stage import process
from tasks.stage.errors import PodiumError
from tasks.stage.process import describe_exit, die_with_parent

LOOPBACK = "127.0.0.1"
URL = "PREFECT_API_URL"
SOURCES = Path(__file__).resolve().parents[2]
UVICORN = ("--factory", "flows.server.local_server:create_app", "--log-level", "error", "--lifespan", "on")
PASSED_SETTINGS = (
    "PREFECT_HOME",
    "PREFECT_SERVER_ANALYTICS_ENABLED",
    "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS",
    "PREFECT_SERVER_UI_ENABLED",
)
"""Variables of the environment that the local server and its run read."""
LOCAL_SETTINGS = {"PREFECT__SERVER_EPHEMERAL": "1", "PREFECT__SERVER_FINAL": "1"}
"""Prefect's own settings for a temporary server, which has one client."""
SECONDS_TO_STOP = 10.0


@dataclass(frozen=True)
class LocalServer:
    """Server process that may not answer yet; it ends with this process."""

    process: subprocess.Popen[bytes]
    url: str

    def end(self) -> None:
        """Stop the server; kill it if it does not stop, as one without memory may not."""
        self.process.terminate()
        try:
            self.process.wait(SECONDS_TO_STOP)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def start_early(log: Path) -> LocalServer | None:
    """Start a local server before Prefect is imported, which takes seconds.

    Returns:
        None if another server may be configured, or the checks before the run will refuse this one.
    """
    absent = importlib.util.find_spec("prefect") is None
    return None if may_be_configured() or absent or not is_writable(prefect_home()) else _start(log)


@contextlib.contextmanager
def connect_server(log: Path, started: LocalServer | None = None) -> Iterator[bool]:
    """Connect flows in the body to the server in PREFECT_API_URL, or else to a local one.

    Args:
        started: the local server, if it is running; the caller stops it.

    Yields:
        Whether the server is local.

    Raises:
        PodiumError: the server did not start.
    """
    # Imported here, because the import takes seconds, during which the server starts.
    from prefect.logging.handlers import APILogHandler
    from prefect.settings import PREFECT_API_URL

    with contextlib.ExitStack() as held:
        if PREFECT_API_URL.value():
            if started is not None:
                started.end()
            yield False
            return
        if started is None:
            started = _start(log)
            held.callback(started.end)
        held.enter_context(_use_local_settings(started.url))
        _wait_for(started, log)
        try:
            yield True
        finally:
            APILogHandler().flush()  # the last lines are sent in the background, and fail once the server is gone


@contextlib.contextmanager
def _use_local_settings(url: str) -> Iterator[None]:
    """Replace the settings of this process: in the body, Prefect reads no file and no profile."""
    from prefect.context import SettingsContext
    from prefect.settings import Profile, Settings
    from prefect.settings.base import PrefectBaseSettings

    list_sources = PrefectBaseSettings.__dict__["settings_customise_sources"]

    def list_local_sources(cls: type, *arguments: Any, **named: Any) -> tuple[Any, ...]:
        return tuple(list_sources.__func__(cls, *arguments, **named)[:2])  # arguments and the environment

    PrefectBaseSettings.settings_customise_sources = classmethod(list_local_sources)  # type: ignore[assignment]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # pydantic warns of keys for the sources that are left out
            settings = Settings(home=prefect_home(), api={"url": url})  # type: ignore[arg-type]
        with SettingsContext(profile=Profile(name="podium", settings={}), settings=settings):
            yield
    finally:
        PrefectBaseSettings.settings_customise_sources = list_sources  # type: ignore[method-assign]


def _start(log: Path) -> LocalServer:
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        port: int = probe.getsockname()[1]  # a free port
    for name in [name for name in os.environ if name.startswith("PREFECT_") and name not in PASSED_SETTINGS]:
        del os.environ[name]
    os.environ["PREFECT_PROFILES_PATH"] = os.devnull
    home = prefect_home()
    home.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as out:
        app = ("-m", "uvicorn", "--app-dir", str(SOURCES), *UVICORN, "--host", LOOPBACK, "--port", str(port))
        env = {**os.environ, **LOCAL_SETTINGS, "PREFECT_HOME": str(home)}
        # In its own session, because Ctrl-C would otherwise end it before the run has reported its end.
        process = subprocess.Popen(
            [sys.executable, *app],
            cwd=home,  # Prefect reads .env, prefect.toml and pyproject.toml of the working directory
            env=env,
            preexec_fn=die_with_parent,
            start_new_session=True,
            stdout=out,
            stderr=out,
        )
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
    return Path(os.environ.get("PREFECT_PROFILES_PATH") or users_home() / "profiles.toml")


def prefect_home() -> Path:
    """Return the folder of local servers: apart from the user's own, and one for each version of Prefect, because a
    newer one migrates the database."""
    return users_home() / f"podium-{version('prefect')}"


def users_home() -> Path:
    """Return the user's own folder of Prefect."""
    return Path(os.environ.get("PREFECT_HOME") or "~/.prefect").expanduser().absolute()


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
