"""`podium sweep finetune KIND`: search recipes by their scores on held-out examples, in ordinary runs.

Every run trains and is scored on held-out training examples (`--to finetune@ENTRY`). The development set does not
influence the choice: only the chosen run is evaluated on it and published. If recipes are repeated with several seeds,
all models of the best recipe predict the development set, and the gate of the chosen run evaluates the recipe.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from flows import dvc
from flows.commands import finetune, options
from flows.commands.project import enter_project
from flows.dvc.session import restore_outputs
from flows.runs import checkout, report
from flows.runs.stopping import stop
from flows.views.run_view import RunView
from ipu_model.files import new_folder, read_json, write_json
from tasks.downstream.gate.released_scores import scores_json
from tasks.downstream.gate.seed_scores import FINETUNE, HELD_OUT, SEED, WEIGHTS, recipe_params, seed_file_name
from tasks.downstream.gate.verdict_text import held_out_score
from tasks.downstream.scoring.scores import ScoresTask
from tasks.params.entries import find_entry
from tasks.params.overlays import Setting, resolve
from tasks.params.schema import load_params, validate_params
from tasks.params.sections import FinetuneParams
from tasks.plan.kinds import load_part
from tasks.stage import artifacts, streams
from tasks.stage.errors import DONE, FAILED, ParamsError, PodiumError
from tasks.stage.process import Say

SWEEPS = artifacts.RUNS / "sweeps"
"""Folder with a file for each sweep: its runs, their scores, and the best run."""
NEVER = 10**9
"""Interval of evaluations, in updates, that leaves only the evaluation after the last update."""


@dataclass(frozen=True)
class Sweep:
    """Search space and settings of a sweep."""

    name: str
    entry: str
    preset: str
    overrides: tuple[str, ...]
    """Values of --set for all runs."""
    grid: dict[str, list[Any]]
    """Parameter in the entry's section `finetune` -> values to try. `seed` repeats a recipe."""
    extra_options: tuple[str, ...] = ()
    """Other options of `podium run`, such as --verbose."""
    worker_options: tuple[str, ...] = ()
    """Options that send stages to workers; empty: they run here."""

    def members(self) -> list[SweepRun]:
        """Return the runs, grouped by recipe."""
        names = sorted(self.grid, key=lambda name: name == SEED)
        found = itertools.product(*(self.grid[name] for name in names))
        return [SweepRun(self, dict(zip(names, values, strict=True))) for values in found]


@dataclass(frozen=True)
class SweepRun:
    """One run of a sweep."""

    sweep: Sweep
    values: dict[str, Any]

    @property
    def name(self) -> str:
        words = (f"{''.join(word[0] for word in name.split('_'))}{value:g}" for name, value in self.values.items())
        return "-".join([self.sweep.name, *words])

    @property
    def recipe(self) -> tuple[tuple[str, Any], ...]:
        """Values it was trained with, except the seed."""
        return tuple((name, value) for name, value in self.values.items() if name != SEED)

    def command(self, *last: str, here: bool = False) -> list[str]:
        """Return the command that runs it.

        Args:
            last: options of this call only.
            here: run on this host even if the sweep uses workers.
        """
        place = f"downstream.{self.sweep.entry}.finetune"
        own = [f"{place}.{name}={value}" for name, value in self.values.items()]
        args = [word for text in (*self.sweep.overrides, *own) for word in ("--set", text)]
        start = [sys.executable, "-m", "flows", "run", "--preset", self.sweep.preset]
        return [
            *start,
            *args,
            "--name",
            self.name,
            *self.sweep.extra_options,
            *(() if here else self.sweep.worker_options),
            *last,
        ]

    def held_out(self, project: Path) -> dict[str, Any] | None:
        """Return the metrics on held-out rows; None if the training did not finish."""
        path = checkout.checkout_folder(project, self.name) / artifacts.metrics_file(self.sweep.entry, "finetune")
        return read_json(path).get("held_out") if path.is_file() else None


def require_held_out(values: Mapping[str, Any], entry: str) -> None:
    """Require held-out training examples, as the development set must not decide the choice.

    Raises:
        ParamsError: the entry has no held-out examples.
    """
    if not values["downstream"][entry]["rows"]["held_out_fraction"]:
        raise ParamsError(
            "a sweep needs held-out training examples to compare recipes, but this entry has none: pass --set "
            f"downstream.{entry}.rows.held_out_fraction=0.1"
        )


def run_sweep(sweep: Sweep, project: Path, say: Say) -> dict[str, Any]:
    """Run all members, then finish the best one; return the record that is written to `runs/sweeps`.

    A repeated call resumes the sweep: finished members are skipped.

    Raises:
        SystemExit: a run was stopped or its parameters are invalid; has its exit code.
        PodiumError: no run finished.
    """
    members = sweep.members()
    for number, member in enumerate(members, 1):
        say(f"run {number} of {len(members)}: {member.name}")
        _run(member.command("--to", f"finetune@{sweep.entry}"), project, say)
    ended = {member.name: figures for member in members if (figures := member.held_out(project)) is not None}
    if not ended:
        raise PodiumError(f"none of the {len(members)} runs finished; podium runs {sweep.name} lists them")
    recipes = _rank([member for member in members if member.name in ended], ended)
    alike = recipes[0][0]
    best = max(alike, key=lambda member: _score(ended[member.name]))
    record = {
        "name": sweep.name,
        "entry": sweep.entry,
        "judged_by": ended[best.name]["judged_by"],
        "best": best.name,
        "runs": [{"name": one.name, **one.values, "held_out": ended.get(one.name)} for one in members],
        "recipes": [figures for _, figures in recipes],
    }
    place = project / SWEEPS / f"{sweep.name}.json"
    write_json(place, record)
    say(f"best held-out {record['judged_by']}: {best.name}; evaluating it on the development set")
    if code := _run(_final_command(best, alike, project, say), project, say):
        raise SystemExit(code)
    record["verdict"] = _recipe_verdict(best, project)
    write_json(place, record)
    return record


def _recipe_verdict(best: SweepRun, project: Path) -> list[str]:
    """Return the gate's conclusions about the recipe; empty if it has only one model."""
    root = checkout.checkout_folder(project, best.name)
    if (record := report.read_report(project, root)) is None:
        return []
    return [one.recipe for one in RunView(record, root, project).results if one.recipe is not None]


def _final_command(best: SweepRun, alike: Sequence[SweepRun], project: Path, say: Say) -> list[str]:
    """Predict the development set with all models of the best recipe; return the command that finishes the best run.

    Args:
        best: the best run.
        alike: all finished runs of its recipe, including itself.
        project: project folder.
        say: called with each message.

    Raises:
        SystemExit: see `_run`, or one of them failed.
        PodiumError: one of them has no predictions.
    """
    wanted = len(best.sweep.grid.get(SEED, [None]))
    if len(alike) < wanted:
        say(f"{wanted - len(alike)} of {wanted} seeds of this recipe did not finish and are not in its mean")
    if len(alike) == 1:
        return best.command()
    for number, member in enumerate(alike, 1):
        say(f"predictions of seed {number} of {len(alike)}: {member.name}")
        if code := _run(member.command("--to", f"evaluate@{best.sweep.entry}"), project, say):
            raise SystemExit(code)
    others = {member.values[SEED]: checkout.checkout_folder(project, member.name) for member in alike if member != best}
    folder = SWEEPS / best.sweep.name / best.name
    write_seed_scores(project / folder, others, best.sweep.entry, say)
    # The scores of the other seeds are on this host only, so gate and publish run here.
    return best.command("--set", f"downstream.{best.sweep.entry}.gate.seeds={folder.as_posix()}", here=True)


def _run(command: list[str], project: Path, say: Say) -> int:
    """Run one member and return its exit code. A failed member does not end the sweep, as a recipe may diverge.

    The member's line "next: ..." is left out; the sweep prints its own at the end.

    Raises:
        SystemExit: it was stopped, or its parameters were refused.
    """

    def repeat(line: str) -> None:
        if not line.startswith(streams.NEXT):
            say(f"  {line}")

    code = stop.run_child(command, project, dvc.stage_environment(), repeat)
    stop.check()
    if code not in (DONE, FAILED):
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
    """Write the folder for `gate.seeds` atomically.

    Args:
        folder: target; an existing one is replaced.
        checkouts: seed -> checkout of the run with that seed.
        entry: name of the entry.
        say: called with messages about files restored from the DVC remote.

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


def _list_parser(name: str) -> Callable[[str], list[Any]]:
    read_one = options.number_parser(FinetuneParams.model_fields[name])

    def read(text: str) -> list[Any]:
        try:
            found = [read_one(part) for part in text.split(",")]
        except click.BadParameter as error:
            raise click.BadParameter(f"{text!r} is not a list such as 1e-5,3e-5: {error.message}") from None
        if len(set(found)) < len(found):
            raise click.BadParameter(f"{text!r} lists a number twice")
        return found

    return read


search_options = options.combine_options(
    click.option(
        "--learning-rate", type=_list_parser("learning_rate"), metavar="RATE,...", help="learning rates to try"
    ),
    click.option("--epochs", type=_list_parser("epochs"), metavar="N,...", help="numbers of epochs to try"),
    click.option(
        "--batch-size",
        "global_batch_size",
        type=_list_parser("global_batch_size"),
        metavar="N,...",
        help="sizes to try",
    ),
    click.option(
        "--seeds",
        type=click.IntRange(min=1),
        default=1,
        metavar="N",
        help="runs per recipe, with different seeds; the gate evaluates all of the best recipe",
    ),
    click.option("--on-workers", is_flag=True, help="send the stages to workers (PREFECT_API_URL)"),
    click.option("--device-queue", metavar="POOL/QUEUE", help="queue for training and prediction"),
)


@click.group(help="Try several recipes as ordinary runs. The best on held-out training examples is evaluated on --dev.")
def command() -> None:
    pass


class _SweepCommands(finetune.KindCommands):
    def make_command(self, kind: str) -> click.Command:
        @finetune.kind_command(kind)
        @options.combine_options(search_options, finetune.common_options)
        @click.pass_context
        def run(ctx: click.Context, **args: Any) -> None:
            _start_sweep(ctx, kind, args)

        found: click.Command = run
        return found


@command.group("finetune", cls=_SweepCommands, help="Sweep podium finetune. Separate the values to try by commas.")
def _finetune() -> None:
    pass


def _start_sweep(ctx: click.Context, kind: str, args: dict[str, Any]) -> None:
    from flows.runs.stopping import Interrupted, stop

    project = enter_project(ctx)
    grid = {name: args[name] for name in finetune.HYPERPARAMETERS if args.get(name)}
    said = args | dict.fromkeys(finetune.HYPERPARAMETERS)
    overrides = finetune.build_overrides(ctx, project, kind, said)
    values = resolve({}, finetune.PRESET, overrides)
    (entry,) = values["downstream"]
    require_held_out(values, entry)
    tuning = values["downstream"][entry]["finetune"]
    if tuning["evaluate_every_updates"] is None:
        tuning["evaluate_every_updates"] = NEVER
        overrides.append(Setting(f"downstream.{entry}.finetune.evaluate_every_updates", NEVER))
    if args["seeds"] > 1:
        grid[SEED] = [tuning["seed"] + number for number in range(args["seeds"])]
    validate_params(values, "the parameters")
    words = tuple(map(str, overrides))
    name = args["name"] or "sweep-" + hashlib.sha256(json.dumps([words, grid]).encode()).hexdigest()[:8]
    queue = ["--device-queue", args["device_queue"]] if args["device_queue"] else []
    more = ("--verbose",) if args["verbose"] else ()
    sent = ("--on-workers", *queue) if args["on_workers"] else ()
    sweep = Sweep(name, entry, finetune.PRESET, words, grid, more, sent)
    with stop.listen():
        try:
            found = run_sweep(sweep, project, _note if args["as_json"] else streams.say_line)
        except Interrupted:
            _note(f"stopped by {stop.reason()}; run the same command again to continue")
            raise SystemExit(stop.exit_code()) from None
    _print_result(found, args["as_json"])


def _note(text: str) -> None:
    streams.note(text, "")


def _print_result(found: dict[str, Any], as_json: bool) -> None:
    from tasks.params.tables import format_table

    names = [name for name in found["recipes"][0] if name not in ("seeds", "mean", "deviation")]
    heads = (*(name.replace("_", " ") for name in names), "seeds", f"held-out {found['judged_by']}")
    rows = [(*(f"{one[name]:g}" for name in names), str(one["seeds"]), _format_mean(one)) for one in found["recipes"]]
    text = "\n" + format_table([heads, *rows]) + "".join(f"{line}\n" for line in found["verdict"])
    options.print_result(as_json, found, text, f"podium runs show {found['best']}")


def _format_mean(recipe: dict[str, Any]) -> str:
    shown = f"{recipe['mean']:.4f}"
    return shown if recipe["deviation"] is None else f"{shown} ± {recipe['deviation']:.4f}"
