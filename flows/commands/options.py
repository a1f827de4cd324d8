"""Options that several commands have, what they complete, and how commands print."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin

import click

from flows.commands.project import find_project
from flows.runs.stage_plan import ALL
from tasks.params.strict_yaml import leaves
from tasks.stage import streams

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

    from tasks.params.sections import Section

Decorator = Callable[[Any], Any]


def together(*decorators: Decorator) -> Decorator:
    """Options that several verbs have, as one decorator."""

    def decorate(function: Any) -> Any:
        for one in reversed(decorators):
            function = one(function)
        return function

    return decorate


Complete = Callable[[click.Context, click.Parameter, str], list[str]]


def complete_from(names_in: Callable[[Path, click.Context], Iterable[str]]) -> Complete:
    """Return how a shell completes one of the names that a project has; `names_in` may ask what was typed before."""

    def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
        project = find_project(Path.cwd(), above=True)
        return [] if project is None else [name for name in names_in(project, ctx) if name.startswith(incomplete)]

    return complete


def _presets(project: Path, ctx: click.Context) -> list[str]:
    return sorted(path.stem for path in (project / "presets").glob("*.yaml"))


def _settings(project: Path, ctx: click.Context) -> list[str]:
    """Names of parameters with `=` behind them, of the preset where one was said."""
    from tasks.params.overlays import base_of, resolve

    said = ctx.params.get("preset")
    preset = said if said in _presets(project, ctx) else None
    return [f"{name}=" for name, _ in leaves(resolve(base_of(preset, project), preset, [], project / "presets"))]


def _stages(project: Path, ctx: click.Context) -> Iterable[str]:
    from tasks.plan.plan_file import read_plan

    return read_plan(project)


def _runs(project: Path, ctx: click.Context) -> list[str]:
    from flows.runs.checkout import own_folder

    return sorted(path.name for path in own_folder(project, "").glob("*/"))


complete_presets, complete_runs = complete_from(_presets), complete_from(_runs)
complete_sides = complete_from(lambda project, ctx: [*_presets(project, ctx), "demo"])


parameters = together(
    click.option("--preset", shell_complete=complete_presets, help="one of presets/*.yaml (podium presets)"),
    click.option(
        "--set",
        "overrides",
        multiple=True,
        metavar="SECTION.KEY=VALUE",
        shell_complete=complete_from(_settings),
        help="one parameter of this run, repeatable (podium params list)",
    ),
)
"""As arguments `preset` and `overrides`."""
run_name = click.option(
    "--name",
    metavar="NAME",
    shell_complete=complete_runs,
    help="what the run is called; the same name with the same parameters goes on (podium runs)",
)
stages = together(
    click.option(
        "--part",
        default=ALL,
        show_default=True,
        help="pretraining; finetuning, which is the rest; or another part that dvc.yaml names",
    ),
    click.option(
        "--to",
        multiple=True,
        metavar="STAGE",
        shell_complete=complete_from(_stages),
        help="this stage and what it needs, nothing else, and publish nothing; repeatable (podium plan)",
    ),
)
"""As arguments `part` and `to`."""
force = click.option(
    "--force", is_flag=True, help="try device jobs that are not expected to fit into their memory (podium plan)"
)
as_json = click.option("--json", "json_wanted", is_flag=True, help="JSON on standard output, for programs")
"""As the argument `json_wanted`: standard output then holds JSON and nothing else."""


def tell_unread(project: Path, preset: str | None) -> None:
    """Where params.yaml was edited, as git sees it, say that a run of a preset takes nothing of it."""
    from tasks.plan.code_state import git

    if preset is not None and git(project, "status", "--porcelain", "--untracked-files=no", "--", "params.yaml"):
        text = f"params.yaml was edited and is not read: the preset {preset} lies over the defaults; --set adds to it"
        streams.note(text)


def number_of(field: FieldInfo) -> Callable[[str], Any]:
    """Return how click reads a number within the bounds that the type of a parameter states."""

    def read(text: str) -> Any:
        from pydantic import ConfigDict, TypeAdapter, ValidationError

        kind: Any = Annotated[field.annotation, *field.metadata]
        plain: click.ParamType = click.INT if field.annotation is int else click.FLOAT
        number = plain.convert(text, None, None)
        try:
            return TypeAdapter(kind, config=ConfigDict(allow_inf_nan=False)).validate_python(number)
        except ValidationError as error:
            message = error.errors()[0]["msg"]
            raise click.BadParameter(f"{text!r}: {message[0].lower()}{message[1:]}") from None

    return read


def type_of(field: FieldInfo) -> click.ParamType | Callable[[str], Any] | None:
    """Return how click reads a parameter of params.yaml; None: as text, or it is a flag."""
    if get_origin(field.annotation) is Literal:
        return click.Choice(get_args(field.annotation))
    return number_of(field) if field.annotation in (int, float) else None


def of_parameter(section: type[Section], name: str, word: str | None = None, **how: Any) -> Decorator:
    """An option that states a parameter: its type, its bounds and what it means are those of the schema.

    Args:
        section: of params.yaml.
        name: of the parameter, which the argument is called by.
        word: what is typed, where that is not the name.
        how: what else click is told, or is told in place of what the schema says.
    """
    from tasks.params.documentation import said_of_fields

    field, meaning = section.model_fields[name], said_of_fields(section)[name].rstrip(".")
    if isinstance(field.default, str):
        meaning += f"  [default: {field.default}]"
    stated: dict[str, Any] = {"type": type_of(field), "help": meaning[0].lower() + meaning[1:]}
    if field.annotation in (int, float):
        stated["metavar"] = "N"
    if field.annotation is bool:
        stated["is_flag"] = True
    return click.option(f"--{(word or name).replace('_', '-')}", name, **{**stated, **how})


def read_column(text: str) -> tuple[str, str]:
    """Read PART=NAME."""
    part, sign, name = text.partition("=")
    if not (part and sign and name):
        raise click.BadParameter(f"{text!r} must be PART=NAME, such as context=text")
    return part, name


def answer(json_wanted: bool, values: Any, text: str, after: str) -> None:
    """Print what a command found: as JSON for programs, or for people, and then what is useful next."""
    if json_wanted:
        print_json(values)
        return
    streams.say(text)
    say_next(after)


def print_json(values: Any) -> None:
    """Values for programs, on standard output; letters that its encoding lacks, and those that a terminal would obey,
    are written as JSON does (\\u00e9)."""
    has_all = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
    text = json.dumps(values, ensure_ascii=not has_all, indent=2)
    plain = "".join(char if char.isprintable() or char in "\n\xa0" else json.dumps(char)[1:-1] for char in text)
    sys.stdout.write(f"{plain}\n")


def say_next(text: str) -> None:
    """What is useful next; on standard error, so that what was asked for stands alone."""
    sys.stdout.flush()  # where both go to one file, the answer stands first
    streams.note(text, streams.NEXT)


def narrow(text: str) -> str:
    """Lines cut to the width of the terminal; whole where standard output is none."""
    if not sys.stdout.isatty():
        return text
    width = shutil.get_terminal_size().columns
    lines = (line if len(line) <= width else line[: width - 1].rstrip() + "…" for line in text.splitlines())
    return "".join(f"{line}\n" for line in lines)
