"""`podium sweep`: which runs there are, which is the best, and a real one that is interrupted and goes on."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from flows import checkout
from flows.sweeps import SWEEPS, Sweep, carry_out, require_held_out
from tasks.project import artifacts
from tasks.project.errors import ParamsError, PodiumError
from tasks.project.files import write_json
from tests.places import ROOT
from tests.tasks.tiny_model import write_tiny_model

GRID: dict[str, list[Any]] = {"seed": [5, 6], "learning_rate": [1e-5, 3e-5]}
SWEEP = Sweep("tries", "squad", "finetune", ("device.runtime=cpu",), GRID)


def test_every_recipe_is_run_with_every_seed_and_named_by_them() -> None:
    assert [member.name for member in SWEEP.members()] == [
        "tries-lr1e-05-s5",
        "tries-lr1e-05-s6",
        "tries-lr3e-05-s5",
        "tries-lr3e-05-s6",
    ]
    words = SWEEP.members()[0].command("--to", "finetune@squad")
    assert words[words.index("run") :] == [
        "run",
        *("--preset", "finetune", "--set", "device.runtime=cpu"),
        *("--set", "downstream.squad.finetune.learning_rate=1e-05", "--set", "downstream.squad.finetune.seed=5"),
        *("--name", "tries-lr1e-05-s5", "--to", "finetune@squad"),
    ]


def ended(project: Path, monkeypatch: pytest.MonkeyPatch, scores: dict[str, dict[str, Any]]) -> list[list[str]]:
    """Runs that are not made: those with scores leave their figures, the others fail; their commands."""
    ran: list[list[str]] = []

    def run(command: list[str], where: Path, say: Any) -> int:
        ran.append(command)
        name = command[command.index("--name") + 1]
        if name not in scores:
            return 1
        folder = checkout.own_folder(where, name)
        write_json(folder / artifacts.metrics_file("squad", "finetune"), {"held_out": scores[name]})
        return 0

    monkeypatch.setattr("flows.sweeps._run", run)
    return ran


def test_the_best_recipe_is_that_of_the_best_mean_and_only_it_is_judged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = (0.5, 0.6, 0.9, 0.1)  # the best single run is of the worse recipe
    scores = {
        member.name: {"judged_by": "span_accuracy", "span_accuracy": score, "loss": 1.0}
        for member, score in zip(SWEEP.members(), found, strict=True)
    }
    ran = ended(tmp_path, monkeypatch, scores)
    record = carry_out(SWEEP, tmp_path, lambda text: None)
    assert record["best"] == "tries-lr1e-05-s6"
    assert [one["mean"] for one in record["recipes"]] == [pytest.approx(0.55), pytest.approx(0.5)]
    assert record["recipes"][0]["deviation"] == pytest.approx(0.0707106781)
    assert [("--to" in command, command[command.index("--name") + 1]) for command in ran] == [
        *((True, member.name) for member in SWEEP.members()),
        (False, "tries-lr1e-05-s6"),
    ]
    assert json.loads((tmp_path / SWEEPS / "tries.json").read_text()) == record


def test_a_smaller_loss_is_better_and_a_run_that_failed_is_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [member.name for member in SWEEP.members()]
    ended(
        tmp_path,
        monkeypatch,
        {names[1]: {"judged_by": "loss", "loss": 2.0}, names[3]: {"judged_by": "loss", "loss": 1.0}},
    )
    record = carry_out(SWEEP, tmp_path, lambda text: None)
    assert record["best"] == names[3]
    assert [one["held_out"] for one in record["runs"]][0] is None


def test_a_sweep_of_which_no_run_ends_has_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ended(tmp_path, monkeypatch, {})
    with pytest.raises(PodiumError, match="none of the 4 runs came to its end"):
        carry_out(SWEEP, tmp_path, lambda text: None)


def test_nothing_is_chosen_by_the_development_set() -> None:
    with pytest.raises(ParamsError, match=r"--set downstream.squad.rows.held_out_fraction=0.1"):
        require_held_out({"downstream": {"squad": {"rows": {"held_out_fraction": 0.0}}}}, "squad")


WORDS = [f"word{number}" for number in range(40)]


def questions(path: Path, titles: range) -> Path:
    articles = []
    for title in titles:
        context = " ".join(WORDS[(title + at) % 40] for at in range(20))
        answer = WORDS[(title + 3) % 40]
        asked = [
            {
                "id": f"{path.stem}-{title}-{number}",
                "question": f"what is {WORDS[number]}",
                "answers": [{"text": answer, "answer_start": context.index(answer)}],
            }
            for number in range(4)
        ]
        articles.append({"title": f"t{title}", "paragraphs": [{"context": context, "qas": asked}]})
    path.write_text(json.dumps({"version": "1.1", "data": articles}))
    return path


@pytest.mark.soak
def test_a_sweep_that_is_interrupted_goes_on_and_its_best_run_is_published(tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    for part in (*checkout.CODE, "params.yaml", "presets", "inputs"):
        source = ROOT / part
        if source.is_dir():
            shutil.copytree(source, project / part, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(source, project / part)
    subprocess.run([sys.executable, "-m", "dvc", "init", "--no-scm", "--quiet"], cwd=project, check=True)
    write_tiny_model(tmp_path / "bert", [*"abcdefghijklmnopqrstuvwxyz0123456789", "what", "is", *WORDS])
    train, dev = questions(tmp_path / "train.json", range(12)), questions(tmp_path / "dev.json", range(12, 16))
    held = "downstream.squad.rows.held_out_fraction=0.25"
    rest = ["--learning-rate", "1e-3,1e-4", "--epochs", "1", "--runtime", "cpu", "--set", held, "--name", "t", "--json"]
    words = ["sweep", "finetune", "squad", "--model", str(tmp_path / "bert"), "--train", str(train), "--dev", str(dev)]
    command = [sys.executable, "-m", "flows", *words, *rest, "--precision", "fp32"]
    environment = {**os.environ, "PYTHONPATH": str(project), "HOME": str(tmp_path), "OMP_NUM_THREADS": "1"}
    heard = lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)  # noqa: E731, a script with & has it ignored
    first = subprocess.Popen(command, cwd=project, env=environment, stderr=subprocess.PIPE, text=True, preexec_fn=heard)
    assert first.stderr is not None
    said = []
    for line in first.stderr:
        said.append(line)
        if "run 2 of 2" in line:
            break
    first.send_signal(signal.SIGINT)
    said += first.stderr.readlines()
    assert first.wait() in (4, 130), "".join(said)
    again = subprocess.run(command, cwd=project, env=environment, text=True, capture_output=True)
    assert again.returncode == 0, again.stderr
    assert "nothing changed" in again.stderr.partition("run 2 of 2")[0]
    record = json.loads(again.stdout)
    assert record["best"] in {"t-lr0.001-e1", "t-lr0.0001-e1"}
    assert (project / "published/t/model.safetensors").is_file()
    judged = [path.parts[-3] for path in (project / "runs/checkouts").glob("*/metrics/squad.json")]
    assert judged == [record["best"]]
