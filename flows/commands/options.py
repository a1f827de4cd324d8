"""Shared options of commands, their shell completion, and printing of results."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin

import click
from click.core import ParameterSource

from flows.commands.project import find_project
from flows.runs.run_options import CPU_QUEUE
from flows.runs.stage_plan import ALL
from tasks.params.strict_yaml import leaves
from tasks.stage import streams
from tasks.stage.artifacts import CHECKOUTS, EXPORT_FILES

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

    from tasks.params.sections import Section

Decorator = Callable[[Any], Any]
FILE = click.Path(path_type=Path)
"""Type of options that name a file or folder."""
READING = (
    "quoting",
    "labels",
    "label_form",
    "label_separator",
    "missing_labels",
    "missing_texts",
    "similar_labels",
    "misplaced_answers",
    "unanswerable",
)
"""Parameters of section `data` of an entry that say what files mean; each is an option where a kind has it."""


def combine_options(*decorators: Decorator) -> Decorator:
    """Combine several options into one decorator."""

    def decorate(function: Any) -> Any:
        for decorator in reversed(decorators):
            function = decorator(function)
        return function

    return decorate


Complete = Callable[[click.Context, click.Parameter, str], list[str]]


def complete_names(names_in: Callable[[Path, click.Context], Iterable[str]]) -> Complete:
    """Return a completion function over the names in a project. `names_in` also gets the context of the command."""

    def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
        project = find_project(Path.cwd(), above=True)
        return [] if project is None else [name for name in names_in(project, ctx) if name.startswith(incomplete)]

    return complete


def _list_presets(project: Path, ctx: click.Context) -> list[str]:
    return sorted(path.stem for path in (project / "presets").glob("*.yaml"))


def _list_settings(project: Path, ctx: click.Context) -> list[str]:
    """Return the names of parameters followed by `=`, of the preset if one was given."""
    from tasks.params.overlays import read_base, resolve

    said = ctx.params.get("preset")
    preset = said if said in _list_presets(project, ctx) else None
    return [f"{name}=" for name, _ in leaves(resolve(read_base(preset, project), preset, [], project / "presets"))]


def _list_stages(project: Path, ctx: click.Context) -> Iterable[str]:
    from tasks.plan.plan_file import read_plan

    return read_plan(project)


complete_presets = complete_names(_list_presets)
complete_runs = complete_names(lambda project, ctx: sorted(path.name for path in (project / CHECKOUTS).glob("*/")))
complete_sides = complete_names(lambda project, ctx: [*_list_presets(project, ctx), "demo"])


parameter_options = combine_options(
    click.option(
        "--preset", shell_complete=complete_presets, help="preset from presets/*.yaml (podium params presets)"
    ),
    click.option(
        "--set",
        "overrides",
        multiple=True,
        metavar="SECTION.KEY=VALUE",
        shell_complete=complete_names(_list_settings),
        help="set a parameter of this run; repeatable (podium params list)",
    ),
)
"""Options with the arguments `preset` and `overrides`."""


def _refuse_empty(ctx: click.Context, param: click.Parameter, name: str | None) -> str | None:
    """Refuse an empty name, which is no name in a form; `choose_folder` checks all others."""
    from flows.runs.checkout import check_name

    return check_name(name) if name == "" else name


name_option = click.option(
    "--name",
    metavar="NAME",
    callback=_refuse_empty,
    shell_complete=complete_runs,
    help="name of the run; reuse a name to resume its run (podium runs)",
)
stage_options = combine_options(
    click.option(
        "--part",
        default=ALL,
        show_default=True,
        help="part of the pipeline: pretraining, finetuning (the rest), or another part named in dvc.yaml",
    ),
    click.option(
        "--to",
        multiple=True,
        metavar="STAGE",
        shell_complete=complete_names(_list_stages),
        help="run only this stage and those it needs, without publishing; repeatable (podium plan)",
    ),
)
"""Options with the arguments `part` and `to`."""


def _require_workers(ctx: click.Context, param: click.Parameter, queue: str | None) -> str | None:
    """Refuse a queue that the run would not use."""
    explicit = ctx.get_parameter_source(str(param.name)) is ParameterSource.COMMANDLINE
    if explicit and not ctx.params["on_workers"]:
        raise click.UsageError(f"{param.opts[0]} needs --on-workers: add it, or leave out the queue", ctx)
    return queue


workers_option = click.option(
    "--on-workers", is_flag=True, is_eager=True, help="send the stages to workers (PREFECT_API_URL)"
)
device_queue_option = click.option(
    "--device-queue", callback=_require_workers, metavar="POOL/QUEUE", help="queue for training and prediction"
)
cpu_queue_option = click.option(
    "--cpu-queue",
    callback=_require_workers,
    default=CPU_QUEUE,
    show_default=True,
    metavar="POOL/QUEUE",
    help="queue for all other stages",
)


def _split_formats(ctx: click.Context, param: click.Parameter, value: str | None) -> list[str]:
    formats = list(dict.fromkeys(part.strip() for part in (value or "").split(",") if part.strip()))
    if unknown := [name for name in formats if name not in EXPORT_FILES]:
        raise click.BadParameter(
            f"{unknown[0]!r} is not a format; valid: {', '.join(EXPORT_FILES)}, separated by commas"
        )
    return formats


export_option = click.option(
    "--export", metavar="FORMATS", callback=_split_formats, help="also export the model: onnx, int8, or onnx,int8"
)
force_option = click.option(
    "--force", is_flag=True, help="run device jobs even if they are not expected to fit into memory (podium plan)"
)
verbose_option = click.option("--verbose", is_flag=True, help="also show the output of the stages")
json_option = click.option("--json", "as_json", is_flag=True, help="print JSON only")
"""Option with the argument `as_json`: standard output is then JSON only."""


def warn_unread_params(project: Path, preset: str | None) -> None:
    """Note that a run of a preset ignores params.yaml, if git shows it as edited."""
    from tasks.plan.code_state import run_git

    if preset is not None and run_git(project, "status", "--porcelain", "--untracked-files=no", "--", "params.yaml"):
        text = f"edits in params.yaml are ignored: preset {preset} extends the defaults; pass changes with --set"
        streams.note(text)


def number_parser(field: FieldInfo) -> Callable[[str], Any]:
    """Return a function that parses a number within the bounds of a parameter's type."""

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


def parameter_option(section: type[Section], name: str, word: str | None = None, **how: Any) -> Decorator:
    """Return an option for a parameter, with type, bounds and description from the schema.

    Args:
        section: section of params.yaml.
        name: name of the parameter, and of the argument.
        word: name of the option, if it differs.
        how: arguments for click that extend or replace those from the schema.
    """
    from tasks.params.documentation import read_field_meanings

    field, meaning = section.model_fields[name], read_field_meanings(section)[name].rstrip(".")
    if isinstance(field.default, str):
        meaning += f"  [default: {field.default}]"
    arguments: dict[str, Any] = {"help": meaning[0].lower() + meaning[1:]}
    if get_origin(field.annotation) is Literal:
        arguments["type"] = click.Choice(get_args(field.annotation))
    elif "list[" in str(field.annotation):
        arguments |= {"type": parse_names, "metavar": "A,B,..."}
    elif field.annotation in (int, float):
        arguments |= {"type": number_parser(field), "metavar": "N"}
    elif field.annotation is bool:
        arguments["is_flag"] = True
    return click.option(f"--{(word or name).replace('_', '-')}", name, **{**arguments, **how})


def reading_options(*sections: type[Section]) -> Iterator[Decorator]:
    """Yield an option for each parameter of READING that one of these sections has."""
    for name in READING:
        if section := next((section for section in sections if name in section.model_fields), None):
            yield parameter_option(section, name)


def parse_names(text: str) -> list[str]:
    """Parse names between commas."""
    return [name.strip() for name in text.split(",")]


def parse_column(text: str) -> tuple[str, str]:
    """Parse PART=NAME."""
    part, sign, name = text.partition("=")
    if not (part and sign and name):
        raise click.BadParameter(f"{text!r} must be PART=NAME, such as context=text")
    return part, name


def column_option(what: str) -> Decorator:
    """Return the option --column with the argument `columns`, pairs of a part and its column."""
    how: dict[str, Any] = {"multiple": True, "type": parse_column, "metavar": "PART=NAME"}
    return click.option("--column", "columns", **how, help=f"column of {what}; repeatable")


def join_columns(columns: Iterable[tuple[str, str]]) -> dict[str, str | list[str]]:
    """Return part -> its column, or its columns if --column names several."""
    named: dict[str, list[str]] = {}
    for part, name in columns:
        named.setdefault(part, []).append(name)
    return {part: names if len(names) > 1 else names[0] for part, names in named.items()}


class ListByDefault(click.Group):
    """Command group whose default command is `list`, so that `podium runs WORD` works."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        known = [*self.commands, *ctx.help_option_names]
        return super().parse_args(ctx, args if args and args[0] in known else ["list", *args])


def print_result(as_json: bool, values: Any, text: str, after: str) -> None:
    """Print the result of a command: as JSON, or as text followed by the next useful step."""
    if as_json:
        print_json(values)
        return
    streams.say(text)
    print_next(after)


def print_json(values: Any) -> None:
    """Print values as JSON. Control characters, and characters outside the output's encoding, are escaped (\\u00e9)."""
    has_all = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
    text = json.dumps(values, ensure_ascii=not has_all, indent=2)
    plain = "".join(char if char.isprintable() or char in "\n\xa0" else json.dumps(char)[1:-1] for char in text)
    sys.stdout.write(f"{plain}\n")


def print_next(text: str) -> None:
    """Print the next useful step to standard error, so that standard output has only the result."""
    sys.stdout.flush()  # if both go to one file, the result comes first
    streams.note(text, streams.NEXT)


def truncate_lines(text: str) -> str:
    """Truncate lines to the width of the terminal; return them unchanged if standard output is not a terminal."""
    if not sys.stdout.isatty():
        return text
    width = shutil.get_terminal_size().columns
    lines = (line if len(line) <= width else line[: width - 1].rstrip() + "…" for line in text.splitlines())
    return "".join(f"{line}\n" for line in lines)
