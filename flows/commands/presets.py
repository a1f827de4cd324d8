"""`podium presets`: the recipes there are."""

from __future__ import annotations

import click

from flows.commands import options, params
from flows.commands.project import entered
from tasks.params import tables as parameters
from tasks.params.overlays import Preset, preset_names, read_preset
from tasks.stage import artifacts

SCORES = ("f1", "accuracy", "phase2_mlm_accuracy", "phase1_mlm_accuracy")
"""The figure a list of presets shows: the first there is."""


@click.group(help="Recipes that lie over the defaults; podium run --preset NAME runs one.", invoke_without_command=True)
@click.pass_context
def command(ctx: click.Context) -> None:
    if ctx.invoked_subcommand is None:
        ctx.invoke(listed)


@command.command("list", help="Every preset; QUERY keeps those whose name, source or description holds it.")
@click.argument("query", default="")
@options.as_json
@click.pass_context
def listed(ctx: click.Context, query: str = "", json_wanted: bool = False) -> None:
    entered(ctx)
    every = [read_preset(name) for name in preset_names()]
    wanted = query.lower()
    found = [one for one in every if wanted in " ".join((one.name, one.head.description, *one.head.source)).lower()]
    values = [{"name": one.name, **one.head.model_dump(exclude_none=True)} for one in found]
    rows = [(one.name, _score(one), " ".join(one.head.description.split())) for one in found]
    heads = ("preset", "published", "what it is")
    text = options.narrow(parameters.table([heads, *rows])) if rows else f"no preset speaks of {query!r}\n"
    options.answer(json_wanted, values, text, "podium presets show NAME, or podium run --preset NAME")


def _score(preset: Preset) -> str:
    """What the source of a preset published of the last thing it trains."""
    figures = preset.head.expected.published()
    return next((f"{name} {figures[name]:g}" for name in SCORES if name in figures), "-")


@command.command(help="What a preset is, where it was taken from, and what it sets.")
@click.argument("name", shell_complete=options.complete_presets)
@options.as_json
@click.pass_context
def show(ctx: click.Context, name: str, json_wanted: bool) -> None:
    entered(ctx)
    found = read_preset(name)
    values = {"name": name, **found.head.model_dump(exclude_none=True), "values": found.values}
    text = (artifacts.PRESETS / f"{name}.yaml").read_text(encoding="utf-8")
    after = f"podium params show --preset {name} for all that results, or podium run --preset {name}"
    options.answer(json_wanted, values, text, after)


command.add_command(params.diff)
