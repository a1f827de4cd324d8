"""Hosts of real stages with their parameter sets, and a Prefect server on PostgreSQL where the system has it."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

from tests.faults.small_run import SMALL
from tests.flows.workers.worker_hosts import Host, Server, start_process, wait_until
from tests.places import ROOT, copy_project

QUEUE = "cpu/default"
FIRST_SEED = 101
SYSTEM = Path("/usr/lib/postgresql")
USER = "postgres"
"""Of the system's packages; PostgreSQL refuses to run as root."""


def overrides_of(number):
    """A small fine-tuning of fresh weights, from generated data to a release; sets share the stages before it."""
    return [
        *SMALL,
        "pretrain.enabled=false",
        f"downstream.squad.finetune.seed={FIRST_SEED + number}",
        f"downstream.squad.publish.folder=published/set-{number}",
    ]


class LoadHost(Host):
    """A host with a copy of a project, whose stages are the real ones."""

    def __init__(self, *places):
        super().__init__(*places)
        self.work = ()
        """Arguments of `start_worker`, by which a worker that was killed is started again."""
        self.environment["PODIUM_THREADS"] = "1"

    def make_project(self):
        copy_project(self.project)
        shutil.copy2(ROOT / "prefect.yaml", self.project)

    def send(self, number, log):
        """Start a run of a set from this host, its stages on workers; returns the process."""
        words = [sys.executable, "-m", "flows", "run", "--on-workers", "--device-queue", QUEUE]
        words += [word for override in overrides_of(number) for word in ("--set", override)]
        return start_process(words, self.environment, log, self.project)


def find_postgresql():
    """Return the folder of the programs of the newest PostgreSQL of this system; None where there is none."""
    if initdb := shutil.which("initdb"):
        return Path(initdb).resolve().parent
    versions = sorted(SYSTEM.glob("*/bin/initdb"), key=lambda path: float(path.parents[1].name))
    return versions[-1].parent if versions else None


class PostgreSQL:
    def __init__(self, programs, folder):
        self.folder, self._programs = folder, programs
        folder.mkdir()
        if os.getuid() == 0:
            shutil.chown(folder, USER)
        with (folder.parent / "postgresql.log").open("a") as log:
            self._run("initdb", "-D", folder / "data", "-U", USER, "--auth=trust", "-E", "UTF8", output=log)
            words = self._command("postgres", "-D", folder / "data", "-k", folder, "-c", "listen_addresses=")
            self.process = start_process(words, None, log, folder, self._user())
        wait_until(self._answers, "PostgreSQL", alive=self.process)

    @property
    def url(self):
        return f"postgresql+asyncpg://{USER}@/{USER}?host={self.folder}"

    def stop(self):
        self.process.send_signal(signal.SIGINT)
        self.process.wait(timeout=60)

    def _answers(self):
        return (self.folder / ".s.PGSQL.5432").exists() and self._run("pg_isready", "-q", "-h", self.folder) == 0

    def _run(self, *words, output=subprocess.DEVNULL):
        return subprocess.run(
            self._command(*words), cwd=self.folder, stdout=output, stderr=output, check=False, **self._user()
        ).returncode

    def _command(self, *words):
        return [str(self._programs / str(words[0])), *map(str, words[1:])]

    def _user(self):
        return {"user": USER, "group": USER, "extra_groups": []} if os.getuid() == 0 else {}


class LoadServer(Server):
    def __init__(self, folder, database):
        self.database = database
        super().__init__(folder)

    def own_environment(self):
        database = {} if self.database is None else {"PREFECT_SERVER_DATABASE_CONNECTION_URL": self.database.url}
        return {**super().own_environment(), **database}

    def places(self):
        return [self.folder, *([] if self.database is None else [self.database.folder / "data/base"])]

    def processes(self):
        return [self.process.pid, *([] if self.database is None else [self.database.process.pid])]
