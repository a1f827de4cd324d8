"""Runs of the toy project: started, asked for by commands, held by another process, and stages and DVC alone."""

import contextlib
import json
import subprocess
import sys

from flows import cli, dvc, pipeline
from flows.dvc import leftovers
from flows.dvc.session import DvcSession, Listener
from tasks.plan.plan_file import read_plan
from tests.places import ROOT

ACCEPTED = ["downstream.squad.gate.min_f1=80.0"]
FASTER = "downstream.squad.finetune.learning_rate=3e-5"
HOLDS = """
import sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from flows.runs import locks
with locks.hold_run(Path.cwd(), sys.argv[2], print):
    print("held", flush=True)
    sys.stdin.read()
"""


def run(*overrides, **options):
    return pipeline.pipeline(None, list(overrides), return_state=True, **options)


def run_json(project):
    return json.loads((project / "reports" / "run.json").read_text())


def statuses(project):
    return {stage["name"]: stage["status"] for stage in run_json(project)["stages"]}


def podium(capsys, *words):
    try:
        cli.main(words)
        code = 0
    except SystemExit as end:
        code = end.code
    return code, capsys.readouterr()


def require_end(capsys, code, text, *words):
    ended, printed = podium(capsys, *words)
    assert (ended, text in printed.out + printed.err) == (code, True), printed


@contextlib.contextmanager
def holding(name):
    """Another process, which holds a run as a running one does, until the body ends or kills it."""
    words = [sys.executable, "-c", HOLDS, str(ROOT), name]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "held\n"
        yield process


def git(folder, *words):
    who = ["-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
    return subprocess.run(["git", *who, *words], cwd=folder, check=True, capture_output=True, text=True).stdout.strip()


def repro(stage, root, say=print, sent=None):
    """The verdict of a stage after those it needs; `say` gets the lines, `sent` are the stages that may run."""
    leftovers.repair(root, say)
    with DvcSession(root, sent) as session:
        for needed in read_plan(root).with_upstream([stage]):
            verdict = session.update(needed, Listener(say, say), pull=dvc.has_remote(root))
    return verdict


def call(*words, root):
    """A command of DVC in the checkout `root`, waited for; what it prints is kept."""
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "env": dvc.stage_environment()}
    return subprocess.run([sys.executable, "-m", "dvc", *words], cwd=root, check=False, **options)
