"""`dvc exp run --temp` on files that git does not track, as docs/runs.md says."""

import itertools
import subprocess
import sys

import pytest

from tests.places import DVC_FOLDERS, copy_project
from tests.plans import values_with
from tests.tasks.downstream.entries import write_parameters

DATA = "data: {source: files, train_path: my-data/train.csv, dev_path: null, dev_fraction: 0.5}"
WHO = {"NAME": "a test", "EMAIL": "test@example.org"}


@pytest.mark.soak
def test_an_experiment_in_a_copy_has_untracked_files_that_are_named(tmp_path, monkeypatch):
    project = copy_project(tmp_path / "project")
    monkeypatch.chdir(project)
    for role, key in itertools.product(("AUTHOR", "COMMITTER"), WHO):
        monkeypatch.setenv(f"GIT_{role}_{key}", WHO[key])
    for name in DVC_FOLDERS:
        monkeypatch.setenv(name, str(tmp_path / name.lower()))
    write_parameters(project, values_with(f"downstream.own={{kind: classification, {DATA}}}"))
    for words in (["init", "--quiet"], ["add", "."], ["commit", "--quiet", "-m", "as it is"]):
        subprocess.run(["git", *words], check=True)
    (project / "my-data").mkdir()
    lines = (f"text {number},{'good' if number % 3 else 'bad'}\n" for number in range(60))
    (project / "my-data/train.csv").write_text("text,label\n" + "".join(lines))

    def experiment(*words):
        change = ("-S", "downstream.own.finetune.learning_rate=3e-4")
        command = [sys.executable, "-m", "dvc", "exp", "run", "--temp", *words, *change, "examples@own"]
        return subprocess.run(command, text=True, capture_output=True, timeout=300)

    without = experiment()
    assert without.returncode != 0
    assert "No such file or directory" in without.stderr
    done = experiment("--copy-paths", "my-data")
    assert done.returncode == 0, done.stderr
    assert "Ran experiment(s)" in done.stdout
    assert not (project / "data").exists(), "the checkout is untouched"
