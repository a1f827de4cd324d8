"""`podium finetune KIND`: a BERT that one has, taught with one's own file.

Sizes, dropout and tokenizer are the model's, whatever else is not stated is what BERT takes for the kind, and no
text is read: the run is that of `--preset finetune` with an entry of `downstream`, and lies under runs/checkouts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from flows.commands import options
from flows.commands.options import Decorator, together
from flows.commands.project import entered, given
from tasks.params.downstream import EntryParams, defaults_of, kind_names, kind_params
from tasks.params.overlays import Setting, settings
from tasks.params.sections import HUB_NAME, DeviceParams
from tasks.stage import streams
from tasks.stage.errors import ParamsError

PRESET = "finetune"
HYPERPARAMETERS = {
    "learning_rate": "learning-rate",
    "epochs": "epochs",
    "global_batch_size": "batch-size",
    "seed": "seed",
}
"""Parameters of an entry's section `finetune` that have words of their own, and these."""
DEV = together(
    click.option("--dev", metavar="FILE", help="what it is judged on; default: a part of --train"),
    click.option(
        "--column",
        "columns",
        multiple=True,
        type=options.read_column,
        metavar="PART=NAME",
        help="a column of a table, where it has another name",
    ),
)
COMMON = together(
    options.of_parameter(DeviceParams, "runtime"),
    options.of_parameter(DeviceParams, "precision"),
    click.option("--set", "overrides", multiple=True, metavar="SECTION.KEY=VALUE", help="any other parameter"),
    options.run_name,
    options.as_json,
    click.option("--verbose", is_flag=True, help="show what the stages print, too"),
)

SAVE = together(
    click.option("--save-params", type=click.Path(path_type=Path), metavar="FILE", help="write all this as a preset"),
    options.force,
)


class Kinds(click.Group):
    """A command for each kind of downstream task there is."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return kind_names()

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        return self.command_of(name) if name in self.list_commands(ctx) else None

    def command_of(self, kind: str) -> click.Command:
        """The command for one kind."""

        @verb_of(kind)
        @together(*_hyperparameters(kind), COMMON, SAVE)
        @click.pass_context
        def run(ctx: click.Context, **stated: Any) -> None:
            project = entered(ctx)
            carry_out(ctx, project, PRESET, overrides_of(ctx, project, kind, stated), stated)

        found: click.Command = run
        return found


@click.group(
    cls=Kinds,
    help="Fine-tune a BERT you have on your own file, and judge it on another. KIND says for what.",
    subcommand_metavar="KIND --model DIR|NAME --train FILE [--dev FILE] ...",
)
def command() -> None:
    pass


def verb_of(kind: str) -> Decorator:
    """A command called like the kind, with the words that say what is learned from what."""
    return together(
        click.command(kind, help=kind_params(kind).about),
        *_own_options(kind),
        click.option(
            "--model",
            required=True,
            metavar="DIR|RUN|NAME",
            help="a model's folder, a run of podium pretrain, or a Hub repository",
        ),
        click.option("--train", required=True, metavar="FILE|NAME", help="what it learns from, or a Hub data set"),
        DEV,
    )


def _hyperparameters(kind: str) -> Iterator[Decorator]:
    section: Any = kind_params(kind).model_fields["finetune"].annotation
    yield from (options.of_parameter(section, name, word) for name, word in HYPERPARAMETERS.items())


def _own_options(kind: str) -> Iterator[Decorator]:
    """An option for what a kind asks beside its sections, such as the name of a task."""
    params = kind_params(kind)
    for name, field in params.model_fields.items():
        if name not in EntryParams.model_fields:
            yield options.of_parameter(params, name, required=field.is_required())


def carry_out(
    ctx: click.Context, project: Path, preset: str, overrides: list[str | Setting], stated: Mapping[str, Any]
) -> None:
    """Run what a verb made of its words, and write it as a preset where that was asked for."""
    from flows.commands import run
    from flows.runs.run_params import save
    from flows.runs.run_request import resolve_request

    request = resolve_request(project, preset, overrides, name=stated["name"], force=stated["force"])
    if stated["save_params"] is not None:
        save(given(ctx, stated["save_params"]), request.values, f"Saved by {ctx.command_path}.")
    run.carry_out(request, stated["json_wanted"], stated["verbose"])


def overrides_of(ctx: click.Context, project: Path, kind: str, stated: Mapping[str, Any]) -> list[str | Setting]:
    """Return the overrides that the command line states; those of `--set` come last, so that they win.

    Raises:
        InputError, ParamsError: the model or a file is not there or none.
    """
    from flows.runs.given_model import model_values

    model = model_values(stated["model"], given(ctx, Path()), project)
    entry = entry_values(ctx, project, kind, stated, released_as(stated["model"]))
    values = model | device_values(stated) | entry | row_values(kind, next(iter(entry)), model)
    return [*settings(values), *stated["overrides"]]


def row_values(kind: str, entry: str, model: Mapping[str, Any]) -> dict[str, Any]:
    """Return rows that fit a model with fewer positions than the kind takes by default, and say so; else nothing.

    Args:
        kind: of the entry.
        entry: its dotted name.
        model: the parameters of the model.
    """
    from tasks.downstream.inference.entry import rows_within

    positions = model["model.max_positions"]
    if defaults_of(kind, entry)["rows"]["row_length"] <= positions:
        return {}
    rows = rows_within(kind, positions)
    said = ", ".join(f"{key} {value}" for key, value in rows.items())
    streams.note(f"the model has {positions} positions: {said} (--set {entry}.rows...)")
    return {f"{entry}.rows.{key}": value for key, value in rows.items()}


def device_values(stated: Mapping[str, Any]) -> dict[str, Any]:
    """Where and in which precision, as parameters by their names."""
    return {f"device.{name}": stated[name] for name in ("runtime", "precision") if stated[name] is not None}


def released_as(name: str) -> str:
    """The last word of the name of a model or file, as a folder is called."""
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", Path(name.partition("@")[0]).resolve().stem) or "model"


def entry_values(
    ctx: click.Context, project: Path, kind: str, stated: Mapping[str, Any], released: str
) -> dict[str, Any]:
    """Parameters, by their dotted names, of the entry of `downstream` that the command line asks for, itself first.

    Its gate has no floors: who fine-tunes wants to see the scores, and decides by them.

    Args:
        ctx: of the command.
        project: where the run is called.
        kind: of the entry.
        stated: the words of the command line.
        released: begins the name of the folder of the release, where the run has no name.

    Raises:
        ParamsError: no such kind, a file that is not there, or words that do not go together.
    """
    try:
        params = kind_params(kind)
    except ValueError as error:
        raise ParamsError(str(error)) from None
    own_names = [name for name in params.model_fields if name not in EntryParams.model_fields]
    own = {name: stated[name] for name in own_names if stated.get(name) is not None}
    name = "-".join([kind, *(value for value in own.values() if isinstance(value, str))])
    data, gate = (params.model_fields[section].annotation for section in ("data", "gate"))
    values = params.recipe_for(given(ctx, Path(stated["train"])))
    values |= {f"data.{key}": value for key, value in _data(ctx, project, data, stated)}
    values |= {f"finetune.{key}": stated[key] for key in HYPERPARAMETERS if stated.get(key) is not None}
    values |= {f"gate.{key}": None for key in getattr(gate, "model_fields", ()) if key.startswith("min_")}
    values["publish.folder"] = f"published/{stated.get('name') or f'{released}-{name}'}"
    entry = f"downstream.{name}"
    return {entry: {"kind": kind, **own}, **{f"{entry}.{key}": value for key, value in values.items()}}


def _data(ctx: click.Context, project: Path, section: Any, stated: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """The keys of an entry's section `data` that say what is read."""
    train = stated["train"]
    if not given(ctx, Path(train)).exists() and train.count("/") == 1 and HUB_NAME.fullmatch(train):
        if stated["dev"] is not None:
            raise ParamsError(f"--train {train} is a Hub data set with splits of its own: leave --dev out")
        yield from (("source", "hub"), ("dataset", train))
    else:
        yield "source", "files"
        yield from _files(ctx, project, section, stated)
    yield from ((f"columns.{part}", name) for part, name in stated["columns"])


def _files(ctx: click.Context, project: Path, section: Any, stated: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    from flows.runs.given_model import stated_path

    files: dict[str, str | None] = {"train": None, "dev": None}
    for key in files:
        if stated[key] is not None:
            path = given(ctx, Path(stated[key]))
            if not path.exists():
                raise ParamsError(f"--{key} {stated[key]} is not there: name a file or folder")
            files[key] = stated_path(path, project)
    if "train_path" in section.model_fields:
        yield from (("train_path", files["train"]), ("dev_path", files["dev"]))
    elif stated["dev"] is not None:
        raise ParamsError(f"--dev {stated['dev']}: --train names a folder that holds both here, leave --dev out")
    else:
        yield "path", files["train"]
