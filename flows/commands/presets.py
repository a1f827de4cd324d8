"""`podium params presets`: list and show presets."""

import re

import click

from flows.commands import options
from flows.commands.project import enter_project
from tasks.params import tables as parameters
from tasks.params.overlays import Preset, list_preset_names, read_preset
from tasks.stage import artifacts

SCORES = ("f1", "accuracy")
"""Published scores of fine-tuning, which the list prefers to those of pre-training."""


@click.group("presets", cls=options.ListByDefault, help="List and show presets. podium run --preset NAME runs one.")
def command() -> None:
    pass


@command.command("list", help="List presets. QUERY filters by name, source and description.")
@click.argument("query", default="")
@options.json_option
@click.pass_context
def list_presets(ctx: click.Context, query: str = "", as_json: bool = False) -> None:
    enter_project(ctx)
    every = [read_preset(name) for name in list_preset_names()]
    wanted = query.lower()
    presets = [
        preset
        for preset in every
        if wanted in " ".join((preset.name, preset.head.description, *preset.head.source)).lower()
    ]
    values = [{"name": preset.name, **preset.head.model_dump(exclude_none=True)} for preset in presets]
    rows = [(preset.name, _device(preset), _score(preset), _summarize(preset)) for preset in presets]
    heads = ("preset", "device", "published", "description")
    text = options.truncate_lines(parameters.format_table([heads, *rows])) if rows else f"no preset matches {query!r}\n"
    options.print_result(as_json, values, text, "podium params presets show NAME, or podium run --preset NAME")


def _device(preset: Preset) -> str:
    """Return the kind of device that the preset sets, or `any`."""
    return str(preset.values.get("device", {}).get("runtime", "any"))


def _summarize(preset: Preset) -> str:
    """Return the first clause of the description."""
    return re.split(r"[.:;] | \(", " ".join(preset.head.description.split()).rstrip("."), maxsplit=1)[0]


def _score(preset: Preset) -> str:
    """Return the score that the preset's source published for its last training."""
    figures = preset.head.expected
    masked = sorted(name for name in figures if name.endswith("_mlm_accuracy"))
    return next((f"{name} {figures[name]:g}" for name in (*SCORES, *reversed(masked)) if name in figures), "-")


@command.command("show", help="Show a preset: its description, source and values.")
@click.argument("name", shell_complete=options.complete_presets)
@options.json_option
@click.pass_context
def show_preset(ctx: click.Context, name: str, as_json: bool) -> None:
    enter_project(ctx)
    preset = read_preset(name)
    values = {"name": name, **preset.head.model_dump(exclude_none=True), "values": preset.values}
    text = (artifacts.PRESETS / f"{name}.yaml").read_text(encoding="utf-8")
    after = f"podium params show --preset {name} shows all resolved parameters; podium run --preset {name} runs it"
    options.print_result(as_json, values, text, after)
