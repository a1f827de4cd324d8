"""`podium sweep finetune KIND`: a search over recipes, judged by examples that no training sees."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import Any

import click

from flows.commands import finetune, options
from flows.commands.project import entered
from tasks.params.overlays import Setting, resolve
from tasks.params.schema import check
from tasks.params.sections import FinetuneParams
from tasks.stage import streams


def _list_of(name: str) -> Callable[[str], list[Any]]:
    """Return how click reads values of a parameter that are apart by commas."""
    read_one = options.number_of(FinetuneParams.model_fields[name])

    def read(text: str) -> list[Any]:
        try:
            found = [read_one(part) for part in text.split(",")]
        except click.BadParameter as error:
            raise click.BadParameter(f"{text!r} is no list of numbers such as 1e-5,3e-5: {error.message}") from None
        if len(set(found)) < len(found):
            raise click.BadParameter(f"{text!r} names a number twice")
        return found

    return read


LISTS = options.together(
    click.option("--learning-rate", type=_list_of("learning_rate"), metavar="RATE,...", help="to try"),
    click.option("--epochs", type=_list_of("epochs"), metavar="N,...", help="to try"),
    click.option(
        "--batch-size", "global_batch_size", type=_list_of("global_batch_size"), metavar="N,...", help="to try"
    ),
    click.option(
        "--seeds",
        type=click.IntRange(min=1),
        default=1,
        metavar="N",
        help="runs of each recipe; the gate judges it by all of them",
    ),
    click.option("--on-workers", is_flag=True, help="send the stages to workers (PREFECT_API_URL)"),
    click.option("--device-queue", metavar="POOL/QUEUE", help="for training and prediction"),
)


@click.group(help="Try several recipes as ordinary runs, and keep the best by held-out examples, never by --dev.")
def command() -> None:
    pass


class _Kinds(finetune.Kinds):
    def command_of(self, kind: str) -> click.Command:
        @finetune.verb_of(kind)
        @options.together(LISTS, finetune.COMMON)
        @click.pass_context
        def run(ctx: click.Context, **stated: Any) -> None:
            _carry_out(ctx, kind, stated)

        found: click.Command = run
        return found


@command.group("finetune", cls=_Kinds, help="Recipes of podium finetune; what takes several values is apart by commas.")
def _finetune() -> None:
    pass


def _carry_out(ctx: click.Context, kind: str, stated: dict[str, Any]) -> None:
    from flows.commands.sweeps import NEVER, SEED, Sweep, carry_out, require_held_out
    from flows.runs.stopping import Interrupted, stop

    project = entered(ctx)
    grid = {name: stated[name] for name in finetune.HYPERPARAMETERS if stated.get(name)}
    said = stated | dict.fromkeys(finetune.HYPERPARAMETERS)
    overrides = finetune.overrides_of(ctx, project, kind, said)
    values = resolve({}, finetune.PRESET, overrides)
    (entry,) = values["downstream"]
    require_held_out(values, entry)
    tuning = values["downstream"][entry]["finetune"]
    if tuning["evaluate_every_updates"] is None:
        tuning["evaluate_every_updates"] = NEVER
        overrides.append(Setting(f"downstream.{entry}.finetune.evaluate_every_updates", NEVER))
    if stated["seeds"] > 1:
        grid[SEED] = [tuning["seed"] + number for number in range(stated["seeds"])]
    check(values, "the parameters")
    words = tuple(map(str, overrides))
    name = stated["name"] or "sweep-" + hashlib.sha256(json.dumps([words, grid]).encode()).hexdigest()[:8]
    queue = ["--device-queue", stated["device_queue"]] if stated["device_queue"] else []
    more = ("--verbose",) if stated["verbose"] else ()
    sent = ("--on-workers", *queue) if stated["on_workers"] else ()
    sweep = Sweep(name, entry, finetune.PRESET, words, grid, more, sent)
    with stop.listening():
        try:
            found = carry_out(sweep, project, _aside if stated["json_wanted"] else streams.say_line)
        except Interrupted:
            _aside(f"ended by {stop.reason()}; the same command goes on from there")
            raise SystemExit(stop.exit_code()) from None
    _tell(found, stated["json_wanted"])


def _aside(text: str) -> None:
    streams.note(text, "")


def _tell(found: dict[str, Any], json_wanted: bool) -> None:
    from tasks.params.tables import table

    names = [name for name in found["recipes"][0] if name not in ("seeds", "mean", "deviation")]
    heads = (*(name.replace("_", " ") for name in names), "seeds", f"held-out {found['judged_by']}")
    rows = [(*(f"{one[name]:g}" for name in names), str(one["seeds"]), _spread(one)) for one in found["recipes"]]
    text = "\n" + table([heads, *rows]) + "".join(f"{line}\n" for line in found["verdict"])
    options.answer(json_wanted, found, text, f"podium runs show {found['best']}")


def _spread(recipe: dict[str, Any]) -> str:
    shown = f"{recipe['mean']:.4f}"
    return shown if recipe["deviation"] is None else f"{shown} ± {recipe['deviation']:.4f}"
