"""`podium sweep finetune KIND` and `podium sweep pretrain`: search recipes by held-out scores, in ordinary runs."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from flows.commands import finetune, options, pretrain
from flows.commands.project import CommandContext, enter_project
from flows.commands.sweep_runs import Sweep, Training, run_sweep
from flows.runs import locks
from flows.runs.stopping import Interrupted, stop
from flows.views.sweep_plots import shorten_parameter, title_figure
from ipu_model.core.files import flatten_keys
from tasks.downstream.gate.recipe import SEED
from tasks.downstream.gate.verdict_text import format_figure, signed_figure
from tasks.params.overlays import Setting, resolve
from tasks.params.schema import types_at, validate_params
from tasks.params.sections import DEFAULT_PHASES, FinetuneParams
from tasks.params.tables import format_table
from tasks.stage import streams
from tasks.stage.errors import ParamsError

if TYPE_CHECKING:  # it takes 0.2 s to import, so functions import what they call
    from optuna.distributions import BaseDistribution

HELD_OUT_FRACTION = 0.1
"""Share of the training examples on which recipes are compared, unless the parameters have another."""
SEEDS_HELP = "runs per recipe, with different seeds; the gate evaluates all of the best recipe"
NEVER = 10**9
"""Interval of evaluations, in updates, that leaves only the evaluation after the last update."""
EVALUATION_SHARE = 0.2
"""Share of the updates between evaluations in a search, unless an interval is set: trials that differ in the number of
updates are compared at equal shares."""


def parse_range(text: str, kinds: Collection[Any], option: str) -> BaseDistribution | None:
    """Parse LOW..HIGH, floats on a log scale unless they start at 0 or less; return None if the text has another form.

    Args:
        text: value of the option.
        kinds: types of the parameter. A float gets integers only if both ends are integers from 1 on, as in 2..4.
        option: the option, for messages.

    Raises:
        ParamsError: the parameter is not a number, or the range is reversed.
    """
    words = text.split("..", 1)
    try:
        low, high = map(float, words)
    except ValueError:
        return None
    from optuna.distributions import FloatDistribution, IntDistribution

    if not {int, float} & set(kinds):
        raise ParamsError(f"{option}: {text} is a range, but this parameter is not a number: set one value")
    if not low < high:
        raise ParamsError(f"{option}: {text} is not a range: its lower end comes first, as in 1e-5..1e-4")
    if all(re.fullmatch(r"[-+]?\d+", word) for word in words) and (low >= 1 or float not in kinds):
        return IntDistribution(int(low), int(high))
    return FloatDistribution(low, high, log=low > 0)


def _parse_list(text: str, kind: Any, option: str) -> BaseDistribution:
    from optuna.distributions import CategoricalDistribution

    try:
        values = [kind(part) for part in text.split(",")]
    except ValueError:
        raise ParamsError(f"{option}: {text!r} is not a list such as 1e-5,3e-5, nor a range") from None
    if len(set(values)) < len(values):
        raise ParamsError(f"{option}: {text!r} lists a number twice")
    return CategoricalDistribution(values)


def _search_option(word: str, name: str, what: str) -> options.Decorator:
    return click.option(word, name, metavar="N,...", help=f"{what} to try, or LOW..HIGH")


search_options = options.combine_options(
    _search_option("--learning-rate", "learning_rate", "learning rates"),
    _search_option("--batch-size", "global_batch_size", "sizes"),
    click.option("--trials", type=click.IntRange(min=1), metavar="N", help="search with N trials; ends bad ones early"),
    options.workers_option,
    options.device_queue_option,
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
            _start_sweep(project, Training(f"finetune@{entry}"), finetune.PRESET, overrides, space, args)

        return run


@command.group("finetune", cls=_SweepCommands, help="Sweep podium finetune. Separate the values to try by commas.")
def _finetune() -> None:
    pass


@command.command("pretrain", help="Sweep podium pretrain by the masked language modelling loss of held-out documents.")
@pretrain.source_options
@click.option(
    "--phase",
    type=click.Choice(DEFAULT_PHASES),
    default=DEFAULT_PHASES[-1],
    show_default=True,
    help="train up to this phase and compare its loss; the best run then runs the rest",
)
@search_options
@finetune.common_options
@click.pass_context
def _pretrain(ctx: click.Context, **args: Any) -> None:
    project, space = enter_project(ctx), _take_space(args)
    overrides = pretrain.build_overrides(ctx, project, {**args, "kind": None, "columns": ()})
    _start_sweep(project, Training(f"pretrain@{args['phase']}"), pretrain.PRESET, overrides, space, args)


def _take_space(args: dict[str, Any]) -> dict[str, BaseDistribution]:
    """Return the values to try, and remove them from the options, which then set one value each.

    Raises:
        ParamsError: values cannot be parsed, or there is a range without --trials, or no value with it.
    """
    from optuna.distributions import CategoricalDistribution

    space = {}
    for name, word in finetune.HYPERPARAMETERS.items():
        if text := args.get(name):
            kind = FinetuneParams.model_fields[name].annotation
            space[name] = parse_range(text, {kind}, f"--{word}") or _parse_list(text, kind, f"--{word}")
    args.update(dict.fromkeys(space))
    for key, _, value in (text.partition("=") for text in args["overrides"]):
        kinds = types_at(key.split(".")) or [float]  # an unknown name is refused later
        if span := parse_range(value, kinds, f"--set {key}"):
            space[key] = span
        elif "," in value and (number := next((kind for kind in (float, int) if kind in kinds), None)):
            space[key] = _parse_list(value, number, f"--set {key}")
    args["overrides"] = [text for text in args["overrides"] if text.partition("=")[0] not in space]
    ranges = [name for name, values in space.items() if not isinstance(values, CategoricalDistribution)]
    if ranges and args["trials"] is None:
        raise ParamsError(f"{', '.join(ranges)}: a range needs --trials N; without it, list the values to try")
    if not space and args["trials"] is not None:
        raise ParamsError("--trials needs values to try, such as --learning-rate 1e-5..1e-4")
    return space


def _start_sweep(
    project: Path,
    training: Training,
    preset: str,
    overrides: list[str | Setting],
    space: dict[str, BaseDistribution],
    args: Mapping[str, Any],
) -> None:
    from optuna.distributions import CategoricalDistribution

    key, trials = f"{training.section}.evaluate_every_updates", args["trials"]
    values = flatten_keys(resolve({}, preset, overrides))
    held_out = f"{training.rows}.held_out_fraction"
    if not values[held_out]:  # the development set must not decide the choice
        if any(str(override).startswith(f"{held_out}=") for override in overrides):
            raise ParamsError(f"a sweep compares recipes on held-out rows: set {held_out} above 0, such as 0.1")
        overrides.append(Setting(held_out, HELD_OUT_FRACTION))
        streams.note(f"{held_out}: {HELD_OUT_FRACTION}, to compare recipes on examples that no trial learns", "")
    if trials is not None and not any(str(override).startswith(f"{key}=") for override in overrides):
        overrides.append(Setting(key, EVALUATION_SHARE))
    elif values[key] is None:
        overrides.append(Setting(key, NEVER))
    seed = values[f"{training.section}.seed"]
    if args.get("seeds", 1) > 1:
        if trials is not None:
            raise ParamsError("--seeds repeats every recipe: search with --trials first, then repeat the best recipe")
        space[SEED] = CategoricalDistribution([seed + number for number in range(args["seeds"])])
    words = tuple(map(str, overrides))
    name = args["name"] or "sweep-" + hashlib.sha256(json.dumps([words, space], default=str).encode()).hexdigest()[:8]
    queue = ["--device-queue", args["device_queue"]] if args["device_queue"] else []
    context = click.get_current_context().find_object(CommandContext)
    started_by = () if context is None or context.command_line is None else ("--started-by", context.command_line)
    more = (*started_by, *(("--verbose",) if args["verbose"] else ()))
    sent = ("--on-workers", *queue) if args["on_workers"] else ()
    sweep = Sweep(name, training, preset, words, space, more, sent, trials, seed)
    ends = {name: getattr(span, "choices", None) or (span.low, span.high) for name, span in space.items()}
    for number in range(max(map(len, ends.values()), default=1)):
        recipe = {name: values[number % len(values)] for name, values in ends.items()}
        validate_params(resolve({}, preset, [*overrides, *training.settings(recipe)]), "the parameters")

    def note(text: str) -> None:
        streams.note(text, "")

    with stop.listen(), locks.hold_run(project, f"{name}-sweep", note):
        try:
            record = run_sweep(sweep, project, note if args["as_json"] else streams.say_line)
        except Interrupted:
            note(f"stopped by {stop.reason()}; run the same command again to continue")
            raise SystemExit(stop.exit_code()) from None
    after = f"podium runs show {record['best']}"
    if training.stage.startswith("pretrain@"):
        after = f"podium finetune KIND --model {record['best']} --train FILE"
    options.print_result(args["as_json"], record, _format_result(record), after)


def _format_result(record: Mapping[str, Any]) -> str:
    figure, recipes = record["judged_by"], record["recipes"]
    names = [name for name in recipes[0] if name not in ("seeds", "mean", "deviation")]
    rows = [(*map(shorten_parameter, names), "seeds", f"held-out {title_figure(figure)}")]
    for recipe in recipes:
        spread = "" if recipe["deviation"] is None else f" ± {format_figure(figure, recipe['deviation'])}"
        mean = f"{format_figure(figure, signed_figure(figure, recipe['mean']))}{spread}"
        rows.append((*(f"{recipe[name]:g}" for name in names), str(recipe["seeds"]), mean))
    states = Counter(trial["state"] for trial in record["trials"])
    ended = "trials: " + ", ".join(f"{count} {state}" for state, count in states.items())
    return "\n" + format_table(rows) + "".join(f"{line}\n" for line in (*record["verdict"], ended))
