"""`podium finetune KIND`: fine-tune an existing encoder on your own file.

Sizes, dropout and tokenizer come from the model. Other parameters default to BERT's for the kind. No corpus is read.
The run is one of `--preset finetune` with an entry of `downstream`, in a checkout under runs/checkouts.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from flows.commands import options
from flows.commands.options import Decorator, combine_options
from flows.commands.project import CommandContext, enter_project, resolve_path
from flows.runs.run_options import RunOptions
from tasks.downstream.kind import KINDS
from tasks.params.downstream import EntryParams, data_params, defaults_of, kind_names, kind_params
from tasks.params.overlays import Setting, complete_names, make_settings, resolve
from tasks.params.sections import HUB_NAME, LINE, DeviceParams
from tasks.stage import streams
from tasks.stage.errors import ParamsError

PRESET = "finetune"
HYPERPARAMETERS = {
    "learning_rate": "learning-rate",
    "epochs": "epochs",
    "global_batch_size": "batch-size",
    "seed": "seed",
}
"""Parameter in an entry's section `finetune` -> its option on the command line."""
SOURCES = {
    **dict.fromkeys(("data.train_path", "data.path", "data.dataset"), "train"),
    **dict.fromkeys(("base_model.path", "base_model.repository"), "model"),
    "data.dev_path": "dev",
    "corpus.path": "text",
    **dict.fromkeys(("distill.teacher", "distill.repository", "distill.name"), "distill"),
}
"""Section and key of a parameter -> argument that sets it; other arguments have the name of their parameter."""
dev_options = combine_options(
    click.option("--dev", metavar="FILE", help="evaluation data; default: a part of --train"),
    options.column_option("a table that holds PART (text, label, ...)"),
)
common_options = combine_options(
    options.parameter_option(DeviceParams, "runtime"),
    options.parameter_option(DeviceParams, "precision"),
    click.option(
        "--set", "overrides", multiple=True, metavar="SECTION.KEY=VALUE", help="any other parameter; repeatable"
    ),
    options.name_option,
    options.json_option,
    options.verbose_option,
)

save_options = combine_options(
    click.option("--save-params", type=options.FILE, metavar="FILE", help="save these parameters as a preset"),
    click.option("--plan", is_flag=True, help="only show the stages, time and memory of the run"),
    options.workers_option,
    options.force_option,
)


class KindCommands(click.Group):
    """Command group with one command per kind of downstream task."""

    item = "kind"
    """Name of its commands in messages."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return kind_names()

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        return self.make_command(name) if name in self.list_commands(ctx) else None

    def make_command(self, kind: str) -> click.Command:
        """Return the command for one kind."""
        section: Any = kind_params(kind).model_fields["finetune"].annotation
        hyperparameters = (options.parameter_option(section, name, word) for name, word in HYPERPARAMETERS.items())

        @kind_command(kind)
        @combine_options(*hyperparameters, options.export_option, common_options, save_options)
        @click.pass_context
        def run(ctx: click.Context, **args: Any) -> None:
            project = enter_project(ctx)
            run_preset(ctx, project, PRESET, build_overrides(ctx, project, kind, args), args)

        return run


@click.group(
    cls=KindCommands,
    help="Fine-tune an existing encoder on your own file and evaluate it on another. KIND is the kind of task.",
    subcommand_metavar="KIND --model DIR|NAME --train FILE [--dev FILE] ...",
)
def command() -> None:
    pass


def kind_command(kind: str) -> Decorator:
    """Return a decorator that makes the command of a kind, with options for model and data."""
    return combine_options(
        click.command(kind, help=kind_params(kind).about),
        *_kind_options(kind),
        click.option(
            "--model",
            metavar="DIR|RUN|NAME",
            help="model folder, run of podium pretrain, or Hub repository; default: the teacher of --distill",
        ),
        click.option("--distill", metavar="DIR|RUN|NAME", help="teacher: finished model whose logits are learned too"),
        click.option("--layers", type=click.IntRange(min=1), help="keep N layers of the model, copied evenly"),
        click.option("--train", required=True, metavar="FILE|NAME", help="training data, or a Hub data set"),
        dev_options,
    )


def _kind_options(kind: str) -> Iterator[Decorator]:
    """Yield an option for each parameter of a kind outside its sections, and for those that say how data are read."""
    params = kind_params(kind)
    for name, field in params.model_fields.items():
        if name not in EntryParams.model_fields:
            yield options.parameter_option(params, name, required=field.is_required())
    yield from options.reading_options(data_params(kind))


def run_preset(
    ctx: click.Context, project: Path, preset: str, overrides: list[str | Setting], args: Mapping[str, Any]
) -> None:
    """Run the parameters of a command line, and save them as a preset if requested."""
    from flows.checks import preflight
    from flows.commands import plan, run
    from flows.runs.run_params import save_preset
    from flows.runs.run_request import resolve_request
    from tasks.estimates.job_estimates import EstimateOptions

    chosen = {option: args[option] for option in ("name", "on_workers", "force")}
    request = resolve_request(project, RunOptions(preset, overrides, **chosen))
    if args["save_params"] is not None:
        save_preset(resolve_path(ctx, args["save_params"]), request.values, f"Saved by {ctx.command_path}.")
    if args["plan"]:
        measured, notes = EstimateOptions(measured=request.target), preflight.require_readable_files(request)
        plan.show_plan(request, args["as_json"], None, measured, again="the same command without --plan", notes=notes)
    else:
        run.execute_run(request, args["as_json"], args["verbose"])


def build_overrides(ctx: click.Context, project: Path, kind: str, args: Mapping[str, Any]) -> list[str | Setting]:
    """Return the overrides of a command line. Those of `--set` come last and replace defaults.

    Raises:
        InputError, ParamsError: the model or a file is missing or invalid.
    """
    from flows.runs.model_source import (
        add_prefix_space,
        base_folder,
        model_parameters,
        start_from_teacher,
        teacher_parameters,
    )

    source, base = args["model"] or args["distill"], resolve_path(ctx, Path())
    if source is None:
        raise ParamsError("option --model is missing. Pass a model, or --distill TEACHER to start from the teacher")
    teacher = {} if args["distill"] is None else teacher_parameters(args["distill"], base, project)
    model = model_parameters(source, base, project) if args["model"] else start_from_teacher(teacher, project)
    if kind_params(kind).reads_words:
        model |= add_prefix_space(model, project)
    entry = entry_parameters(ctx, project, kind, args, release_name(source))
    name, spec = next(iter(entry.items()))
    start = KINDS[kind].read_start(base_folder(model, project))
    values = model | device_parameters(args) | entry
    values |= {f"{name}.{key}": value for key, value in start.items() if key not in spec} | fit_rows(kind, name, model)
    if args["layers"] is not None:
        values[f"{name}.distill.layers"] = args["layers"]
    values |= {f"{name}.distill.{key}": value for key, value in teacher.items()}
    if teacher:
        values[f"{name}.distill.name"] = card_name(args["distill"])
    if model["base_model.source"] == "folder":
        values["publish.base_name"] = card_name(source)
    settings = mark_options(ctx, values, args)
    return [*settings, *complete_names(args["overrides"], resolve({}, PRESET, settings))]


def mark_options(ctx: click.Context, values: Mapping[str, Any], args: Mapping[str, Any]) -> list[Setting]:
    """Return parameters as settings that name the option that set them, so that `--set` cannot contradict it."""
    from flows.runs.run_params import format_parameter

    words = {param.name: param.opts[0] for param in ctx.command.params}
    columns = {f"columns.{part}": f"--column {part}={name}" for part, name in args["columns"]}

    def find_option(name: str) -> str:
        short = ".".join(name.split(".")[-2:])
        argument = SOURCES.get(short, short.rpartition(".")[2])
        if short in columns or args.get(argument) is None:
            return columns.get(short, "")
        return f"{words[argument]} {format_parameter(args[argument])}"

    fields = (
        (name, key, single)
        for name, value in values.items()
        if isinstance(value, dict)
        for key, single in value.items()
    )
    return make_settings(values, {name: find_option(name) for name in values}) + [
        Setting(f"{name}.{key}", single, f"--{key} {single}")
        for name, key, single in fields
        if key != "kind" and args.get(key)
    ]


def parse_form(project: Path, form: RunOptions) -> RunOptions:
    """Return a form with preset and overrides for its fields, parsed as the options of the command line.

    Raises:
        InputError, ParamsError: a field is missing or invalid.
    """
    fields = {"task": form.task, "model": form.model, "train": form.train, "dev": form.dev, "name": form.name}
    words = [f"--{name}={text}" for name, text in fields.items() if text is not None]
    words += [f"--column={text}" for text in form.columns] + [f"--set={text}" for text in form.overrides]
    context = CommandContext(project, project, None)
    try:
        ctx = KindCommands().make_command(form.kind).make_context(form.kind, words, obj=context)
    except click.UsageError as error:
        raise ParamsError(error.format_message()) from None
    return replace(form, preset=PRESET, overrides=build_overrides(ctx, project, form.kind, ctx.params))


def fit_rows(kind: str, entry: str, model: Mapping[str, Any]) -> dict[str, Any]:
    """Return shorter rows for a model with fewer positions than the kind's default, and note them; else nothing.

    Args:
        kind: kind of the entry.
        entry: its dotted name.
        model: the parameters of the model.
    """
    from tasks.downstream.inference.entry import limit_rows

    positions = model["model.max_positions"]
    if defaults_of(kind, entry)["rows"]["row_length"] <= positions:
        return {}
    return note_rows(positions, {f"{entry}.rows.{key}": value for key, value in limit_rows(kind, positions).items()})


def note_rows(positions: int, rows: dict[str, Any]) -> dict[str, Any]:
    """Note settings of rows that a model with few positions requires, and return them."""
    shown = ", ".join(f"{key}={value}" for key, value in rows.items())
    streams.note(f"the model has only {positions} positions: set {shown} (change with --set)")
    return rows


def device_parameters(args: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of the options --runtime and --precision."""
    return {f"device.{name}": args[name] for name in ("runtime", "precision") if args[name] is not None}


def release_name(name: str) -> str:
    """Return the last part of the name of a model or file, in characters that suit a folder."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", Path(name.partition("@")[0]).resolve().stem) or "model"


def card_name(path: str) -> str | None:
    """Return the name of a file, a folder or a run for the model card; None if a card cannot show it."""
    name = Path(path).name
    return name if re.fullmatch(LINE, name) else None


def entry_parameters(
    ctx: click.Context, project: Path, kind: str, args: Mapping[str, Any], released: str
) -> dict[str, Any]:
    """Return the parameters of a new entry of `downstream`, by dotted name. The first is the entry itself.

    Its gate has no floors: you fine-tune to see the scores first.

    Args:
        ctx: context of the command.
        project: project folder.
        kind: kind of the entry.
        args: options of the command line.
        released: prefix of the release folder, if the run has no name.

    Raises:
        ParamsError: the kind is unknown, a file is missing, or options contradict each other.
    """
    try:
        params = kind_params(kind)
    except ValueError as error:
        raise ParamsError(str(error)) from None
    own_names = [name for name in params.model_fields if name not in EntryParams.model_fields]
    kind_values = {name: args[name] for name in own_names if args.get(name) is not None}
    name = "-".join([kind, *(value for value in kind_values.values() if isinstance(value, str))])
    data, gate = (params.model_fields[section].annotation for section in ("data", "gate"))
    columns = options.join_columns(args["columns"])
    path = resolve_path(ctx, Path(args["train"]))
    values = KINDS[kind].recipe_for(path, {**kind_values, "columns": columns})
    values |= {f"data.{key}": value for key, value in _pick_data(ctx, project, data, args)}
    values |= {f"data.columns.{part}": name for part, name in columns.items()}
    values |= {f"data.{key}": args[key] for key in options.READING if args.get(key) is not None}
    values |= {f"finetune.{key}": args[key] for key in HYPERPARAMETERS if args.get(key) is not None}
    if args.get("export"):
        values["export.formats"] = args["export"]
    values |= {f"gate.{key}": None for key in getattr(gate, "model_fields", ()) if key.startswith("min_")}
    values["publish.folder"] = f"published/{args.get('name') or f'{released}-{name}'}"
    if values["data.source"] == "files":
        values["publish.data_name"] = card_name(args["dev"] or args["train"])
    entry = f"downstream.{name}"
    return {entry: {"kind": kind, **kind_values}, **{f"{entry}.{key}": value for key, value in values.items()}}


def _pick_data(ctx: click.Context, project: Path, section: Any, args: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    from flows.runs.model_source import project_path

    train = args["train"]
    if not resolve_path(ctx, Path(train)).exists() and train.count("/") == 1 and HUB_NAME.fullmatch(train):
        if args["dev"] is not None:
            raise ParamsError(f"--train {train} is a Hub data set with its own splits: leave out --dev")
        yield from (("source", "hub"), ("dataset", train))
        return
    yield "source", "files"
    files: dict[str, str | None] = {"train": None, "dev": None}
    for key in files:
        if args[key] is not None:
            path = resolve_path(ctx, Path(args[key]))
            if not path.exists():
                raise ParamsError(f"--{key} {args[key]} not found: pass a file or folder")
            files[key] = project_path(path, project)
    if "train_path" in section.model_fields:
        yield from (("train_path", files["train"]), ("dev_path", files["dev"]))
    elif args["dev"] is not None:
        raise ParamsError(f"--dev {args['dev']}: --train is a folder with both splits here; leave out --dev")
    else:
        yield "path", files["train"]
