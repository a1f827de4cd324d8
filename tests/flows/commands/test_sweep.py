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
from flows.commands.sweep_runs import COMPLETE, Sweep, Training, Trial, ask_trial, enter_scores, run_sweep
from flows.runs import checkout
from flows.runs.listing import SWEEPS
from flows.runs.report import RunReport, StageRecord
from flows.runs.run_params import require_same_params
from ipu_model.core.files import read_json, write_json, write_text
from tasks.downstream.gate.gate import gate
from tasks.downstream.gate.verdict_text import held_out_score
from tasks.params.schema import load_params, parameter_values
from tasks.stage import artifacts
from tasks.stage.errors import InputError, ParamsError, PodiumError
from tests.flows.workers.worker_hosts import Server, descendants, kill_tree, start_process, wait_until
from tests.places import ROOT, TRACKED, copy_project
from tests.tasks.downstream.entries import change_parameters, values_with, write_parameters
from tests.tasks.tiny_model import write_tiny_model
from tests.tasks.trained_checkout import make_glue_checkout

GRID = {"learning_rate": CategoricalDistribution([1e-5, 3e-5]), "seed": CategoricalDistribution([5, 6])}
SWEEP = Sweep("tries", Training("finetune@squad"), "finetune", ("device.runtime=cpu",), GRID)
NAMES = ["tries-lr1e-05-s5", "tries-lr1e-05-s6", "tries-lr3e-05-s5", "tries-lr3e-05-s6"]


def option(command, word):
    return command[command.index(word) + 1] if word in command else None


def fake_runs(project, monkeypatch, scores, job="squad-finetune", failed="finetune@squad"):
    """The commands of runs that are not made, which leave these scores or fail; what other seeds would have scored."""
    commands, others = [], []

    def run(command, where, say, ends_early=None):
        commands.append(command)
        name = option(command, "--name")
        if name not in scores:
            if failed:
                RunReport(f"{artifacts.CHECKOUTS}/{name}", stages=[StageRecord(failed, "failed", 1.0)]).save(where)
            return 1
        folder = checkout.checkout_folder(where, name)
        write_json(folder / artifacts.metrics_file(job), {"held_out": scores[name]})
        return 0

    monkeypatch.setattr("flows.commands.sweep_runs._run", run)
    monkeypatch.setattr("flows.commands.sweep_runs.write_seed_scores", lambda *given: others.append(given[:3]))
    return commands, others


def ends_of(commands):
    return [(option(command, "--to"), option(command, "--name")) for command in commands]


def test_the_best_recipe_is_that_of_the_best_mean_and_only_it_is_judged(tmp_path, monkeypatch):
    """The best single run is of the worse recipe."""
    figures = {"judged_by": "span_accuracy", "loss": 1.0}
    accuracies = zip(NAMES, (0.5, 0.6, 0.9, 0.1), strict=True)
    scores = {name: {**figures, "span_accuracy": accuracy} for name, accuracy in accuracies}
    commands, others = fake_runs(tmp_path, monkeypatch, scores)
    record = run_sweep(SWEEP, tmp_path, print)
    finetune = "downstream.squad.finetune"
    settings = ("device.runtime=cpu", f"{finetune}.learning_rate=1e-05", f"{finetune}.seed=5")
    words = [word for setting in settings for word in ("--set", setting)]
    last = ["--name", NAMES[0], "--to", "finetune@squad"]
    assert commands[0][commands[0].index("run") :] == ["run", "--preset", "finetune", *words, *last]
    assert ends_of(commands) == [
        *(("finetune@squad", name) for name in NAMES),
        *(("evaluate@squad", name) for name in NAMES[:2]),
        (None, NAMES[1]),
    ]
    assert record["best"] == NAMES[1]
    assert [recipe["mean"] for recipe in record["recipes"]] == [pytest.approx(0.55), pytest.approx(0.5)]
    assert record["recipes"][0]["deviation"] == pytest.approx(0.0707106781)
    folder = SWEEPS / "tries" / NAMES[1]
    assert others == [(tmp_path / folder, {5: checkout.checkout_folder(tmp_path, NAMES[0])}, "squad")]
    assert commands[-1][-1] == f"downstream.squad.gate.seeds={folder}"
    assert read_json(tmp_path / SWEEPS / "tries.json") == record


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A project, with a text and a model for the command line."""
    for name in ("params.yaml", "dvc.yaml", "presets"):
        (tmp_path / name).symlink_to(ROOT / name)
    (tmp_path / "my-text").write_text("Ants dig.")
    (tmp_path / "train.txt").write_text("a O\n")
    write_tiny_model(tmp_path / "bert", ["a"])
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_sweep_of_pre_training_trains_each_recipe_up_to_its_phase_and_finishes_the_best(here, monkeypatch):
    losses = {"lm-lr0.0001": 3.0, "lm-lr0.0003": 2.5}
    scores = {name: {"judged_by": "loss", "loss": 9.0, "mlm_loss": loss} for name, loss in losses.items()}
    commands, _ = fake_runs(here, monkeypatch, scores, "pretrain-phase1")
    words = ["sweep", "pretrain", "--text", "my-text", "--phase", "phase1", "--learning-rate", "0.0001,0.0003"]
    done = CliRunner().invoke(cli, [*words, "--name", "lm", "--steps", "20", "--json"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert ends_of(commands) == [*(("pretrain@phase1", name) for name in losses), (None, "lm-lr0.0003")]
    assert {"pretrain.phase1.learning_rate=0.0003", "pretrain.phase2.steps=2"} <= {*commands[-1]}


def test_pre_training_is_judged_by_the_loss_of_masked_tokens_and_sets_both_phases(tmp_path):
    sweep = Sweep("p", Training("pretrain@phase2"), "bert", (), {})
    command = sweep.command(Trial("p-01", {"learning_rate": 1e-4, "pretrain.weight_decay": 0.1}))
    rates = [f"pretrain.{phase}.learning_rate=0.0001" for phase in ("phase1", "phase2")]
    assert [word for word in command if "=" in word] == [*rates, "pretrain.weight_decay=0.1"]
    root = checkout.checkout_folder(tmp_path, "p-01")
    write_json(root / "metrics/pretrain-phase2.json", {"held_out": {"judged_by": "loss", "loss": 3.0, "mlm_loss": 2.5}})
    write_text(root / "plots/pretrain-phase2-held-out.csv", "step,loss,mlm_loss\n1,4.0,3.5\n2,3.0,2.5\n")
    assert held_out_score(sweep.training.read_held_out(root) or {}) == ("mlm_loss", -2.5)
    assert sweep.training.read_scores(root, "mlm_loss") == [-3.5, -2.5]


@pytest.mark.parametrize("seeds", [False, True])
def test_stages_go_to_workers_but_for_a_gate_that_reads_what_lies_here(tmp_path, monkeypatch, seeds):
    grid = {"learning_rate": CategoricalDistribution([1e-5])} | ({"seed": GRID["seed"]} if seeds else {})
    scores = dict.fromkeys(["tries-lr1e-05", *NAMES], {"judged_by": "span_accuracy", "span_accuracy": 0.5})
    commands, _ = fake_runs(tmp_path, monkeypatch, scores)
    run_sweep(dataclasses.replace(SWEEP, space=grid, worker_options=("--on-workers",)), tmp_path, print)
    assert all("--on-workers" in command for command in commands[:-1])
    assert ("--on-workers" not in commands[-1]) is seeds


def test_a_recipe_of_which_one_seed_came_to_its_end_is_judged_by_that_one_and_the_others_are_counted(
    tmp_path, monkeypatch
):
    """A smaller loss is better."""
    scores = {name: {"judged_by": "loss", "loss": loss} for name, loss in ((NAMES[1], 2.0), (NAMES[3], 1.0))}
    commands, others = fake_runs(tmp_path, monkeypatch, scores)
    lines = []
    record = run_sweep(SWEEP, tmp_path, lines.append)
    assert (record["best"], others) == (NAMES[3], [])
    assert [run["held_out"] is None for run in record["runs"]] == [True, False] * 2
    assert "gate.seeds" not in " ".join(commands[-1])
    assert any("1 of 2 seeds" in line for line in lines)


@pytest.mark.parametrize(
    ("failed", "error", "count"),
    [("finetune@squad", PodiumError, 4), ("examples@squad", SystemExit, 1), ("", SystemExit, 1)],
)
def test_a_sweep_of_which_no_run_ends_has_failed_and_a_failure_that_all_trials_share_ends_it(
    tmp_path, monkeypatch, failed, error, count
):
    commands, _ = fake_runs(tmp_path, monkeypatch, {}, failed=failed)
    with pytest.raises(error):
        run_sweep(SWEEP, tmp_path, print)
    assert len(commands) == count


def test_what_other_seeds_scored_is_read_by_the_gate_as_that_of_the_same_recipe(tmp_path):
    entry, judged = "glue-sst2", make_glue_checkout(tmp_path / "checkout")
    metrics, folder = judged / artifacts.metrics_file(entry, "finetune"), judged / "seeds"
    write_json(metrics, {**read_json(metrics), "held_out": {"judged_by": "accuracy", "accuracy": 0.7, "loss": 0.5}})
    sweep_runs.write_seed_scores(folder, {43: judged}, entry, print)
    change_parameters(judged, {"downstream": {entry: {"gate": {"seeds": "seeds"}}}})
    values = parameter_values(load_params(judged / artifacts.PARAMS))
    with pytest.raises(InputError, match="seeds 42 and 43"):  # the same model, and the file says so
        gate(values, entry, judged)
    path = folder / "seed-43.json"
    write_json(path, {**read_json(path), "weights_sha256": "0" * 64})
    assert gate(values, entry, judged)["accepted"]
    verdict = read_json(judged / artifacts.metrics_file(entry, "gate"))
    assert verdict["chosen_by"] == "accuracy"
    assert [seed["score"] for seed in verdict["seeds"]] == [90.0, 90.0]
    before = path.read_bytes()
    (judged / artifacts.predictions_file(entry)).unlink()
    with pytest.raises(PodiumError, match="predictions.json not found"):
        sweep_runs.write_seed_scores(folder, {43: judged}, entry, print)
    assert path.read_bytes() == before


def test_a_gate_may_be_told_of_other_seeds_later_and_nothing_else_may_change(tmp_path):
    values = values_with()
    folder = checkout.checkout_folder(tmp_path, "first")
    write_parameters(folder, checkout.rebase_paths(values, tmp_path, folder))
    values["downstream"]["squad"]["gate"]["seeds"] = "runs/sweeps/t/first"
    require_same_params(tmp_path, values, "first")
    values["downstream"]["squad"]["gate"]["min_f1"] = 1.0
    with pytest.raises(ParamsError, match="run first exists with other parameters") as refused:
        require_same_params(tmp_path, values, "first")
    assert "gate.seeds" not in str(refused.value)


WORDS = [f"word{number}" for number in range(40)]


def write_questions(path, titles):
    articles = []
    for title in titles:
        context, answer = " ".join(WORDS[(title + at) % 40] for at in range(20)), WORDS[(title + 3) % 40]
        answers = [{"text": answer, "answer_start": context.index(answer)}]
        names = {f"{path.stem}-{title}-{number}": f"what is {WORDS[number]}" for number in range(4)}
        asked = [{"id": name, "question": question, "answers": answers} for name, question in names.items()]
        articles.append({"title": f"t{title}", "paragraphs": [{"context": context, "qas": asked}]})
    path.write_text(json.dumps({"version": "1.1", "data": articles}))
    return str(path)


def real_sweep(tmp_path, *words):
    """A project, a command that searches there for the best recipe for 48 questions, and its environment."""
    project = copy_project(tmp_path / "project", (*TRACKED, "prefect.yaml", "podium.py"))
    shutil.rmtree(project / ".dvc")
    subprocess.run([sys.executable, "-m", "dvc", "init", "--no-scm", "--quiet"], cwd=project, check=True)
    environment = {**os.environ, "PYTHONPATH": str(project), "HOME": str(tmp_path), "OMP_NUM_THREADS": "1"}
    write_tiny_model(tmp_path / "bert", [*"abcdefghijklmnopqrstuvwxyz0123456789", "what", "is", *WORDS])
    train = write_questions(tmp_path / "train.json", range(12))
    dev = write_questions(tmp_path / "dev.json", range(12, 16))
    settings = ("downstream.squad.rows.held_out_fraction=0.25", "downstream.squad.gate.above_baseline=false")
    rest = ["--epochs", "1", "--runtime", "cpu", "--precision", "fp32", "--name", "t", "--json", *words]
    given = ["--model", str(tmp_path / "bert"), "--train", train, "--dev", dev]
    command = [sys.executable, "-m", "flows", "sweep", "finetune", "squad", *given, *rest]
    return project, [*command, *(word for setting in settings for word in ("--set", setting))], environment


@pytest.mark.soak
def test_a_sweep_that_is_interrupted_goes_on_and_its_best_run_is_published(tmp_path):
    """Of a recipe over seeds, which the gate judges as one; the same command then changes nothing."""
    floor = ("--set", "downstream.squad.gate.min_f1=0.0")
    project, command, environment = real_sweep(tmp_path, "--learning-rate", "1e-3", "--seeds", "3", *floor)

    def flows(*words):
        done = subprocess.run(words, cwd=project, env=environment, text=True, capture_output=True)
        assert done.returncode == 0, done.stderr
        return done

    def hear():  # a script with & has SIGINT ignored
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    first = subprocess.Popen(command, cwd=project, env=environment, stderr=subprocess.PIPE, text=True, preexec_fn=hear)
    next(line for line in first.stderr if "trial 2 of 3: t-" in line)
    first.send_signal(signal.SIGINT)
    rest = first.stderr.read()
    assert first.wait() in (4, 130), rest
    again = flows(*command)
    assert [f"trial {number} of 3: t-" in again.stderr for number in (1, 2)] == [False, True]
    record, release = json.loads(again.stdout), project / "published/t"
    assert (release / "model.safetensors").is_file()
    best = checkout.checkout_folder(project, record["best"])
    assert read_json(best / "reports/run.json")["command"].startswith("podium sweep finetune squad --model")
    seeds = read_json(best / "metrics/squad-gate.json")["seeds"]
    assert [seed["seed"] for seed in seeds] == [42, 43, 44]
    [judged] = [seed for seed in seeds if seed["this_model"]]
    assert record["best"].endswith(f"-s{judged['seed']}")
    held_out = [seed["held_out"]["span_accuracy"] for seed in seeds]
    assert judged["held_out"]["span_accuracy"] == max(held_out)
    assert record["verdict"][0].startswith("recipe over 3 seeds: ")
    assert "recipe over 3 seeds" in (release / "README.md").read_text()
    for seed in seeds:
        folder = checkout.checkout_folder(project, f"t-lr0.001-e1-s{seed['seed']}")
        assert read_json(folder / "metrics/squad.json")["f1"] == seed["f1"]
    released = (release / "provenance.json").read_bytes()
    assert json.loads(flows(*command).stdout) == record
    assert (release / "provenance.json").read_bytes() == released
    assert record["verdict"][0] in flows(sys.executable, "-m", "flows", "runs", "show", record["best"]).stdout


@pytest.mark.soak
def test_a_hopeless_trial_is_stopped_early_on_the_worker_that_trains_it(tmp_path):
    """Four finished trials are entered by hand; the fifth, at a learning rate that teaches nothing, trains for long."""
    often = ("--set", "downstream.squad.finetune.evaluate_every_updates=20", "--epochs", "1000")
    words = ("--trials", "5", "--learning-rate", "1e-9..1e-8", "--on-workers", "--verbose", *often)
    project, command, environment = real_sweep(tmp_path, *words)
    settings = f"[core]\n    no_scm = true\n    remote = store\n['remote \"store\"']\n    url = {tmp_path / 'remote'}\n"
    (project / ".dvc/config").write_text(settings)
    host, file = shutil.copytree(project, tmp_path / "host"), project / SWEEPS / "t.json"

    def training_processes():
        return [pid for pid in descendants(worker.pid) if b"ipu_model" in Path(f"/proc/{pid}/cmdline").read_bytes()]

    def search(end):
        """Start the search, and kill it after the first line for which `end` is true."""
        sweep = subprocess.Popen(command, cwd=project, env=environment, stderr=subprocess.PIPE, text=True)
        next(line for line in sweep.stderr if end(line))
        kill_tree(sweep)
        return read_json(file)

    with contextlib.ExitStack() as stack:
        server = Server(tmp_path / "server")
        stack.callback(server.stop)
        environment |= {name: value for name, value in server.environment().items() if name.startswith("PREFECT_")}
        subprocess.run([sys.executable, "-m", "flows", "deploy"], cwd=project, env=environment, check=True)
        of_host = {"PYTHONPATH": str(host), "HOME": str(host), "PODIUM_INPUT_ROOTS": str(tmp_path)}
        worker_words = [sys.executable, "-m", "flows", "worker", "--pool", "cpu", "--queue", "default"]
        with (tmp_path / "worker.log").open("w") as log:
            worker = start_process(worker_words, {**environment, **of_host}, log, host)
            stack.callback(kill_tree, worker)
        record = search(lambda line: line.startswith("trial 1 of 5: t-01"))
        held_out = {"judged_by": "span_accuracy", "span_accuracy": 1.0}
        done = {"state": "complete", "scores": [1.0] * 50, "score": 1.0, "held_out": held_out}
        record["trials"] = [{**record["trials"][0], **done, "name": f"t-0{number}"} for number in range(1, 5)]
        write_json(file, record)
        trial = search(lambda line: line.startswith("trial 5 of 5: ") and "t-05" not in line)["trials"][4]
        assert trial["state"] == "pruned"
        assert 2 <= len(trial["scores"]) < 10
        [training] = (host / "runs/checkouts").glob("t-05-*/runs/squad-finetune/*/evaluations.csv")
        wait_until(lambda: not training_processes(), "the end of the training on the worker")
        assert not list((host / "runs/checkouts").glob("t-05-*/metrics/squad-finetune.json"))


SPACE = {
    "learning_rate": FloatDistribution(1e-5, 1e-1, log=True),
    "epochs": IntDistribution(2, 4),
    "global_batch_size": CategoricalDistribution([16, 32]),
}


def ask(trials, seed=42, values=None):
    return ask_trial(Sweep("s", SWEEP.training, "finetune", (), SPACE, trials=12, seed=seed), trials, values)


def search(trials, total, seed=42):
    """The trials, and more up to this total, of which the best is at a learning rate of 1e-3."""
    for _ in range(total - len(trials)):
        values = ask(trials, seed).params
        score = -abs(math.log10(values["learning_rate"]) + 3) - 0.01 * values["epochs"]
        trials = [*trials, Trial("", values, COMPLETE, score=score)]
    return trials


def test_proposals_depend_on_the_seed_and_earlier_trials_only_and_stay_in_their_ranges():
    whole = search([], 12)
    assert search(whole[:5], 12) == whole
    assert search([], 1, seed=43)[0].values != whole[0].values
    for trial in whole:
        assert 1e-5 <= trial.values["learning_rate"] <= 1e-1
        assert (trial.values["epochs"] in (2, 3, 4), trial.values["global_batch_size"] in (16, 32)) == (True, True)
    interrupted = {"learning_rate": 2e-5, "epochs": 3, "global_batch_size": 32}
    assert ask(whole[:5], values=interrupted).params == interrupted


def test_a_trial_is_hopeless_below_the_median_of_finished_ones_from_the_second_evaluation_on():
    finished = search([], 4)
    for trial in finished:
        trial.scores = [0.5, 0.6, 0.7]
    assert not enter_scores(Trial("", {}), ask(finished[:3]), [0.0, 0.0, 0.0])
    live, trial = ask(finished), Trial("", {})
    assert not enter_scores(trial, live, [0.0])
    assert not enter_scores(trial, live, [0.0, 0.6])
    assert enter_scores(trial, live, [0.0, 0.6, 0.65, 0.9])
    assert enter_scores(trial, live, [0.0, 0.6, 0.65, 0.9, 0.95]), "it stays pruned"
    assert trial.scores == [0.0, 0.6, 0.65]


def test_a_range_is_of_integers_where_they_are_meant_and_ranges_and_lists_are_no_settings(here, monkeypatch):
    sweeps = []
    monkeypatch.setattr("flows.commands.sweep.run_sweep", lambda sweep, *_: [sweeps.append(sweep), sys.exit(9)])
    finetune, phase = "downstream.ner.finetune", "downstream.ner.finetune.warmup_fraction"
    model = ["finetune", "ner", "--model", "bert", "--train", "train.txt", "--batch-size", "8,16", "--epochs", "2..4"]
    ranges = (f"{finetune}.learning_rate=1e-5..1e-4", f"{phase}=0..1", f"{finetune}.seed=0..4", "device.runtime=cpu")
    words = [word for setting in ranges for word in ("--set", setting)]
    done = CliRunner().invoke(cli, ["sweep", *model, "--trials", "3", *words], catch_exceptions=False)
    assert done.exit_code == 9, done.output
    assert sweeps[0].space == {
        "global_batch_size": CategoricalDistribution([8, 16]),
        "epochs": IntDistribution(2, 4),
        f"{finetune}.learning_rate": FloatDistribution(1e-5, 1e-4, log=True),
        phase: FloatDistribution(0.0, 1.0),
        f"{finetune}.seed": IntDistribution(0, 4),
    }
    assert "device.runtime=cpu" in sweeps[0].overrides
    assert not {setting.partition("=")[0] for setting in sweeps[0].overrides} & {*sweeps[0].space}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--trials", "3", "--learning-rate", "1e-4..1e-5"], "its lower end comes first"),
        (["--trials", "3", "--set", "downstream.ner.finetune.warm=0..1"], "downstream.ner.finetune.warm is not known"),
        (["--trials", "3", "--set", "downstream.ner.finetune.warmup_fraction=0..2"], "less than or equal to 1"),
        (["--trials", "3", "--set", "pretrain.bias_correction=0..1"], "pretrain.bias_correction"),
        (["--set", "pretrain.weight_decay=0..0.1"], "--trials N"),
        (["--set", "pretrain.seed=1,2.5"], "pretrain.seed: '1,2.5' is not a list"),
        (["--trials", "3"], "--trials needs values"),
        (["--trials", "3", "--epochs", "2..4", "--seeds", "2"], "--seeds repeats every recipe"),
        (["--trials", "3", "--epochs", "2..4", "--set", "rows.held_out_fraction=0.0"], "held_out_fraction above 0"),
    ],
)
def test_a_search_is_refused_before_its_first_run(here, words, message):
    model = ["--model", "bert", "--train", "train.txt", "--set", "downstream.ner.rows.held_out_fraction=0.1"]
    done = CliRunner().invoke(cli, ["sweep", "finetune", "ner", *model, *words])
    assert message in f"{done.output} {done.exception}"
    assert done.exit_code != 0
