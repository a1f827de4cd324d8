"""`podium sweep`: runs, the best of them, ranges, proposals, early stops; a real one that is interrupted."""

import contextlib
import dataclasses
import json
import math
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from flows.cli import cli
from flows.commands import sweep_runs
from flows.commands.sweep import _take_space, parse_range
from flows.commands.sweep_runs import COMPLETE, Sweep, Training, Trial, ask_trial, enter_scores, run_sweep
from flows.runs import checkout
from flows.runs.listing import SWEEPS
from flows.runs.report import RunReport, StageRecord
from flows.runs.run_params import require_same_params
from ipu_model.core.files import write_json, write_text
from tasks.downstream.gate.gate import gate
from tasks.downstream.gate.verdict_text import held_out_score
from tasks.params.schema import load_params, parameter_values
from tasks.stage import artifacts
from tasks.stage.errors import InputError, ParamsError, PodiumError
from tests.flows.workers.worker_hosts import Server, descendants, kill_tree, start_process, wait_until
from tests.places import ROOT, copy_project
from tests.tasks.downstream.entries import change_parameters, values_with, write_parameters
from tests.tasks.tiny_model import write_tiny_model
from tests.tasks.trained_checkout import make_glue_checkout

GRID = {"learning_rate": CategoricalDistribution([1e-5, 3e-5]), "seed": CategoricalDistribution([5, 6])}
SWEEP = Sweep("tries", Training("finetune@squad"), "finetune", ("device.runtime=cpu",), GRID)
RATES = {"0.0001": 3.0, "0.0003": 2.5}
"""Learning rates of a pre-training -> loss of masked tokens."""
NAMES = ["tries-lr1e-05-s5", "tries-lr1e-05-s6", "tries-lr3e-05-s5", "tries-lr3e-05-s6"]


def ended(project, monkeypatch, scores, job="squad-finetune", failed="finetune@squad"):
    """Runs that are not made: those with scores leave their figures, the others fail in the stage `failed`, or before
    the first; their commands, and where the scores of other seeds would have been written."""
    ran, others = [], []

    def run(command, where, say, ends_early=None):
        ran.append(command)
        name = told(command, "--name")
        if name not in scores:
            if failed:
                RunReport(f"{artifacts.CHECKOUTS}/{name}", stages=[StageRecord(failed, "failed", 1.0)]).save(where)
            return 1
        folder = checkout.checkout_folder(where, name)
        write_json(folder / artifacts.metrics_file(job), {"held_out": scores[name]})
        return 0

    monkeypatch.setattr("flows.commands.sweep_runs._run", run)
    monkeypatch.setattr("flows.commands.sweep_runs.write_seed_scores", lambda *told: others.append(told[:3]))
    return ran, others


def test_the_best_recipe_is_that_of_the_best_mean_and_only_it_is_judged(tmp_path, monkeypatch):
    found = (0.5, 0.6, 0.9, 0.1)  # the best single run is of the worse recipe
    scores = {
        name: {"judged_by": "span_accuracy", "span_accuracy": score, "loss": 1.0}
        for name, score in zip(NAMES, found, strict=True)
    }
    ran, others = ended(tmp_path, monkeypatch, scores)
    record = run_sweep(SWEEP, tmp_path, lambda text: None)
    assert ran[0][ran[0].index("run") :] == [
        *("run", "--preset", "finetune", "--set", "device.runtime=cpu"),
        *("--set", "downstream.squad.finetune.learning_rate=1e-05", "--set", "downstream.squad.finetune.seed=5"),
        *("--name", "tries-lr1e-05-s5", "--to", "finetune@squad"),
    ]
    assert record["best"] == "tries-lr1e-05-s6"
    assert [one["mean"] for one in record["recipes"]] == [pytest.approx(0.55), pytest.approx(0.5)]
    assert record["recipes"][0]["deviation"] == pytest.approx(0.0707106781)
    assert [(told(command, "--to"), told(command, "--name")) for command in ran] == [
        *(("finetune@squad", name) for name in NAMES),
        ("evaluate@squad", "tries-lr1e-05-s5"),
        ("evaluate@squad", "tries-lr1e-05-s6"),
        (None, "tries-lr1e-05-s6"),
    ]
    folder = SWEEPS / "tries" / "tries-lr1e-05-s6"
    assert others == [(tmp_path / folder, {5: checkout.checkout_folder(tmp_path, "tries-lr1e-05-s5")}, "squad")]
    assert ran[-1][-1] == f"downstream.squad.gate.seeds={folder}"
    assert json.loads((tmp_path / SWEEPS / "tries.json").read_text()) == record


def told(command, word):
    return command[command.index(word) + 1] if word in command else None


def test_a_sweep_of_pre_training_trains_each_recipe_up_to_its_phase_and_finishes_the_best(tmp_path, monkeypatch):
    for name in ("params.yaml", "dvc.yaml", "presets"):
        (tmp_path / name).symlink_to(ROOT / name)
    (tmp_path / "my-text").write_text("Ants dig.")
    scores = {f"lm-lr{rate}": {"judged_by": "loss", "loss": 9.0, "mlm_loss": loss} for rate, loss in RATES.items()}
    ran, _ = ended(tmp_path, monkeypatch, scores, "pretrain-phase1")
    words = ["sweep", "pretrain", "--text", "my-text", "--phase", "phase1", "--learning-rate", ",".join(RATES)]
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(cli, [*words, "--name", "lm", "--steps", "20", "--json"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert [(told(command, "--to"), told(command, "--name")) for command in ran] == [
        ("pretrain@phase1", "lm-lr0.0001"),
        ("pretrain@phase1", "lm-lr0.0003"),
        (None, "lm-lr0.0003"),
    ]
    assert {"pretrain.phase1.learning_rate=0.0003", "pretrain.phase2.steps=2"} <= {*ran[-1]}


def test_stages_go_to_workers_but_for_a_gate_that_reads_what_lies_here(tmp_path, monkeypatch):
    one = {"learning_rate": CategoricalDistribution([1e-5])}
    for grid, here in ((one, False), ({**one, "seed": GRID["seed"]}, True)):
        sent = dataclasses.replace(SWEEP, space=grid, worker_options=("--on-workers",))
        figures = {"judged_by": "span_accuracy", "span_accuracy": 0.5}
        ran, _ = ended(tmp_path, monkeypatch, dict.fromkeys(["tries-lr1e-05", *NAMES], figures))
        run_sweep(sent, tmp_path, lambda text: None)
        assert all("--on-workers" in command for command in ran[:-1])
        assert ("--on-workers" not in ran[-1]) is here


def test_a_recipe_of_which_one_seed_came_to_its_end_is_judged_by_that_one_and_the_others_are_counted(
    tmp_path, monkeypatch
):
    """A smaller loss is better."""
    scores = {name: {"judged_by": "loss", "loss": loss} for name, loss in ((NAMES[1], 2.0), (NAMES[3], 1.0))}
    ran, others = ended(tmp_path, monkeypatch, scores)
    said = []
    record = run_sweep(SWEEP, tmp_path, said.append)
    assert record["best"] == NAMES[3]
    assert [one["held_out"] is None for one in record["runs"]] == [True, False] * 2
    assert others == []
    assert "gate.seeds" not in " ".join(ran[-1])
    assert any("1 of 2 seeds" in text for text in said)


@pytest.mark.parametrize(
    ("failed", "error", "count"),
    [("finetune@squad", PodiumError, 4), ("examples@squad", SystemExit, 1), ("", SystemExit, 1)],
)
def test_a_sweep_of_which_no_run_ends_has_failed_and_a_failure_that_all_trials_share_ends_it(
    tmp_path, monkeypatch, failed, error, count
):
    ran, _ = ended(tmp_path, monkeypatch, {}, failed=failed)
    with pytest.raises(error):
        run_sweep(SWEEP, tmp_path, lambda text: None)
    assert len(ran) == count


def test_what_other_seeds_scored_is_read_by_the_gate_as_that_of_the_same_recipe(tmp_path):
    entry, judged = "glue-sst2", make_glue_checkout(tmp_path / "checkout")
    metrics, folder = judged / artifacts.metrics_file(entry, "finetune"), judged / "seeds"
    figures = {"judged_by": "accuracy", "accuracy": 0.7, "loss": 0.5}
    write_json(metrics, {**json.loads(metrics.read_text()), "held_out": figures})
    sweep_runs.write_seed_scores(folder, {43: judged}, entry, lambda text: None)
    change_parameters(judged, {"downstream": {entry: {"gate": {"seeds": "seeds"}}}})
    values = parameter_values(load_params(judged / artifacts.PARAMS))
    with pytest.raises(InputError, match="seeds 42 and 43"):  # the same model, and the file says so
        gate(values, entry, judged)
    path = folder / "seed-43.json"
    write_json(path, {**json.loads(path.read_text()), "weights_sha256": "0" * 64})
    assert gate(values, entry, judged)["accepted"]
    verdict = json.loads((judged / artifacts.metrics_file(entry, "gate")).read_text())
    assert verdict["chosen_by"] == "accuracy"
    assert [one["score"] for one in verdict["seeds"]] == [90.0, 90.0]
    before = path.read_bytes()
    (judged / artifacts.predictions_file(entry)).unlink()
    with pytest.raises(PodiumError, match="predictions.json not found: run checkout"):
        sweep_runs.write_seed_scores(folder, {43: judged}, entry, lambda text: None)
    assert path.read_bytes() == before


def test_a_gate_may_be_told_of_other_seeds_later_and_nothing_else_may_change(tmp_path):
    values = values_with()
    own = checkout.checkout_folder(tmp_path, "first")
    write_parameters(own, checkout.rebase_paths(values, tmp_path, own))
    values["downstream"]["squad"]["gate"]["seeds"] = "runs/sweeps/t/first"
    require_same_params(tmp_path, values, "first")
    values["downstream"]["squad"]["gate"]["min_f1"] = 1.0
    with pytest.raises(ParamsError, match="run first exists with other parameters") as refused:
        require_same_params(tmp_path, values, "first")
    assert "gate.seeds" not in str(refused.value)


WORDS = [f"word{number}" for number in range(40)]


def questions(path, titles):
    articles = []
    for title in titles:
        context, answer = " ".join(WORDS[(title + at) % 40] for at in range(20)), WORDS[(title + 3) % 40]
        answers = [{"text": answer, "answer_start": context.index(answer)}]
        ids = ((f"{path.stem}-{title}-{number}", f"what is {WORDS[number]}") for number in range(4))
        asked = [{"id": name, "question": question, "answers": answers} for name, question in ids]
        articles.append({"title": f"t{title}", "paragraphs": [{"context": context, "qas": asked}]})
    path.write_text(json.dumps({"version": "1.1", "data": articles}))
    return path


def real_sweep(tmp_path, *words):
    """A project, a command that searches there for the best recipe for 48 questions, and its environment."""
    project = copy_project(tmp_path / "project")
    for name in ("prefect.yaml", "podium.py"):
        shutil.copy2(ROOT / name, project / name)
    shutil.rmtree(project / ".dvc")
    subprocess.run([sys.executable, "-m", "dvc", "init", "--no-scm", "--quiet"], cwd=project, check=True)
    environment = {**os.environ, "PYTHONPATH": str(project), "HOME": str(tmp_path), "OMP_NUM_THREADS": "1"}
    write_tiny_model(tmp_path / "bert", [*"abcdefghijklmnopqrstuvwxyz0123456789", "what", "is", *WORDS])
    train, dev = questions(tmp_path / "train.json", range(12)), questions(tmp_path / "dev.json", range(12, 16))
    settings = ("downstream.squad.rows.held_out_fraction=0.25", "downstream.squad.gate.above_baseline=false")
    rest = ["--epochs", "1", "--runtime", "cpu", "--precision", "fp32", "--name", "t", "--json", *words]
    given = ["--model", str(tmp_path / "bert"), "--train", str(train), "--dev", str(dev)]
    command = [sys.executable, "-m", "flows", "sweep", "finetune", "squad", *given, *rest]
    return project, [*command, *(word for one in settings for word in ("--set", one))], environment


@pytest.mark.soak
def test_a_sweep_that_is_interrupted_goes_on_and_its_best_run_is_published(tmp_path):
    """Of a recipe over seeds, which the gate judges as one; the same command then changes nothing."""
    floor = ("--set", "downstream.squad.gate.min_f1=0.0")
    project, command, environment = real_sweep(tmp_path, "--learning-rate", "1e-3", "--seeds", "3", *floor)

    def flows(*words):
        done = subprocess.run(words, cwd=project, env=environment, text=True, capture_output=True)
        assert done.returncode == 0, done.stderr
        return done

    heard = lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)  # noqa: E731, a script with & has it ignored
    first = subprocess.Popen(command, cwd=project, env=environment, stderr=subprocess.PIPE, text=True, preexec_fn=heard)
    next(line for line in first.stderr if "trial 2 of 3: t-" in line)
    first.send_signal(signal.SIGINT)
    said = first.stderr.read()
    assert first.wait() in (4, 130), said
    again = flows(*command)
    assert "trial 1 of 3: t-" not in again.stderr
    assert "trial 2 of 3: t-" in again.stderr
    record = json.loads(again.stdout)
    assert (project / "published/t/model.safetensors").is_file()
    own = checkout.checkout_folder(project, record["best"])
    report = json.loads((own / "reports/run.json").read_text())
    assert report["command"].startswith("podium sweep finetune squad --model")
    seeds = json.loads((own / "metrics/squad-gate.json").read_text())["seeds"]
    assert [one["seed"] for one in seeds] == [42, 43, 44]
    [judged] = [one for one in seeds if one["this_model"]]
    assert record["best"].endswith(f"-s{judged['seed']}")
    held_out = [one["held_out"]["span_accuracy"] for one in seeds]
    assert judged["held_out"]["span_accuracy"] == max(held_out)
    assert record["verdict"][0].startswith("recipe over 3 seeds: ")
    assert "recipe over 3 seeds" in (project / "published/t/README.md").read_text()
    for one in seeds:
        metrics = checkout.checkout_folder(project, f"t-lr0.001-e1-s{one['seed']}") / "metrics/squad.json"
        assert json.loads(metrics.read_text())["f1"] == one["f1"]
    released = (project / "published/t/provenance.json").read_bytes()
    assert json.loads(flows(*command).stdout) == record
    assert (project / "published/t/provenance.json").read_bytes() == released
    assert record["verdict"][0] in flows(sys.executable, "-m", "flows", "runs", "show", record["best"]).stdout


@pytest.mark.soak
def test_a_hopeless_trial_is_stopped_early_on_the_worker_that_trains_it(tmp_path):
    """Four finished trials are entered by hand; the fifth, at a learning rate that teaches nothing, trains for long."""
    often = ("--set", "downstream.squad.finetune.evaluate_every_updates=20", "--epochs", "1000")
    words = ("--trials", "5", "--learning-rate", "1e-9..1e-8", "--on-workers", "--verbose", *often)
    project, command, environment = real_sweep(tmp_path, *words)
    settings = f"[core]\n    no_scm = true\n    remote = store\n['remote \"store\"']\n    url = {tmp_path / 'remote'}\n"
    (project / ".dvc/config").write_text(settings)
    host = tmp_path / "host"
    shutil.copytree(project, host)
    with contextlib.ExitStack() as stack:
        server = Server(tmp_path / "server")
        stack.callback(server.stop)
        environment |= {name: one for name, one in server.environment().items() if name.startswith("PREFECT_")}
        subprocess.run([sys.executable, "-m", "flows", "deploy"], cwd=project, env=environment, check=True)
        own = {"PYTHONPATH": str(host), "HOME": str(host), "PODIUM_INPUT_ROOTS": str(tmp_path)}
        worker_words = [sys.executable, "-m", "flows", "worker", "--pool", "cpu", "--queue", "default"]
        with (tmp_path / "worker.log").open("w") as log:
            worker = start_process(worker_words, {**environment, **own}, log, host)
            stack.callback(kill_tree, worker)
        first = subprocess.Popen(command, cwd=project, env=environment, stderr=subprocess.PIPE, text=True)
        next(line for line in first.stderr if line.startswith("trial 1 of 5: t-01"))
        kill_tree(first)
        record = json.loads((project / SWEEPS / "t.json").read_text())
        held_out = {"judged_by": "span_accuracy", "span_accuracy": 1.0}
        done = {"state": "complete", "scores": [1.0] * 50, "score": 1.0, "held_out": held_out}
        record["trials"] = [{**record["trials"][0], **done, "name": f"t-0{number}"} for number in range(1, 5)]
        write_json(project / SWEEPS / "t.json", record)
        sweep = subprocess.Popen(command, cwd=project, env=environment, stderr=subprocess.PIPE, text=True)
        said = []
        for line in sweep.stderr:
            said.append(line)
            if line.startswith("trial 5 of 5: ") and "t-05" not in line:
                break
        kill_tree(sweep)
        trial = json.loads((project / SWEEPS / "t.json").read_text())["trials"][4]
        assert trial["state"] == "pruned", "".join(said)
        assert 2 <= len(trial["scores"]) < 10
        [training] = (host / "runs/checkouts").glob("t-05-*/runs/squad-finetune/*/evaluations.csv")
        wait_until(lambda: not training_processes(worker), "the end of the training on the worker")
        assert not list((host / "runs/checkouts").glob("t-05-*/metrics/squad-finetune.json"))


def training_processes(worker):
    return [pid for pid in descendants(worker.pid) if b"ipu_model" in Path(f"/proc/{pid}/cmdline").read_bytes()]


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
        ("../data", {str}, None),
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
    ("words", "message"),
    [
        (["--trials", "0", "--learning-rate", "1e-5..1e-4"], "0 is not in the range x>=1"),
        (["--trials", "3", "--learning-rate", "1e-4..1e-5"], "its lower end comes first"),
        (["--trials", "3", "--set", "downstream.ner.finetune.warm=0..1"], "downstream.ner.finetune.warm is not known"),
        (["--trials", "3", "--set", "downstream.ner.finetune.warmup_fraction=0..2"], "less than or equal to 1"),
        (["--trials", "3", "--set", "pretrain.weight_decay=0.1..0.01"], "pretrain.weight_decay: 0.1..0.01"),
        (["--trials", "3", "--set", "corpus.path=1..3"], "corpus.path: 1..3"),
        (["--trials", "3", "--set", "pretrain.bias_correction=0..1"], "pretrain.bias_correction"),
        (["--set", "pretrain.weight_decay=0..0.1"], "--trials N"),
        (["--set", "pretrain.seed=1,2.5"], "pretrain.seed: '1,2.5' is not a list"),
        (["--trials", "3"], "--trials needs values"),
        (["--trials", "3", "--batch-size", "0..8"], "greater than or equal to 1"),
        (["--trials", "3", "--epochs", "2..4", "--seeds", "2"], "--seeds repeats every recipe"),
        (["--trials", "3", "--epochs", "2..4", "--set", "rows.held_out_fraction=0.0"], "held_out_fraction above 0"),
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
    root = checkout.checkout_folder(tmp_path, "p-01")
    write_json(root / "metrics/pretrain-phase2.json", {"held_out": {"judged_by": "loss", "loss": 3.0, "mlm_loss": 2.5}})
    write_text(root / "plots/pretrain-phase2-held-out.csv", "step,loss,mlm_loss\n1,4.0,3.5\n2,3.0,2.5\n")
    assert held_out_score(sweep.training.read_held_out(root) or {}) == ("mlm_loss", -2.5)
    assert sweep.training.read_scores(root, "mlm_loss") == [-3.5, -2.5]
