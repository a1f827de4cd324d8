"""Trials of a sweep: train recipes as ordinary runs, score them on held-out rows, and finish the best one.

Every trial is a run that trains and is scored on held-out rows (`--to finetune@ENTRY`). The development set does not
influence the choice: only the chosen run is evaluated on it and published. If recipes are repeated with several seeds,
all models of the best recipe predict the development set, and the gate of the chosen run evaluates the recipe.

Without --trials, a sweep tries every combination of lists. With it, Optuna proposes values: TPE after a few random
ones. A proposal depends only on the ranges, the seed and the trials before it. The record in runs/sweeps is therefore
the whole state, and an interrupted search continues with the values that it would have tried. A trial is stopped if it
is worse than the median of the finished ones at the same evaluation, which takes four of them; Hyperband divides the
trials among brackets and needs dozens.
"""

from __future__ import annotations

import itertools
import json
import math
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows import dvc
from flows.dvc.session import restore_outputs
from flows.runs import checkout, report
from flows.runs.listing import SWEEPS
from flows.runs.stopping import stop
from flows.views.curves import find_evaluations, read_columns
from flows.views.run_view import RunView
from flows.views.sweep_plots import shorten_parameter, title_figure
from ipu_model.core.files import new_folder, read_json, write_json
from tasks.downstream.gate.recipe import FINETUNE, HELD_OUT, SEED, WEIGHTS, recipe_params, seed_file_name
from tasks.downstream.gate.released_scores import scores_json
from tasks.downstream.gate.verdict_text import format_figure, held_out_score, signed_figure
from tasks.downstream.kind import kind_of
from tasks.params.entries import find_entry
from tasks.params.overlays import Setting, make_settings, replace_overrides
from tasks.params.schema import load_params
from tasks.params.sections import DEFAULT_PHASES
from tasks.stage import artifacts, streams
from tasks.stage.errors import DONE, FAILED, ParamsError, PodiumError
from tasks.stage.process import Say

if TYPE_CHECKING:  # it takes 0.2 s to import
    import optuna
    from optuna.distributions import BaseDistribution

RANDOM_TRIALS = 5
"""Trials with random values before TPE proposes some."""
TRIALS_TO_COMPARE = 4
"""Finished trials before one is stopped."""
FIRST_TO_COMPARE = 2
"""First evaluation after which a trial is stopped: at the one before, the learning rate has just been at its peak."""
COMPLETE, PRUNED = "complete", "pruned"
"""States of a trial that is not repeated; `pruned` was stopped early. The others are running and failed."""


class Training:
    """Training that the trials of a sweep repeat: finetune@ENTRY, or pretrain@PHASE with the phases before it.

    Attributes:
        item: entry or phase.
        job: its name in metrics and plots.
        section: its section of params.yaml, with its seed and the interval of its evaluations.
        rows: section of params.yaml with the share of held-out rows.
        places: sections in which options set a parameter.
        judged_by: held-out figure that selects the recipe; empty: the one that selects weights.
    """

    def __init__(self, stage: str) -> None:
        self.stage, self.item = stage, stage.partition("@")[2]
        if stage.startswith("pretrain@"):
            self.job, self.section, self.rows = f"pretrain-{self.item}", "pretrain", "pretrain_rows"
            self.places, self.judged_by = [f"pretrain.{phase}" for phase in DEFAULT_PHASES], "mlm_loss"
        else:
            self.job, entry = artifacts.job_name(self.item, "finetune"), f"downstream.{self.item}"
            self.section, self.rows = f"{entry}.finetune", f"{entry}.rows"
            self.places, self.judged_by = [self.section], ""

    def settings(self, values: Mapping[str, Any]) -> list[Setting]:
        """Return the settings of a recipe. A name with dots is that of params.yaml."""
        dotted = {key: value for key, value in values.items() if "." in key}
        plain = {
            f"{section}.{key}": value for key, value in values.items() if "." not in key for section in self.places
        }
        repeated = (name for name in plain if not name.endswith(f".{SEED}"))  # seeds count up from the one of --set
        return make_settings(plain | dotted, dict.fromkeys(repeated, "the values to try"))

    def read_held_out(self, root: Path) -> dict[str, Any] | None:
        """Return the metrics on held-out rows in a checkout; None if the training did not finish."""
        path = root / artifacts.metrics_file(self.job)
        figures = read_json(path).get("held_out") if path.is_file() else None
        return {**figures, "judged_by": self.judged_by or figures["judged_by"]} if figures is not None else None

    def read_scores(self, root: Path, figure: str) -> list[float]:
        """Return the scores of all evaluations so far by a held-out figure; larger is better."""
        columns = read_columns(find_evaluations(self.job, root))
        return [signed_figure(figure, score) for score in columns.get(figure, ())]


@dataclass
class Trial:
    """One run of a sweep, and how it ended."""

    name: str
    """Name of the run."""
    values: dict[str, Any]
    state: str = "running"
    scores: list[float] = field(default_factory=list)
    """Score after each evaluation; larger is better."""
    score: float | None = None
    """Score of the resulting weights; None unless complete."""
    held_out: dict[str, Any] | None = None
    """Metrics of these weights on held-out rows."""


@dataclass(frozen=True)
class Sweep:
    """Search space and settings of a sweep."""

    name: str
    training: Training
    preset: str
    overrides: tuple[str, ...]
    """Values of --set for all runs."""
    space: Mapping[str, BaseDistribution]
    """Parameter -> values to try. `seed`, which comes last, repeats a recipe."""
    extra_options: tuple[str, ...] = ()
    """Other options of `podium run`, such as --verbose."""
    worker_options: tuple[str, ...] = ()
    """Options that send stages to workers; empty: they run here."""
    trials: int | None = None
    """Number of trials of a search; None: every combination."""
    seed: int = 0
    """Seed of a search."""

    @property
    def search(self) -> dict[str, Any]:
        """Everything that the trials in one record must have in common."""
        space = {name: str(distribution) for name, distribution in self.space.items()}
        return {"space": space, "seed": self.seed, "overrides": list(self.overrides)}

    @property
    def seeds(self) -> int:
        """Number of runs of a recipe."""
        return len(self.space[SEED].choices) if SEED in self.space else 1

    @property
    def combinations(self) -> list[dict[str, Any]]:
        """Every combination of values; empty for a search."""
        if self.trials is not None:
            return []
        every = itertools.product(*(distribution.choices for distribution in self.space.values()))
        return [dict(zip(self.space, values, strict=True)) for values in every]

    def run_name(self, number: int, values: Mapping[str, Any]) -> str:
        """Return the name of a trial's run: with its number, or with its values for a combination."""
        if self.trials is not None:
            return f"{self.name}-{number:02d}"
        words = (f"{''.join(word[0] for word in name.split('_'))}{value:g}" for name, value in values.items())
        return "-".join([self.name, *words])

    def command(self, trial: Trial, *last: str) -> list[str]:
        """Return the command that runs a trial; `last` are options of this call only."""
        trial_overrides = [f"{setting.name}={setting.value}" for setting in self.training.settings(trial.values)]
        args = [word for text in replace_overrides(self.overrides, trial_overrides) for word in ("--set", text)]
        start = [sys.executable, "-m", "flows", "run", "--preset", self.preset]
        return [*start, *args, "--name", trial.name, *self.extra_options, *self.worker_options, *last]


def run_sweep(sweep: Sweep, project: Path, say: Say) -> dict[str, Any]:
    """Run all trials, then finish the best one; return the record that is written to `runs/sweeps`.

    A repeated call resumes the sweep: finished trials are skipped.

    Raises:
        SystemExit: a run was stopped or its parameters are invalid; has its exit code.
        ParamsError: the record on disk is of another search.
        PodiumError: no run finished.
    """
    file = project / SWEEPS / f"{sweep.name}.json"
    trials = _run_trials(sweep, project, file, say)
    if not (recipes := _rank(sweep, trials)):
        raise PodiumError(f"none of the {len(trials)} runs finished; podium runs {sweep.name} lists them")
    alike = recipes[0][1]
    best = max(alike, key=_score)
    assert best.held_out is not None
    record = {
        "name": sweep.name,
        "entry": sweep.training.item,
        "judged_by": best.held_out["judged_by"],
        "best": best.name,
        **_make_record(sweep, trials),
        "runs": [{"name": trial.name, **trial.values, "held_out": trial.held_out} for trial in trials],
        "recipes": [figures for figures, _ in recipes],
    }
    write_json(file, record)
    say(f"best held-out {title_figure(record['judged_by'])}: {best.name}; finishing this run")
    if code := _run(_final_command(sweep, best, alike, project, say), project, say):
        raise SystemExit(code)
    root = checkout.checkout_folder(project, best.name)
    # The gate's conclusions about the recipe; none if it has only one model.
    ended = report.read_report(project, root)
    results = [] if ended is None else RunView(ended, root, project).results
    record["verdict"] = [result.recipe for result in results if result.recipe is not None]
    write_json(file, record)
    return record


def _make_record(sweep: Sweep, trials: Sequence[Trial]) -> dict[str, Any]:
    return {"search": sweep.search, "trials": [asdict(trial) for trial in trials]}


def _run_trials(sweep: Sweep, project: Path, file: Path, say: Say) -> list[Trial]:
    """Run the trials that have not finished, and return all. The record has each trial before its run starts.

    Raises:
        ParamsError: the record on disk is of another search.
    """
    record = read_json(file) if file.is_file() else {}
    known = [Trial(**trial) for trial in record.get("trials", ())]
    if known and record["search"] != sweep.search:
        if sweep.trials is not None:
            raise ParamsError(
                f"{file} is of a sweep with other ranges or parameters: pass another --name, or remove it"
            )
        known = []  # other lists under the same name: finished runs report that nothing changed
    combinations, trials = sweep.combinations, list[Trial]()
    total = len(combinations) or max(sweep.trials or 0, len(known))
    for number in range(1, total + 1):
        trial = known[number - 1] if number <= len(known) else None
        if trial is None or trial.state not in (COMPLETE, PRUNED):
            values = trial.values if trial is not None else combinations[number - 1] if combinations else None
            live = ask_trial(sweep, trials, values)
            trial = Trial(sweep.run_name(number, live.params), dict(live.params))
            write_json(file, _make_record(sweep, [*trials, trial, *known[number:]]))
            shown = ", ".join(f"{shorten_parameter(name)} {value:.4g}" for name, value in trial.values.items())
            say(f"trial {number} of {total}: {trial.name}, {shown}")
            _run_trial(sweep, trial, live, trials, project, say)
            write_json(file, _make_record(sweep, [*trials, trial, *known[number:]]))
        trials.append(trial)
        ended = f" after evaluation {len(trial.scores)}"
        if trial.held_out is not None:
            figure = trial.held_out["judged_by"]
            ended = f", held-out {title_figure(figure)} {format_figure(figure, trial.held_out[figure])}"
        say(f"trial {number} of {total}: {trial.state}{ended}")
    return trials


def ask_trial(sweep: Sweep, before: Sequence[Trial], values: Mapping[str, Any] | None = None) -> optuna.Trial:
    """Return Optuna's next trial.

    Args:
        sweep: the sweep.
        before: all earlier trials.
        values: values of a combination or of an interrupted trial; None: Optuna proposes some.
    """
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    distributions = dict(sweep.space)
    sampler = optuna.samplers.TPESampler(n_startup_trials=RANDOM_TRIALS, seed=(sweep.seed + len(before)) % 2**32)
    pruner = optuna.pruners.MedianPruner(TRIALS_TO_COMPARE, FIRST_TO_COMPARE)
    study = optuna.create_study(direction="maximize", sampler=sampler, pruner=pruner)
    for trial in before:
        study.add_trial(
            optuna.trial.create_trial(
                # A training that failed, as it diverged, counts as stopped: TPE avoids its values.
                state=getattr(optuna.trial.TrialState, "COMPLETE" if trial.state == COMPLETE else "PRUNED"),
                value=trial.score,
                params=trial.values,
                distributions=distributions,
                intermediate_values=dict(enumerate(trial.scores, 1)),
            )
        )
    if values is not None:
        study.enqueue_trial(dict(values))
    return study.ask(distributions)


def enter_scores(trial: Trial, live: optuna.Trial, scores: Sequence[float]) -> bool:
    """Enter the scores of all evaluations so far, until one prunes the trial; return whether it is pruned."""
    for score in scores[len(trial.scores) :]:
        if trial.state == PRUNED:
            break
        trial.scores.append(score)
        live.report(score, len(trial.scores))
        if live.should_prune():
            trial.state = PRUNED
    return trial.state == PRUNED


def _run_trial(
    sweep: Sweep, trial: Trial, live: optuna.Trial, before: Sequence[Trial], project: Path, say: Say
) -> None:
    """Run a trial to its end, or until it is hopeless; enter its state and scores."""
    root = checkout.checkout_folder(project, trial.name)
    figure = next((trial.held_out["judged_by"] for trial in before if trial.held_out is not None), "")

    def is_hopeless() -> bool:
        return sweep.trials is not None and enter_scores(trial, live, sweep.training.read_scores(root, figure))

    if not is_hopeless():  # an interrupted one may be
        code = _run(sweep.command(trial, "--to", sweep.training.stage), project, say, is_hopeless)
        if code == FAILED and _failed_before_training(sweep, trial, project, root):
            raise SystemExit(code)
    if (figures := sweep.training.read_held_out(root)) is not None:
        trial.state, trial.held_out, trial.score = COMPLETE, figures, held_out_score(figures)[1]
        trial.scores = sweep.training.read_scores(root, figures["judged_by"])
    elif trial.state != PRUNED:
        trial.state = "failed"


def _failed_before_training(sweep: Sweep, trial: Trial, project: Path, root: Path) -> bool:
    """Return whether all trials would fail, as this one did before its training."""
    ended, kind = report.read_report(project, root), sweep.training.stage.partition("@")[0]
    shared = all(
        setting.name.startswith(tuple(sweep.training.places)) for setting in sweep.training.settings(trial.values)
    )
    failed = [stage.name.partition("@")[0] for stage in ended.stages if stage.status == "failed"] if ended else []
    return shared and kind not in failed


def _score(trial: Trial) -> float:
    return -math.inf if trial.score is None else trial.score


def _rank(sweep: Sweep, trials: Sequence[Trial]) -> list[tuple[dict[str, Any], list[Trial]]]:
    """Return mean and deviation over the seeds of each recipe with its complete trials, best recipe first."""
    ranked = []
    for first in range(0, len(trials), sweep.seeds):
        if alike := [trial for trial in trials[first : first + sweep.seeds] if trial.state == COMPLETE]:
            scores = [_score(trial) for trial in alike]
            figures = {
                **({"trial": first + 1} if sweep.trials is not None else {}),
                **{name: value for name, value in alike[0].values.items() if name != SEED},
                "seeds": len(scores),
                "mean": statistics.mean(scores),
                "deviation": statistics.stdev(scores) if len(scores) > 1 else None,
            }
            ranked.append((figures, alike))
    return sorted(ranked, key=lambda recipe: -recipe[0]["mean"])


def _final_command(sweep: Sweep, best: Trial, alike: Sequence[Trial], project: Path, say: Say) -> list[str]:
    """Predict the development set with all finished runs of the best recipe; return the command that finishes the best.

    Raises:
        SystemExit: see `_run`, or one of them failed.
        PodiumError: one of them has no predictions.
    """
    if len(alike) < sweep.seeds:
        say(f"{sweep.seeds - len(alike)} of {sweep.seeds} seeds of this recipe did not finish and are not in its mean")
    if len(alike) == 1:
        return sweep.command(best)
    for number, trial in enumerate(alike, 1):
        say(f"predictions of seed {number} of {len(alike)}: {trial.name}")
        if code := _run(sweep.command(trial, "--to", f"evaluate@{sweep.training.item}"), project, say):
            raise SystemExit(code)
    others = {trial.values[SEED]: checkout.checkout_folder(project, trial.name) for trial in alike if trial is not best}
    folder = SWEEPS / sweep.name / best.name
    write_seed_scores(project / folder, others, sweep.training.item, say)
    # The scores of the other seeds are on this host only, so gate and publish run here.
    setting = f"downstream.{sweep.training.item}.gate.seeds={folder.as_posix()}"
    return replace(sweep, worker_options=()).command(best, "--set", setting)


def _run(command: list[str], project: Path, say: Say, ends_early: Callable[[], bool] = lambda: False) -> int:
    """Run one trial and return its exit code. A failed trial does not end the sweep, as a recipe may diverge.

    Its line "next: ..." is left out; the sweep prints its own at the end. Once `ends_early` returns True, the run is
    stopped as by Ctrl-C.

    Raises:
        SystemExit: it was stopped otherwise, or its parameters were refused.
    """

    def repeat(line: str) -> None:
        if not line.startswith(streams.NEXT):
            say(f"  {line}")

    code = stop.run_child(command, project, dvc.stage_environment(), repeat, ends_early)
    stop.check()
    if code not in (DONE, FAILED) and not ends_early():
        raise SystemExit(code)
    return code


def write_seed_scores(folder: Path, checkouts: Mapping[int, Path], entry: str, say: Say) -> None:
    """Write the folder for `gate.seeds` atomically, from the checkout of the run with each seed.

    Raises:
        PodiumError: a model has no predictions for the development set.
    """
    scores_by_seed = {seed: _scores_of(root, entry, say) for seed, root in checkouts.items()}
    with new_folder(folder) as fresh:
        for seed, scores in scores_by_seed.items():
            write_json(fresh / seed_file_name(seed), {**scores, SEED: seed})


def _scores_of(root: Path, name: str, say: Say) -> dict[str, Any]:
    """Return scores.json of the model in a checkout, with its weights' hash, recipe and held-out metrics."""
    entry = find_entry(load_params(root / artifacts.PARAMS), name)
    predictions = root / artifacts.predictions_file(name)
    needed = [predictions, *(entry.examples_file(split, root) for split in entry.development)]
    if not all(path.is_file() for path in needed) and dvc.has_remote(root):  # the stages ran on workers
        restore_outputs([entry.stage("examples"), entry.stage("evaluate")], root, say)
    if missing := [path for path in needed if not path.is_file()]:
        raise PodiumError(
            f"{missing[0]} not found: run {root.name} was not evaluated, or no DVC remote has its outputs. See podium "
            f"runs show {root.name}, then repeat the same sweep"
        )
    task, examples = kind_of(entry).scores(entry).read_all(root)
    scores: dict[str, Any] = json.loads(scores_json(task, examples, task.read_predictions(predictions, examples)))
    weights = (artifacts.model_folder(name) / "model.safetensors").as_posix()
    files = read_json(root / artifacts.metrics_file(name))["files"]
    return {
        **scores,
        WEIGHTS: next(file["sha256"] for file in files if file["path"] == weights),
        FINETUNE: recipe_params(task),
        HELD_OUT: read_json(root / artifacts.metrics_file(name, "finetune"))["held_out"],
    }
