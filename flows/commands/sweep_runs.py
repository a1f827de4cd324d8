"""Runs of a sweep: train recipes, score them on held-out rows, and finish the best one.

Every run trains and is scored on held-out rows (`--to finetune@ENTRY`). The development set does not influence the
choice: only the chosen run is evaluated on it and published. If recipes are repeated with several seeds, all models of
the best recipe predict the development set, and the gate of the chosen run evaluates the recipe.

Without --trials, a sweep runs every combination of lists. With it, it is a search (flows/commands/search.py): this
process proposes values, watches the evaluations of each run, and writes every trial to runs/sweeps.
"""

from __future__ import annotations

import itertools
import json
import math
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from flows import dvc
from flows.commands.search import COMPLETE, PRUNED, ProposedTrial, Space, Trial
from flows.dvc.session import restore_outputs
from flows.runs import checkout, report
from flows.runs.stopping import stop
from flows.views.curves import find_evaluations, read_columns
from flows.views.run_view import RunView
from ipu_model.files import new_folder, read_json, write_json
from tasks.downstream.gate.released_scores import scores_json
from tasks.downstream.gate.seed_scores import FINETUNE, HELD_OUT, SEED, WEIGHTS, recipe_params, seed_file_name
from tasks.downstream.gate.verdict_text import held_out_score, signed_figure
from tasks.downstream.scoring.scores import ScoresTask
from tasks.params.entries import find_entry
from tasks.params.overlays import Setting, make_settings
from tasks.params.schema import PHASES, load_params
from tasks.plan.kinds import load_part
from tasks.stage import artifacts, streams
from tasks.stage.errors import DONE, FAILED, ParamsError, PodiumError
from tasks.stage.process import Say

SWEEPS = artifacts.RUNS / "sweeps"
"""Folder with a file for each sweep: its runs, their scores, and the best run."""


@dataclass(frozen=True)
class Training:
    """Training that the runs of a sweep repeat."""

    stage: str
    job: str
    """Its name in metrics and plots."""
    section: str
    """Its section of params.yaml, with its seed and the interval of its evaluations."""
    places: tuple[str, ...]
    """Sections in which options set a parameter."""
    judged_by: str | None = None
    """Held-out figure that selects the recipe; None: the one that selects weights."""

    def settings(self, values: Mapping[str, Any]) -> list[Setting]:
        """Return the settings of a recipe. A name with dots is that of params.yaml."""
        dotted = {key: one for key, one in values.items() if "." in key}
        plain = {f"{place}.{key}": one for key, one in values.items() if "." not in key for place in self.places}
        return make_settings(plain | dotted)


def finetuning(entry: str) -> Training:
    """Return the fine-tuning of an entry."""
    section = f"downstream.{entry}.finetune"
    return Training(f"finetune@{entry}", artifacts.job_name(entry, "finetune"), section, (section,))


def pretraining(phase: str) -> Training:
    """Return the pre-training up to a phase."""
    places = tuple(f"pretrain.{one}" for one in PHASES)
    return Training(f"pretrain@{phase}", f"pretrain-{phase}", "pretrain", places, "mlm_loss")


@dataclass(frozen=True)
class Sweep:
    """Search space and settings of a sweep."""

    name: str
    training: Training
    preset: str
    overrides: tuple[str, ...]
    """Values of --set for all runs."""
    space: Space
    """Values to try. `seed` repeats a recipe."""
    extra_options: tuple[str, ...] = ()
    """Other options of `podium run`, such as --verbose."""
    worker_options: tuple[str, ...] = ()
    """Options that send stages to workers; empty: they run here."""
    trials: int | None = None
    """Number of trials of a search; None: every combination."""
    seed: int = 0
    """Seed of a search."""

    @property
    def item(self) -> str:
        """Entry or phase."""
        return self.training.stage.partition("@")[2]

    @property
    def search(self) -> dict[str, Any]:
        """Everything that the trials of a search must have in common."""
        space = {name: str(one) for name, one in self.space.items()}
        return {"space": space, "seed": self.seed, "overrides": list(self.overrides)}

    def members(self) -> list[SweepRun]:
        """Return every combination, grouped by recipe."""
        names = sorted(self.space, key=lambda name: name == SEED)
        found = itertools.product(*(self.space[name] for name in names))
        return [SweepRun(self, dict(zip(names, values, strict=True))) for values in found]


@dataclass(frozen=True)
class SweepRun:
    """One run of a sweep."""

    sweep: Sweep
    values: dict[str, Any]
    trial: int | None = None
    """Number of the trial, from 1; None: a combination."""

    @property
    def name(self) -> str:
        words = (f"{''.join(word[0] for word in name.split('_'))}{value:g}" for name, value in self.values.items())
        return "-".join([self.sweep.name, *(words if self.trial is None else [f"{self.trial:02d}"])])

    @property
    def recipe(self) -> tuple[tuple[str, Any], ...]:
        """Values it was trained with, except the seed."""
        number = {} if self.trial is None else {"trial": self.trial}
        return tuple((name, value) for name, value in {**number, **self.values}.items() if name != SEED)

    def command(self, *last: str, here: bool = False) -> list[str]:
        """Return the command that runs it.

        Args:
            last: options of this call only.
            here: run on this host even if the sweep uses workers.
        """
        sweep = self.sweep
        own = [f"{one.name}={one.value}" for one in sweep.training.settings(self.values)]
        args = [word for text in (*sweep.overrides, *own) for word in ("--set", text)]
        start = [sys.executable, "-m", "flows", "run", "--preset", sweep.preset]
        workers = () if here else sweep.worker_options
        return [*start, *args, "--name", self.name, *sweep.extra_options, *workers, *last]

    def held_out(self, project: Path) -> dict[str, Any] | None:
        """Return the metrics on held-out rows; None if the training did not finish."""
        training = self.sweep.training
        path = checkout.checkout_folder(project, self.name) / artifacts.metrics_file(training.job)
        found = read_json(path).get("held_out") if path.is_file() else None
        return found if training.judged_by is None or found is None else {**found, "judged_by": training.judged_by}

    def scores(self, project: Path, figure: str) -> list[float]:
        """Return the scores of all evaluations so far by a held-out figure; larger is better."""
        root = checkout.checkout_folder(project, self.name)
        columns = read_columns(find_evaluations(self.sweep.training.job, root))
        return [signed_figure(figure, one) for one in columns.get(figure, ())]


def run_sweep(sweep: Sweep, project: Path, say: Say) -> dict[str, Any]:
    """Run all members, then finish the best one; return the record that is written to `runs/sweeps`.

    A repeated call resumes the sweep: finished members are skipped.

    Raises:
        SystemExit: a run was stopped or its parameters are invalid; has its exit code.
        ParamsError: the record on disk is of another search.
        PodiumError: no run finished.
    """
    place = project / SWEEPS / f"{sweep.name}.json"
    record: dict[str, Any] = {"name": sweep.name, "entry": sweep.item}
    if sweep.trials is None:
        members = sweep.members()
        for number, member in enumerate(members, 1):
            say(f"run {number} of {len(members)}: {member.name}")
            _run(member.command("--to", sweep.training.stage), project, say)
    else:
        trials = _run_search(sweep, project, place, say)
        record |= read_json(place)
        members = [SweepRun(sweep, trial.values, number) for number, trial in enumerate(trials, 1)]
    ended = {member.name: figures for member in members if (figures := member.held_out(project)) is not None}
    if not ended:
        raise PodiumError(f"none of the {len(members)} runs finished; podium runs {sweep.name} lists them")
    recipes = _rank([member for member in members if member.name in ended], ended)
    alike = recipes[0][0]
    best = max(alike, key=lambda member: _score(ended[member.name]))
    record |= {"judged_by": ended[best.name]["judged_by"], "best": best.name}
    record["runs"] = [{"name": one.name, **one.values, "held_out": ended.get(one.name)} for one in members]
    record["recipes"] = [found for _, found in recipes]
    write_json(place, record)
    say(f"best held-out {record['judged_by']}: {best.name}; finishing this run")
    if code := _run(_final_command(best, alike, project, say), project, say):
        raise SystemExit(code)
    record["verdict"] = _recipe_verdict(best, project)
    write_json(place, record)
    return record


def _run_search(sweep: Sweep, project: Path, place: Path, say: Say) -> list[Trial]:
    """Run the trials that have not finished, and return all. The record has each trial before its run starts.

    Raises:
        ParamsError: the record on disk is of another search.
    """
    record: dict[str, Any] = read_json(place) if place.is_file() else {"search": sweep.search, "trials": []}
    if record.get("search") != sweep.search:
        raise ParamsError(f"{place} is of a sweep with other ranges or parameters: pass another --name, or remove it")
    trials = [Trial(**one) for one in record["trials"]]

    def save() -> None:
        write_json(place, {"search": sweep.search, "trials": [asdict(one) for one in trials]})

    total = max(sweep.trials or 0, len(trials))
    for number in range(1, total + 1):
        known, before = trials[number - 1 : number], trials[: number - 1]
        if not known or known[0].state not in (COMPLETE, PRUNED):
            proposal = ProposedTrial(sweep.space, sweep.seed, before, known[0].values if known else None)
            member = SweepRun(sweep, proposal.trial.values, number)
            trials[number - 1 : number] = [proposal.trial]
            save()
            shown = ", ".join(f"{name.rpartition('.')[2]} {value:.4g}" for name, value in member.values.items())
            say(f"trial {number} of {total}: {member.name}, {shown}")
            _run_trial(member, proposal, before, project, say)
            save()
        say(f"trial {number} of {total}: {_format_outcome(trials[:number])}")
    return trials


def _run_trial(member: SweepRun, proposal: ProposedTrial, before: Sequence[Trial], project: Path, say: Say) -> None:
    """Run a trial to its end, or until it is hopeless; enter its state and scores."""
    trial, stage = proposal.trial, member.sweep.training.stage
    figures = [one.held_out["judged_by"] for one in before if one.held_out is not None]  # none: no trial is hopeless

    def is_hopeless() -> bool:
        return bool(figures) and proposal.is_hopeless(member.scores(project, figures[0]))

    ended = not is_hopeless() and _run(member.command("--to", stage), project, say, is_hopeless) in (DONE, FAILED)
    trial.state, trial.held_out = "failed" if ended else PRUNED, member.held_out(project)
    if trial.held_out is not None:
        trial.state, trial.score = COMPLETE, _score(trial.held_out)
        trial.scores = member.scores(project, trial.held_out["judged_by"])


def _format_outcome(trials: Sequence[Trial]) -> str:
    """Describe the outcome of the last trial, and the best one so far."""
    last, best = trials[-1], max(trials, key=lambda one: -math.inf if one.score is None else one.score)
    found = last.state if last.score is not None else f"{last.state} after evaluation {len(last.scores)}"
    for title, trial in (("", last), (f"; best: trial {trials.index(best) + 1}", best)):
        if trial.held_out is not None:
            figure = trial.held_out["judged_by"]
            found += f"{title}, held-out {figure} {trial.held_out[figure]:.4f}"
    return found


def _recipe_verdict(best: SweepRun, project: Path) -> list[str]:
    """Return the gate's conclusions about the recipe; empty if it has only one model."""
    root = checkout.checkout_folder(project, best.name)
    if (record := report.read_report(project, root)) is None:
        return []
    return [one.recipe for one in RunView(record, root, project).results if one.recipe is not None]


def _final_command(best: SweepRun, alike: Sequence[SweepRun], project: Path, say: Say) -> list[str]:
    """Predict the development set with all finished runs of the best recipe; return the command that finishes the best.

    Raises:
        SystemExit: see `_run`, or one of them failed.
        PodiumError: one of them has no predictions.
    """
    wanted = len(best.sweep.space.get(SEED, [None]))
    if len(alike) < wanted:
        say(f"{wanted - len(alike)} of {wanted} seeds of this recipe did not finish and are not in its mean")
    if len(alike) == 1:
        return best.command()
    for number, member in enumerate(alike, 1):
        say(f"predictions of seed {number} of {len(alike)}: {member.name}")
        if code := _run(member.command("--to", f"evaluate@{best.sweep.item}"), project, say):
            raise SystemExit(code)
    others = {member.values[SEED]: checkout.checkout_folder(project, member.name) for member in alike if member != best}
    folder = SWEEPS / best.sweep.name / best.name
    write_seed_scores(project / folder, others, best.sweep.item, say)
    # The scores of the other seeds are on this host only, so gate and publish run here.
    return best.command("--set", f"downstream.{best.sweep.item}.gate.seeds={folder.as_posix()}", here=True)


def _run(command: list[str], project: Path, say: Say, ends_early: Callable[[], bool] | None = None) -> int:
    """Run one member and return its exit code. A failed member does not end the sweep, as a recipe may diverge.

    The member's line "next: ..." is left out; the sweep prints its own at the end. Once `ends_early` returns True, the
    run is stopped as by Ctrl-C.

    Raises:
        SystemExit: it was stopped otherwise, or its parameters were refused.
    """
    stopped = False

    def repeat(line: str) -> None:
        if not line.startswith(streams.NEXT):
            say(f"  {line}")

    def watch() -> bool:
        nonlocal stopped
        stopped = ends_early is not None and ends_early()
        return stopped

    code = stop.run_child(command, project, dvc.stage_environment(), repeat, watch)
    stop.check()
    if code not in (DONE, FAILED) and not stopped:
        raise SystemExit(code)
    return code


def _score(figures: Mapping[str, Any]) -> float:
    return held_out_score(figures)[1]


def _rank(
    members: Sequence[SweepRun], ended: Mapping[str, Mapping[str, Any]]
) -> list[tuple[list[SweepRun], dict[str, Any]]]:
    """Return the members of each recipe with mean and standard deviation over seeds, best recipe first."""
    found = []
    for recipe, several in itertools.groupby(members, key=lambda member: member.recipe):
        alike = list(several)
        scores = [_score(ended[member.name]) for member in alike]
        spread = statistics.stdev(scores) if len(scores) > 1 else None
        figures = {**dict(recipe), "seeds": len(scores), "mean": statistics.mean(scores), "deviation": spread}
        found.append((alike, figures))
    return sorted(found, key=lambda one: -one[1]["mean"])


def write_seed_scores(folder: Path, checkouts: Mapping[int, Path], entry: str, say: Say) -> None:
    """Write the folder for `gate.seeds` atomically, from the checkout of the run with each seed.

    Raises:
        PodiumError: a model has no predictions for the development set.
    """
    found = {seed: _scores_of(root, entry, say) for seed, root in checkouts.items()}
    with new_folder(folder) as fresh:
        for seed, scores in found.items():
            write_json(fresh / seed_file_name(seed), {**scores, SEED: seed})


def _scores_of(root: Path, name: str, say: Say) -> dict[str, Any]:
    """Return scores.json of the model in a checkout, with its weights' hash, recipe and held-out metrics."""
    entry = find_entry(load_params(root / artifacts.PARAMS), name)
    task: ScoresTask[Any, Any, Any] = load_part(entry, "scores")
    predictions = root / artifacts.predictions_file(name)
    needed = [predictions, *(task.examples_file(split, root) for split in task.development)]
    if not all(path.is_file() for path in needed) and dvc.has_remote(root):  # the stages ran on workers
        restore_outputs([entry.stage("examples"), entry.stage("evaluate")], root, say)
    if missing := [path for path in needed if not path.is_file()]:
        raise PodiumError(
            f"{missing[0]} not found: run {root.name} was not evaluated, or no DVC remote has its outputs. See podium "
            f"runs show {root.name}, then repeat the same sweep"
        )
    examples = task.read_all(root)
    scores: dict[str, Any] = json.loads(scores_json(task, examples, task.read_predictions(predictions, examples)))
    weights = (artifacts.model_folder(name) / "model.safetensors").as_posix()
    files = read_json(root / artifacts.metrics_file(name))["files"]
    return {
        **scores,
        WEIGHTS: next(file["sha256"] for file in files if file["path"] == weights),
        FINETUNE: recipe_params(task),
        HELD_OUT: read_json(root / artifacts.metrics_file(name, "finetune"))["held_out"],
    }
