"""`podium sweep --trials`: ranges, proposals, early stops, and a search that is killed and continued."""

import json
import math
import os
import signal
import statistics
import subprocess
import sys

import pytest
from click.testing import CliRunner
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from flows.cli import cli
from flows.commands.sweep import _take_space, parse_range
from flows.commands.sweep_runs import COMPLETE, PRUNED, Sweep, Training, Trial, ask_trial, enter_scores
from flows.runs.checkout import checkout_folder
from ipu_model.core.files import write_json, write_text
from tasks.downstream.gate.verdict_text import held_out_score
from tasks.stage.errors import ParamsError
from tests.places import ROOT
from tests.tasks.tiny_model import write_tiny_model

SPACE = {
    "learning_rate": FloatDistribution(1e-5, 1e-1, log=True),
    "epochs": IntDistribution(2, 4),
    "global_batch_size": CategoricalDistribution([16, 32]),
}


def score(values):
    """Best at a learning rate of 1e-3."""
    return -abs(math.log10(values["learning_rate"]) + 3) - 0.01 * values["epochs"]


def searched(seed=42):
    return Sweep("s", Training("finetune@squad"), "finetune", (), SPACE, trials=12, seed=seed)


def search(trials, total, seed=42):
    for _ in range(total - len(trials)):
        trial = Trial("", ask_trial(searched(seed), trials).params)
        trial.state, trial.score = COMPLETE, score(trial.values)
        trials = [*trials, trial]
    return trials


@pytest.mark.parametrize(
    ("text", "kinds", "expected"),
    [
        ("1e-5..1e-4", {float}, FloatDistribution(1e-5, 1e-4, log=True)),
        ("0..0.2", {float}, FloatDistribution(0.0, 0.2)),
        ("0..1", {float}, FloatDistribution(0.0, 1.0)),
        ("2..4", {float}, IntDistribution(2, 4)),
        ("0..4", {int, type(None)}, IntDistribution(0, 4)),
        (".1...5", {float}, FloatDistribution(0.1, 0.5, log=True)),
        ("../data", {str}, None),
        ("1e-5,3e-5", {float}, None),
    ],
)
def test_a_range_is_of_integers_where_they_are_meant(text, kinds, expected):
    assert parse_range(text, kinds, "--epochs") == expected


def test_proposals_depend_on_the_seed_and_earlier_trials_only_and_stay_in_their_ranges():
    whole = search([], 12)
    assert search(whole[:5], 12) == whole
    assert search([], 1, seed=43)[0].values != whole[0].values
    for trial in whole:
        assert 1e-5 <= trial.values["learning_rate"] <= 1e-1
        assert trial.values["epochs"] in (2, 3, 4)
        assert trial.values["global_batch_size"] in (16, 32)
    interrupted = {"learning_rate": 2e-5, "epochs": 3, "global_batch_size": 32}
    assert ask_trial(searched(), whole[:5], interrupted).params == interrupted


def test_a_search_finds_better_values_than_random_ones():
    found = search([], 40)
    late, early = (statistics.median(trial.score or 0.0 for trial in part) for part in (found[-20:], found[:5]))
    assert late > early + 0.5


def test_a_trial_is_hopeless_below_the_median_of_finished_ones_from_the_second_evaluation_on():
    finished = search([], 4)
    for trial in finished:
        trial.scores = [0.5, 0.6, 0.7]
    live, trial = ask_trial(searched(), finished[:3]), Trial("", {})
    assert not enter_scores(trial, live, [0.0, 0.0, 0.0])
    live, trial = ask_trial(searched(), finished), Trial("", {})
    assert not enter_scores(trial, live, [0.0])
    assert not enter_scores(trial, live, [0.0, 0.6])
    assert enter_scores(trial, live, [0.0, 0.6, 0.65, 0.9])
    assert enter_scores(trial, live, [0.0, 0.6, 0.65, 0.9, 0.95]), "it stays pruned"
    assert trial.scores == [0.0, 0.6, 0.65]


def options(*overrides, trials=3, **values):
    return {"overrides": list(overrides), "trials": trials, **values}


def test_ranges_and_lists_leave_the_options():
    key, steps = "downstream.squad.finetune.warmup_fraction", "pretrain.phase2.steps"
    args = options(f"{key}=0..0.2", f"{steps}=10,20", "device.runtime=cpu", learning_rate="1e-5")
    assert _take_space(args) == {
        "learning_rate": CategoricalDistribution([1e-5]),
        key: FloatDistribution(0.0, 0.2),
        steps: CategoricalDistribution([10, 20]),
    }
    assert (args["overrides"], args["learning_rate"]) == (["device.runtime=cpu"], None)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (options("pretrain.weight_decay=0.1..0.01"), "pretrain.weight_decay: 0.1..0.01 is not a range"),
        (options("corpus.path=1..3"), "corpus.path: 1..3 .* not a number"),
        (options("pretrain.bias_correction=0..1"), "pretrain.bias_correction.* not a number"),
        (options("pretrain.weight_decay=0..0.1", trials=None), "pretrain.weight_decay: .*--trials N"),
        (options("pretrain.seed=1,2.5", trials=None), "pretrain.seed: '1,2.5' is not a list"),
        (options(), "--trials needs values"),
    ],
)
def test_values_that_cannot_be_searched_are_refused(args, message):
    with pytest.raises(ParamsError, match=message):
        _take_space(args)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--trials", "0", "--learning-rate", "1e-5..1e-4"], "0 is not in the range x>=1"),
        (["--trials", "3", "--learning-rate", "1e-4..1e-5"], "its lower end comes first"),
        (["--trials", "3", "--set", "downstream.ner.finetune.warm=0..1"], "downstream.ner.finetune.warm is not known"),
        (["--trials", "3", "--set", "downstream.ner.finetune.warmup_fraction=0..2"], "less than or equal to 1"),
        (["--trials", "3", "--batch-size", "0..8"], "greater than or equal to 1"),
        (["--trials", "3", "--epochs", "2..4", "--seeds", "2"], "--seeds repeats every recipe"),
        (
            ["--trials", "3", "--epochs", "2..4", "--set", "downstream.ner.rows.held_out_fraction=0.0"],
            "set downstream.ner.rows.held_out_fraction above 0",
        ),
    ],
)
def test_a_search_is_refused_before_its_first_run(tmp_path, words, message):
    write_tiny_model(tmp_path / "bert", ["a"])
    (tmp_path / "train.txt").write_text("a O\n")
    model = ["--model", str(tmp_path / "bert"), "--train", str(tmp_path / "train.txt")]
    held_out = ["--set", "downstream.ner.rows.held_out_fraction=0.1"]
    done = CliRunner().invoke(cli, ["--project", str(ROOT), "sweep", "finetune", "ner", *model, *held_out, *words])
    assert message in f"{done.output} {done.exception}"
    assert done.exit_code != 0


def test_pre_training_is_judged_by_the_loss_of_masked_tokens_and_sets_both_phases(tmp_path):
    sweep = Sweep("p", Training("pretrain@phase2"), "bert", (), {}, trials=2)
    trial = Trial("p-01", {"learning_rate": 1e-4, "pretrain.weight_decay": 0.1})
    words = [text for text in sweep.command(trial) if "=" in text]
    assert words == [
        "pretrain.phase1.learning_rate=0.0001",
        "pretrain.phase2.learning_rate=0.0001",
        "pretrain.weight_decay=0.1",
    ]
    root = checkout_folder(tmp_path, "p-01")
    write_json(root / "metrics/pretrain-phase2.json", {"held_out": {"judged_by": "loss", "loss": 3.0, "mlm_loss": 2.5}})
    write_text(root / "plots/pretrain-phase2-held-out.csv", "step,loss,mlm_loss\n1,4.0,3.5\n2,3.0,2.5\n")
    assert held_out_score(sweep.training.read_held_out(root) or {}) == ("mlm_loss", -2.5)
    assert sweep.training.read_scores(root, "mlm_loss") == [-3.5, -2.5]


TRAINER = """
import math, pathlib, sys, time
root, rate, polls = pathlib.Path(sys.argv[1]), float(sys.argv[2]), pathlib.Path(sys.argv[3])
folder = root / "runs/squad-finetune/1"
folder.mkdir(parents=True, exist_ok=True)
(folder / "job.json").write_text("{}")
count = lambda: int(polls.read_text() or 0)
with (root / "started").open("a") as stream:
    stream.write("x")
for number in range(1, 6):
    rows = [f"{n},{abs(math.log10(rate) + 3) / n ** 0.1}" for n in range(1, number + 1)]
    (folder / "evaluations.csv").write_text("\\n".join(["step,loss", *rows]) + "\\n")
    before, stop_at = count(), time.monotonic() + 30
    while count() < before + 2 and time.monotonic() < stop_at:  # until the sweep has seen this evaluation
        time.sleep(0.01)
(root / "metrics").mkdir()
loss = rows[-1].split(",")[1]
(root / "metrics/squad-finetune.json").write_text('{"held_out": {"judged_by": "loss", "loss": %s}}' % loss)
"""
SEARCH = """
import sys
from pathlib import Path
from optuna.distributions import FloatDistribution
from flows.commands import sweep_runs
from flows.runs import checkout, stopping

project, trainer = Path(sys.argv[1]), sys.argv[2]
polls = project / "polls"
polls.write_text("0")
stopping.SECONDS_BETWEEN_CHECKS = 0.02
run_child = stopping.stop.run_child

def watched(command, root, env, take, ends_early):
    def poll():
        hopeless = ends_early()
        if not hopeless:
            polls.write_text(str(int(polls.read_text()) + 1))
        return hopeless
    return run_child(command, root, env, take, poll)

def command(self, trial, *last):
    root = checkout.checkout_folder(project, trial.name)
    return [sys.executable, trainer, str(root), str(trial.values["learning_rate"]), str(polls)]

stopping.stop.run_child = watched
sweep_runs.Sweep.command = command
sweep_runs._final_command = lambda *args: [sys.executable, "-c", "pass"]
space = {"learning_rate": FloatDistribution(1e-5, 1e-1, log=True)}
sweep = sweep_runs.Sweep("s", sweep_runs.Training("finetune@squad"), "finetune", (), space, trials=12, seed=42)
with stopping.stop.listen():
    sweep_runs.run_sweep(sweep, project, lambda text: print(text, flush=True))
"""


@pytest.mark.soak
def test_a_search_that_is_killed_continues_with_the_same_trials_and_stops_hopeless_ones(tmp_path):
    (tmp_path / "trainer.py").write_text(TRAINER)
    records = []
    for name in ("whole", "killed"):
        project = tmp_path / name
        project.mkdir()
        words = [sys.executable, "-c", SEARCH, str(project), str(tmp_path / "trainer.py")]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
        if name == "killed":
            first = subprocess.Popen(words, env=environment, cwd=ROOT, stdout=subprocess.PIPE, text=True)
            assert first.stdout is not None
            next(line for line in first.stdout if line.startswith("trial 6 of 12: s-06"))
            first.send_signal(signal.SIGKILL)
            assert first.wait() == -signal.SIGKILL
            kept = json.loads((project / "runs/sweeps/s.json").read_text())["trials"]
            assert [trial["state"] for trial in kept[5:]] == ["running"]
        done = subprocess.run(words, env=environment, cwd=ROOT, text=True, capture_output=True)
        assert done.returncode == 0, done.stdout + done.stderr
        records.append(json.loads((project / "runs/sweeps/s.json").read_text()))
    whole, killed = records
    assert killed == whole
    states = [trial["state"] for trial in whole["trials"]]
    assert set(states) == {COMPLETE, PRUNED}
    assert states[:4] == [COMPLETE] * 4
    assert all(len(trial["scores"]) < 5 for trial in whole["trials"] if trial["state"] == PRUNED)
    again = [len((project / f"runs/checkouts/s-{number:02d}/started").read_text()) for number in range(1, 13)]
    assert [count for index, count in enumerate(again) if index != 5] == [1] * 11
    rates = {f"s-{number:02d}": trial["values"]["learning_rate"] for number, trial in enumerate(whole["trials"], 1)}
    assert whole["best"] == min(rates, key=lambda one: abs(math.log10(rates[one]) + 3))
