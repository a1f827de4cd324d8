"""`podium sweep finetune KIND` and `podium sweep pretrain`: search recipes by held-out scores, in ordinary runs."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click

from flows.commands import finetune, options, pretrain
from flows.commands.project import enter_project
from flows.commands.search import EVALUATION_SHARE, Range, parse_range
from flows.commands.sweep_runs import Sweep, Training, finetuning, pretraining, run_sweep
from flows.runs import locks
from flows.runs.stopping import Interrupted, stop
from ipu_model.files import flatten_keys
from tasks.downstream.gate.seed_scores import SEED
from tasks.downstream.gate.verdict_text import signed_figure
from tasks.params.overlays import Setting, resolve
from tasks.params.schema import PHASES, types_at, validate_params
from tasks.params.sections import FinetuneParams
from tasks.stage import streams
from tasks.stage.errors import ParamsError

SEEDS_HELP = "runs per recipe, with different seeds; the gate evaluates all of the best recipe"
NEVER = 10**9
"""Interval of evaluations, in updates, that leaves only the evaluation after the last update."""


def _tried_values(name: str) -> Callable[[str], list[Any] | Range]:
    field = FinetuneParams.model_fields[name]
    read_one = options.number_parser(field)

    def read(text: str) -> list[Any] | Range:
        try:
            if (found := parse_range(text, {field.annotation})) is not None:
                return found
            listed = [read_one(part) for part in text.split(",")]
        except click.BadParameter as error:
            raise click.BadParameter(f"{text!r} is not a list such as 1e-5,3e-5: {error.message}") from None
        except ValueError as error:
            raise click.BadParameter(str(error)) from None
        if len(set(listed)) < len(listed):
            raise click.BadParameter(f"{text!r} lists a number twice")
        return listed

    return read


def _search_option(word: str, name: str, what: str) -> options.Decorator:
    return click.option(word, name, type=_tried_values(name), metavar="N,...", help=f"{what} to try, or LOW..HIGH")


search_options = options.combine_options(
    _search_option("--learning-rate", "learning_rate", "learning rates"),
    _search_option("--batch-size", "global_batch_size", "sizes"),
    click.option("--trials", type=click.IntRange(min=1), metavar="N", help="search with N trials; ends bad ones early"),
    click.option("--on-workers", is_flag=True, help="send the stages to workers (PREFECT_API_URL)"),
    click.option("--device-queue", metavar="POOL/QUEUE", help="queue for training and prediction"),
)


@click.group(help="Try several recipes as ordinary runs. The best on held-out training examples is evaluated on --dev.")
def command() -> None:
    pass


class _SweepCommands(finetune.KindCommands):
    def make_command(self, kind: str) -> click.Command:
        @finetune.kind_command(kind)
        @search_options
        @_search_option("--epochs", "epochs", "numbers of epochs")
        @click.option("--seeds", type=click.IntRange(min=1), default=1, metavar="N", help=SEEDS_HELP)
        @finetune.common_options
        @click.pass_context
        def run(ctx: click.Context, **args: Any) -> None:
            project, space = enter_project(ctx), _take_space(args)
            overrides = finetune.build_overrides(ctx, project, kind, args)
            (entry,) = resolve({}, finetune.PRESET, overrides)["downstream"]
            _start_sweep(
                project, finetuning(entry), f"downstream.{entry}.rows", finetune.PRESET, overrides, space, args
            )

        found: click.Command = run
        return found


@command.group("finetune", cls=_SweepCommands, help="Sweep podium finetune. Separate the values to try by commas.")
def _finetune() -> None:
    pass


@command.command("pretrain", help="Sweep podium pretrain by the masked language modelling loss of held-out documents.")
@pretrain.source_options
@click.option(
    "--phase",
    type=click.Choice(PHASES),
    default=PHASES[-1],
    show_default=True,
    help="train up to this phase and compare its loss; the best run then runs the rest",
)
@search_options
@finetune.common_options
@click.pass_context
def _pretrain(ctx: click.Context, **args: Any) -> None:
    project, space = enter_project(ctx), _take_space(args)
    overrides = pretrain.build_overrides(ctx, project, {**args, "kind": None})
    _start_sweep(project, pretraining(args["phase"]), "pretrain_rows", pretrain.PRESET, overrides, space, args)


def _take_space(args: dict[str, Any]) -> dict[str, list[Any] | Range]:
    """Return the values to try, and remove them from the options, which then set one value each.

    Raises:
        ParamsError: a range is reversed, its parameter is not a number, or there is a range without --trials, or no
            value with it.
    """
    space = {name: args[name] for name in finetune.HYPERPARAMETERS if args.get(name)}
    args.update(dict.fromkeys(space))
    for key, _, value in (text.partition("=") for text in args["overrides"]):
        try:
            span = parse_range(value, types_at(key.split(".")) or [float])  # an unknown name is refused later
        except ValueError as error:
            raise ParamsError(f"--set {key}: {error}") from None
        if span is not None:
            space[key] = span
    args["overrides"] = [text for text in args["overrides"] if text.partition("=")[0] not in space]
    ranges = [name for name, values in space.items() if isinstance(values, Range)]
    if ranges and args["trials"] is None:
        raise ParamsError(f"{', '.join(ranges)}: a range needs --trials N; without it, list the values to try")
    if not space and args["trials"] is not None:
        raise ParamsError("--trials needs values to try, such as --learning-rate 1e-5..1e-4")
    return space


def _start_sweep(
    project: Path,
    training: Training,
    rows: str,
    preset: str,
    overrides: list[str | Setting],
    space: dict[str, list[Any] | Range],
    args: Mapping[str, Any],
) -> None:
    key, trials = f"{training.section}.evaluate_every_updates", args["trials"]
    values = flatten_keys(resolve({}, preset, overrides))
    if not values[f"{rows}.held_out_fraction"]:  # the development set must not decide the choice
        raise ParamsError(
            "a sweep needs held-out rows to compare recipes, but there are none: pass --set "
            f"{rows}.held_out_fraction=0.1"
        )
    if trials is not None and not any(str(one).startswith(f"{key}=") for one in overrides):
        overrides.append(Setting(key, EVALUATION_SHARE))
    elif values[key] is None:
        overrides.append(Setting(key, NEVER))
    seed = values[f"{training.section}.seed"]
    if args.get("seeds", 1) > 1:
        if trials is not None:
            raise ParamsError("--seeds repeats every recipe: search with --trials first, then repeat the best recipe")
        space[SEED] = [seed + number for number in range(args["seeds"])]
    words = tuple(map(str, overrides))
    name = args["name"] or "sweep-" + hashlib.sha256(json.dumps([words, space], default=str).encode()).hexdigest()[:8]
    queue = ["--device-queue", args["device_queue"]] if args["device_queue"] else []
    more = ("--verbose",) if args["verbose"] else ()
    sent = ("--on-workers", *queue) if args["on_workers"] else ()
    sweep = Sweep(name, training, preset, words, space, more, sent, trials, seed)
    for end in (0, -1):
        recipe = {name: one[end] for name, one in space.items()}
        validate_params(resolve({}, preset, [*overrides, *training.settings(recipe)]), "the parameters")
    with stop.listen(), locks.hold_run(project, f"{name}-sweep", _note):
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
    heads = (*(name.rpartition(".")[2].replace("_", " ") for name in names), "seeds", f"held-out {found['judged_by']}")
    figure = found["judged_by"]
    rows = [(*(f"{one[name]:g}" for name in names), str(one["seeds"]), _mean(figure, one)) for one in found["recipes"]]
    text = "\n" + format_table([heads, *rows]) + "".join(f"{line}\n" for line in found["verdict"])
    if counts := Counter(one["state"] for one in found.get("trials", ())):
        text += "trials: " + ", ".join(f"{count} {state}" for state, count in counts.items()) + "\n"
    options.print_result(as_json, found, text, f"podium runs show {found['best']}")


def _mean(figure: str, recipe: dict[str, Any]) -> str:
    shown = f"{signed_figure(figure, recipe['mean']):.4f}"
    return shown if recipe["deviation"] is None else f"{shown} ± {recipe['deviation']:.4f}"
