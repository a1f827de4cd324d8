"""One trial: a team of real stages, the runs that it is sent, what is done to it meanwhile, and what it takes of memory
and disk; on PostgreSQL where the system has it."""

import contextlib
import functools
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import psutil
from prefect.client.orchestration import get_client

from flows.pipeline import pipeline
from flows.server.api import LOCK_PREFIX as LOCK_NAME
from flows.server.api import SERVER_ERRORS
from flows.workers import stage_flow
from tests.faults.small_run import SMALL
from tests.flows.workers.worker_hosts import Host, Server, start_process, wait_until
from tests.flows.workers.worker_team import a_team
from tests.load.disturbances import CPUS, FLOWS, Disturbances, start_workers
from tests.load.records import read_flow_runs, read_records
from tests.places import ROOT, copy_project

QUEUE = "cpu/default"
FIRST_SEED = 101
SYSTEM = Path("/usr/lib/postgresql")
USER = "postgres"
"""Of the system's packages; PostgreSQL refuses to run as root."""
SENT_SHARE = 5
"""One run of every N is sent by `podium run --on-workers`, the others by the deployment."""
SENT_AT_ONCE = 2
LOOK_S, MEASURE_S = 3.0, 10.0
AROUND = 5
"""Looks whose median says what is taken: a process that has just started takes less."""
CRASHED_S = 180.0
"""A run that crashed is scheduled again by the server within seconds, or by a worker within a minute or so."""
QUIET_S = 60.0
"""How long workers may take to end what is left once all runs have ended."""
SEED = 35
PUBLISHED = "published"
SERVER_DISK = "disk of the server, a run"


@dataclass
class Options:
    runs: int = 50
    sets: int = 10
    minutes: float = 26.0
    kill_every: float = 60.0
    kills: int | None = None
    """Of workers; None: until the end."""
    flows: int = 8
    """Runs at a time of the `flows` worker; all begin again whenever it is killed, each in seconds of a core."""


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
        self.folder, self.programs = folder, programs
        self.user = {"user": USER, "group": USER, "extra_groups": []} if os.getuid() == 0 else {}
        self.url = f"postgresql+asyncpg://{USER}@/{USER}?host={folder}"
        folder.mkdir()
        if self.user:
            shutil.chown(folder, USER)
        with (folder.parent / "postgresql.log").open("a") as log:
            made = self.command("initdb", "-D", folder / "data", "-U", USER, "--auth=trust", "-E", "UTF8")
            subprocess.run(made, cwd=folder, stdout=log, stderr=log, check=True, **self.user)
            words = self.command("postgres", "-D", folder / "data", "-k", folder, "-c", "listen_addresses=")
            self.process = start_process(words, None, log, folder, self.user)
        wait_until(self.answers, "PostgreSQL", alive=self.process)

    def command(self, name, *words):
        return [str(self.programs / name), *map(str, words)]

    def answers(self):
        asked = self.command("pg_isready", "-q", "-h", self.folder)
        return subprocess.run(asked, cwd=self.folder, check=False, **self.user).returncode == 0

    def stop(self):
        self.process.send_signal(signal.SIGINT)
        self.process.wait(timeout=60)


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


@dataclass(frozen=True)
class Look:
    at: float
    """Seconds since the runs were queued."""
    ended: int
    sizes: dict[str, float]
    """MB of memory and disk by name; 0 of a process that was dead at this moment."""


class Trial:
    """The runs of a trial, on a team that is there."""

    def __init__(self, team, options, database):
        self.team, self.options, self.database = team, options, database
        self.stages, self.releases = set(), []
        self.seconds, self.right, self.tracebacks = 0.0, 0, 0
        self.wrong = []
        """Runs that ended otherwise than published, with how."""
        self.stuck = []
        """Runs of any kind that had no end, locks and processes that were left."""
        self.looks, self.warm = [], None
        """When one run of each parameter set had ended: from then on nothing new is made."""
        self.clock = time.monotonic()
        order = [number % options.sets for number in range(options.runs)]
        random.Random(SEED).shuffle(order)
        self.waiting = order[::SENT_SHARE]
        queued = [number for place, number in enumerate(order) if place % SENT_SHARE]
        self.deployed = {
            team.start_deployment(overrides=overrides_of(number), device_queue=QUEUE): number for number in queued
        }
        self.sent = []
        self.disturbances = Disturbances(team, self.clock, options.kill_every, options.kills)

    def run(self):
        """Return when all runs have ended, or their time has."""
        until = self.clock + 60 * self.options.minutes
        while time.monotonic() < until:
            self._send()
            ended = self._look()
            if ended is None:
                continue
            if ended == self.options.runs:
                break
            self.disturbances.look(ended / self.options.runs)
            time.sleep(LOOK_S)
        self.disturbances.bring_back()
        for _, process in self.sent:
            if process.poll() is None:
                process.terminate()

    def _send(self):
        running = sum(process.poll() is None for _, process in self.sent)
        if self.waiting and running < SENT_AT_ONCE:
            number = self.waiting.pop(0)
            with (self.team.sender.folder / f"sent-{len(self.sent)}.log").open("w") as log:
                self.sent.append((number, self.team.sender.send(number, log)))

    def _look(self):
        """Return how many runs have ended; None where the server does not answer."""
        try:
            with get_client(sync_client=True) as client:
                runs = read_flow_runs(client, pipeline.name)
        except SERVER_ERRORS:
            return None
        ended = [self.deployed[run.id] for run in runs if run.id in self.deployed and self._has_ended(run)]
        ended += [number for number, process in self.sent if process.poll() is not None]
        at = time.monotonic() - self.clock
        if self.warm is None and len(set(ended)) == self.options.sets:
            self.warm = at
        if not self.looks or at - self.looks[-1].at >= MEASURE_S or len(ended) == self.options.runs:
            self.looks.append(Look(at, len(ended), self._measure()))
        return len(ended)

    def _has_ended(self, run):
        if run.state is None or not run.state.is_final():
            return False
        return not run.state.is_crashed() or time.time() - run.state.timestamp.timestamp() > CRASHED_S

    def _measure(self):
        """A worker is without the runs that it started."""
        server = self.team.server
        sizes = {
            "memory of the server": memory_of(*with_children(server.processes())),
            SERVER_DISK: disk_of(*server.places()),
        }
        for name in (FLOWS, *CPUS):  # each set of parameters has a checkout of its own, on each host that has had it
            host = self.team.hosts[name]
            checkouts = 1 + len(list(host.project.glob("runs/checkouts/*")))
            sizes[f"memory of {name}"] = memory_of(host.worker.pid)
            sizes[f"disk of {name}, a checkout"] = disk_of(host.folder) / checkouts
        return sizes

    def sizes(self, name):
        """MB when all was warm, and at the end."""
        sizes = [look.sizes[name] for look in self.looks if look.at >= (self.warm or 0.0) and look.sizes[name]]
        return (median(sizes[:AROUND]), median(sizes[-AROUND:])) if sizes else (0.0, 0.0)

    def conclude(self):
        self.seconds = time.monotonic() - self.clock
        with get_client(sync_client=True) as client:
            self.stuck = self._wait_for_quiet(client)
            states = {run.id: run.state for run in read_flow_runs(client, pipeline.name)}
            for run, number in self.deployed.items():
                state = states.get(run)
                if state is not None and state.is_completed() and state.message == PUBLISHED:
                    self.right += 1
                else:
                    ending = "it is not there" if state is None else f"{state.name}: {state.message}"
                    self.wrong.append(f"deployed run of set {number}: {ending}")
            for number, process in self.sent:
                self.right += process.poll() == 0
                if process.poll() != 0:
                    self.wrong.append(f"sent run of set {number}: exit code {process.poll()}")
            self.wrong += [f"set {number} was never sent" for number in self.waiting]
            self.stages, self.releases = read_records(client)
        logs = [*self.team.folder.glob("*/worker.log"), *self.team.sender.folder.glob("sent-*.log")]
        self.tracebacks = sum(log.read_text(errors="replace").count("Traceback (most") for log in logs)

    def _wait_for_quiet(self, client):
        """Return what still runs once workers had time to end it."""
        until = time.monotonic() + QUIET_S
        while (left := list(self._left(client))) and time.monotonic() < until:
            time.sleep(2.0)
        return left

    def _left(self, client):
        for flow in (pipeline.name, stage_flow.FLOW_NAME):
            for run in read_flow_runs(client, flow):
                if run.state is None or not run.state.is_final():
                    yield f"run {run.name} is {run.state.name if run.state else 'without a state'}"
        for variable in client.read_variables():
            if variable.name.startswith(LOCK_NAME):
                yield f"lock {variable.name}"
        for name in (FLOWS, *CPUS):
            (worker, *below) = with_children([self.team.hosts[name].worker.pid])
            if below:
                yield f"{len(below)} processes below the worker {worker} of {name}"


def try_load(options, folder):
    """Do a trial in an empty folder, and return what came of it; nothing of it is running then."""
    programs = find_postgresql()
    with contextlib.ExitStack() as stack:
        database = None if programs is None else PostgreSQL(programs, folder / "pg")
        if database is not None:
            stack.callback(database.stop)
        team = stack.enter_context(a_team(folder, functools.partial(LoadServer, database=database), LoadHost))
        start_workers(team, options.flows)
        trial = Trial(team, options, "SQLite" if database is None else "PostgreSQL")
        trial.run()
        trial.conclude()
    return trial


def memory_of(*pids):
    """MB of these processes."""
    size = 0.0
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            size += psutil.Process(pid).memory_full_info().pss / 2**20
    return size


def disk_of(*folders):
    """MB on disk of all files below these folders, each counted once, whatever its names."""
    done = subprocess.run(["du", "-sck", *map(str, folders)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    return int(done.stdout.split()[-2]) / 1024  # files may go meanwhile


def with_children(pids):
    """Return these processes and all below them."""
    every = list(pids)
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            every += [child.pid for child in psutil.Process(pid).children(recursive=True)]
    return every
