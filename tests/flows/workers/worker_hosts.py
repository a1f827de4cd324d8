"""Hosts for tests of runs on workers: separate homes, checkouts and DVC caches, one remote, one real Prefect server."""

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import psutil

from tasks.stage.process import die_with_parent
from tests.flows.conftest import PUBLISH
from tests.places import DVC_FOLDERS, TRACKED, copy_project
from tests.prefect_home import make_home

ALL = ["corpus", "validate@corpus", "pretrain@phase1", "evaluate@squad", "gate@squad"]
DVC_YAML = """
stages:
  corpus: {cmd: python -m tasks.toy corpus, deps: [tasks/toy.py], params: [corpus], outs: [data/corpus]}
  validate:
    foreach: [corpus]
    do: {cmd: python -m tasks.toy validate, deps: [tasks/toy.py, data/corpus], outs: [reports/validation/corpus.json]}
  pretrain:
    foreach: [phase1]
    do:
      {cmd: python -m tasks.toy pretrain, deps: [tasks/toy.py, data/corpus, reports/validation/corpus.json],
       params: [device, pretrain.seed], outs: [models/phase1], metrics: [metrics/pretrain-phase1.json],
       meta: {host: device, part: pretraining}}
  evaluate:
    foreach: [squad]
    do:
      {cmd: python -m tasks.toy evaluate, deps: [tasks/toy.py, models/phase1], outs: [evaluation/squad],
       metrics: [metrics/squad.json], meta: {page: evaluation/squad/report.html}}
  gate:
    foreach: [squad]
    do:
      {cmd: python -m tasks.toy gate, deps: [tasks/toy.py, metrics/squad.json], params: [downstream.squad.gate],
       metrics: [metrics/squad-gate.json], meta: {publish: tasks.release.publish}}
"""
TOY_TABLE = """

from tasks.plan import plan_file


def define(params):
    return plan_file.read_dvc_file(Path(__file__).parents[1] / "toys.yaml")["stages"]
"""
# Every stage names itself and its process in TOY_LOG, a file of its host; training waits while TOY_HOLD is there.
TOY = """
import json, os, signal, sys, time
from pathlib import Path
from ipu_model.core.files import write_json, write_text
from tasks.plan.main import run_main
from tasks.params.schema import load_params
from tasks.stage.events import report

def main():
    stage, params = os.environ["DVC_STAGE"], load_params()
    with open(os.environ["TOY_LOG"], "a") as log:
        log.write(f"{stage} {os.getpid()}\\n")
    if stage == "corpus":
        write_text(Path("data/corpus/text"), f"text {params.corpus.seed}")
    elif stage == "validate@corpus":
        write_json(Path("reports/validation/corpus.json"), {"valid": True})
    elif stage == "pretrain@phase1":
        if params.pretrain.seed == 13 and not Path("runs/begun").exists():
            write_text(Path("runs/begun"), "")
            report("paused", text="the wall-clock limit was reached")
            sys.exit(4)
        if params.pretrain.seed == 99:
            sys.exit("error: loss is not finite")
        if params.pretrain.seed == 77:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        while Path(os.environ["TOY_HOLD"]).exists():
            time.sleep(0.05)
        write_text(Path("models/phase1/weights"), Path("data/corpus/text").read_text() + " learned")
        write_json(Path("metrics/pretrain-phase1.json"), {"steps": 7})
    elif stage == "evaluate@squad":
        write_text(Path("evaluation/squad/report.html"), "<p>answers</p>")
        scores = {"exact_match": 90.0, "exact_match_low": 80.0, "f1": 91.0, "f1_low": 80.0}
        write_json(Path("metrics/squad.json"), scores)
    else:
        write_json(Path("metrics/squad-gate.json"), {"accepted": True, "reasons": []})
run_main(main)
"""


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_until(condition, what, seconds=240, alive=None):
    """Return what `condition` returns as soon as it is true; fail after `seconds`, or when `alive` has ended."""
    until = time.monotonic() + seconds
    while not (result := condition()):
        assert alive is None or alive.poll() is None, f"{what}: the process it depends on has ended"
        assert time.monotonic() < until, f"{what}: not within {seconds} s"
        time.sleep(0.1)
    return result


def start_process(words, environment, log, folder=None, user=None):
    """Start a process in a session of its own, which ends with this one; `user` has options for another user's."""
    options = {"stdin": subprocess.DEVNULL, "start_new_session": True, "preexec_fn": die_with_parent, **(user or {})}
    return subprocess.Popen(words, cwd=folder, env=environment, stdout=log, stderr=log, **options)


class Server:
    """`prefect server start` on loopback; it can be stopped and started again on the same data."""

    def __init__(self, folder):
        self.folder, self.port = folder, free_port()
        self.url = f"http://127.0.0.1:{self.port}/api"
        make_home(folder)
        self.start()

    def environment(self):
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PREFECT_", "PODIUM_"))}
        kept |= dict.fromkeys(("PREFECT_SERVER_ANALYTICS_ENABLED", "PREFECT_SERVER_UI_ENABLED"), "false")
        return kept | {"PREFECT_API_URL": self.url, "PREFECT_WORKER_QUERY_SECONDS": "1", "DO_NOT_TRACK": "1"}

    def own_environment(self):
        return {**self.environment(), "PREFECT_HOME": str(self.folder)}

    def start(self):
        words = [sys.executable, "-m", "prefect", "server", "start", "--host", "127.0.0.1", "--port", str(self.port)]
        with (self.folder / "log").open("a") as log:
            self.process = start_process(words, self.own_environment(), log)
        wait_until(self.answers, "the Prefect server", alive=self.process)

    def answers(self):
        try:
            with urllib.request.urlopen(f"{self.url}/health", timeout=1) as answer:
                return answer.status == 200
        except (urllib.error.URLError, OSError):
            return False

    def stop(self):
        kill_tree(self.process)


class Host:
    """One machine of the team, played by folders: home, Prefect home, checkout, DVC cache."""

    def __init__(self, folder, server, remote):
        self.folder, self.project = folder, folder / "podium"
        self.log, self.hold = folder / "ran.txt", folder.parent / "hold"
        self.worker = None
        self.make_project()
        settings = "[core]\n    no_scm = true\n    analytics = false\n    remote = store\n"
        (self.project / ".dvc/config").write_text(f"{settings}['remote \"store\"']\n    url = {remote}\n")
        self.environment = {**server.environment(), "HOME": str(folder), "PREFECT_HOME": str(folder / "prefect")}
        self.environment |= {"TOY_LOG": str(self.log), "TOY_HOLD": str(self.hold)}
        self.environment |= {name: str(folder / name) for name in DVC_FOLDERS}

    def make_project(self):
        copy_project(self.project, (*TRACKED, "prefect.yaml"))
        for name in ("dvc.yaml", "tasks/toys.yaml"):
            (self.project / name).write_text(DVC_YAML)
        with (self.project / "tasks/plan/stages.py").open("a") as table:
            table.write(TOY_TABLE)
        (self.project / "tasks/toy.py").write_text(TOY)
        (self.project / "tasks/release/publish.py").write_text(PUBLISH)

    def start_worker(self, pool, queue, kinds, *options):
        words = [sys.executable, "-m", "flows", "worker", "--pool", pool, "--queue", queue, *options]
        with (self.folder / "worker.log").open("a") as log:
            self.worker = start_process(words, {**self.environment, "PODIUM_STAGE_KINDS": kinds}, log, self.project)

    def start(self, *words):
        with (self.folder / "said.txt").open("w") as output:
            return start_process([sys.executable, "-m", *words], self.environment, output, self.project)

    def run(self, *words):
        return self.start(*words).wait(timeout=400)

    def said(self):
        return (self.folder / "said.txt").read_text()

    def ran(self):
        """Stages whose commands really ran here, in order."""
        return [line.split()[0] for line in self.log.read_text().splitlines()] if self.log.exists() else []

    def processes(self):
        return [int(line.split()[1]) for line in self.log.read_text().splitlines()]

    def flow(self):
        commands = {pid: Path(f"/proc/{pid}/cmdline").read_bytes() for pid in descendants(self.worker.pid)}
        (flow,) = (pid for pid, command in commands.items() if b"flows.commands.worker_entry" in command)
        return flow

    def lose(self):
        kill_tree(self.worker)
        self.worker = None


def descendants(pid):
    """Process ids below `pid`, whatever session or group they made for themselves."""
    return [child.pid for child in psutil.Process(pid).children(recursive=True)] if psutil.pid_exists(pid) else []


def kill_tree(process):
    """SIGKILL `process` and everything below it; they are stopped first, so that no one sees another die."""
    tree = [process.pid, *descendants(process.pid)]
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in tree:
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                continue
    process.wait()


def is_alive(pid):
    """Whether a process runs; one that waits for its parent to take its exit code does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
