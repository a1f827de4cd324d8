"""A Prefect server on PostgreSQL where the system has it, and on SQLite otherwise."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

from tests.flows.workers.worker_hosts import Server, start_process, wait_until

SYSTEM = Path("/usr/lib/postgresql")
"""Where Debian's packages put each version's programs."""
USER = "postgres"
"""Of the system's packages; PostgreSQL refuses to run as root."""


def find_postgresql() -> Path | None:
    """Return the folder of the programs of the newest PostgreSQL of this system; None where there is none."""
    if found := shutil.which("initdb"):
        return Path(found).resolve().parent
    versions = sorted(SYSTEM.glob("*/bin/initdb"), key=lambda path: float(path.parents[1].name))
    return versions[-1].parent if versions else None


class PostgreSQL:
    """A database of its own on a socket in a folder; it ends with this process."""

    def __init__(self, programs: Path, folder: Path) -> None:
        """Make the database and start it."""
        self.folder, self._programs = folder, programs
        self._data = folder / "data"
        folder.mkdir()
        if os.getuid() == 0:
            shutil.chown(folder, USER)
        with (folder.parent / "postgresql.log").open("a") as log:
            self._run("initdb", "-D", self._data, "-U", USER, "--auth=trust", "-E", "UTF8", output=log)
            words = self._command("postgres", "-D", self._data, "-k", folder, "-c", "listen_addresses=")
            self.process = start_process(words, None, log, folder, self._user())
        wait_until(self._answers, "PostgreSQL", alive=self.process)

    @property
    def url(self) -> str:
        return f"postgresql+asyncpg://{USER}@/{USER}?host={self.folder}"

    @property
    def tables(self) -> Path:
        return self._data / "base"

    @property
    def version(self) -> str:
        words = self._command("postgres", "--version")
        return subprocess.run(words, text=True, check=True, stdout=subprocess.PIPE).stdout.split(") ")[-1].split()[0]

    def stop(self) -> None:
        self.process.send_signal(signal.SIGINT)
        self.process.wait(timeout=60)

    def _answers(self) -> bool:
        return (self.folder / ".s.PGSQL.5432").exists() and self._run("pg_isready", "-q", "-h", self.folder) == 0

    def _run(self, *words: object, output: Any = subprocess.DEVNULL) -> int:
        return subprocess.run(
            self._command(*words), cwd=self.folder, stdout=output, stderr=output, check=False, **self._user()
        ).returncode

    def _command(self, *words: object) -> list[str]:
        return [str(self._programs / str(words[0])), *map(str, words[1:])]

    def _user(self) -> dict[str, Any]:
        return {"user": USER, "group": USER, "extra_groups": []} if os.getuid() == 0 else {}


class LoadServer(Server):
    """A Prefect server that keeps its data where it is told."""

    def __init__(self, folder: Path, database: PostgreSQL | None) -> None:
        self.database = database
        super().__init__(folder)

    def own_environment(self) -> dict[str, str]:
        own = {} if self.database is None else {"PREFECT_SERVER_DATABASE_CONNECTION_URL": self.database.url}
        return {**super().own_environment(), **own}

    def places(self) -> list[Path]:
        return [self.folder, *([] if self.database is None else [self.database.tables])]

    def processes(self) -> list[int]:
        return [self.process.pid, *([] if self.database is None else [self.database.process.pid])]
