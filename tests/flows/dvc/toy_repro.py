"""One stage of the toy project brought up to date as a flow does it, and DVC as its users call it."""

import subprocess
import sys

from flows import dvc
from flows.dvc import leftovers
from flows.dvc.session import DvcSession, Listener
from tasks.plan.plan_file import read_plan


def repro(stage, root, said=None, shares=None, sent=None):
    """Returns the verdict of a stage after those it needs; `said` and `shares` get the lines and the progress, `sent`
    are the stages that may run."""
    said, shares = ([] if given is None else given for given in (said, shares))
    leftovers.repair(root, said.append)
    listener = Listener(said.append, said.append, lambda percent, text: shares.append(percent))
    with DvcSession(root, sent) as session:
        for one in read_plan(root).with_upstream([stage]):
            verdict = session.update(one, listener, pull=dvc.has_remote(root))
    return verdict


def call(*words, root):
    """A command of DVC in the checkout `root`, waited for; what it prints is kept."""
    command, out = [sys.executable, "-m", "dvc", *words], subprocess.PIPE
    return subprocess.run(
        command, cwd=root, env=dvc.stage_environment(), text=True, check=False, stdout=out, stderr=subprocess.STDOUT
    )
