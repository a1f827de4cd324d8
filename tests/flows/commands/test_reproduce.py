"""A finished run that is repeated from the revision that it recorded."""

import os
import random
import subprocess
import sys

import pytest

from tests.flows.toy_runs import git
from tests.places import ROOT
from tests.tasks.tiny_model import SPECIAL, write_tiny_model

WORDS = ["fish", "rice", "soup", "tea", "bread", "and", "was", "very"]
DRAW = random.Random(7)
TEXTS = [
    f"{' '.join(DRAW.choices(WORDS, k=6))} {'good' if number % 2 else 'bad'},{number % 2}" for number in range(200)
]
RUN = ("finetune", "classification", "--train", "texts.csv", "--epochs", "1", "--labels", "no,yes")


@pytest.fixture
def clone(tmp_path):
    """A clone of this project, whose commands run its own code."""
    folder = tmp_path / "clone"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(folder)], check=True)
    (folder / "texts.csv").write_text("\n".join(["text,label", *TEXTS]))
    write_tiny_model(tmp_path / "my-bert", [*SPECIAL, *WORDS, "good", "bad"])
    return folder


def podium(clone, *words):
    without = ("PYTHONPATH", "PREFECT_API_URL")
    environment = {name: value for name, value in os.environ.items() if name not in without}
    command = [sys.executable, "-m", "flows", *words]
    done = subprocess.run(command, cwd=clone, env=environment, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.soak
def test_a_run_is_repeated_from_its_own_revision(clone, tmp_path):
    code, output = podium(clone, *RUN, "--model", str(tmp_path / "my-bert"), "--name", "first")
    assert code in (0, 3), output
    (clone / "tasks" / "downstream" / "examples.py").write_text("raise SystemExit('the code of today')\n")
    git(clone, "commit", "--all", "--message", "a later revision")
    code, output = podium(clone, "reproduce", "first")
    assert code == 0, output
    assert "models/classification: the same" in output
    assert "6 of 6 outputs of first are the same" in output
    assert not list((clone / "runs" / "reproduced").iterdir())
    git(clone, "checkout", "--quiet", "--orphan", "other")
    git(clone, "commit", "--message", "another history")
    branches = git(clone, "branch", "--format", "%(refname:short)").split()
    git(clone, "branch", "--delete", "--force", *(name for name in branches if name != "other"))
    code, output = podium(clone, "reproduce", "first")
    assert code == 1
    assert "is on no branch here" in output
