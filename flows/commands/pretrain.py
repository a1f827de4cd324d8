"""`podium pretrain`: pre-train an encoder on your own text, from scratch or from an existing model."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from flows.commands import finetune, options
from flows.commands.project import enter_project, resolve_path
from tasks.params.entries import BASE
from tasks.params.overlays import Setting, read_setting
from tasks.params.schema import NEXT_SENTENCE_FAMILY
from tasks.params.sections import DEFAULT_PHASES as PHASES
from tasks.params.sections import PhaseParams, PretrainRowsParams
from tasks.stage.errors import ParamsError

PRESET = "bert"
ENTRY = "downstream.squad"
"""Entry of that preset, which --finetune replaces."""
FIRST_PHASE_SHARE = 0.9
"""Share of the updates on short sequences, as the README of google-research/bert recommends."""
CONTINUE_DEFAULTS = {"learning_rate": 2e-5, "steps": 100_000}
"""Values that README recommends for further pre-training of an existing model on your own text."""

source_options = options.combine_options(
    click.option("--text", required=True, metavar="FILE", help="text file or folder (docs/inputs.md)"),
    click.option("--model", metavar="DIR|NAME", help="encoder to continue from: a model folder or a Hub repository"),
    click.option("--steps", type=click.IntRange(min=10), metavar="N", help="updates of all phases (BERT: 1,000,000)"),
)


@click.command(
    help="Pre-train an encoder on your own text, in two phases. Without --model, train BERT from scratch with a "
    "vocabulary built from the text; with it, continue from that model and its vocabulary. With --finetune KIND "
    "--train FILE, fine-tune the result."
)
@source_options
@options.parameter_option(PhaseParams, "learning_rate", help="learning rate of all phases")
@options.parameter_option(PhaseParams, "global_batch_size", "batch-size", help="sequences per update, in all phases")
@click.option("--finetune", "kind", metavar="KIND", help="then fine-tune for this kind (podium finetune --help)")
@click.option("--train", metavar="FILE|NAME", help="training data for fine-tuning, or a Hub data set")
@finetune.dev_options
@click.option("--task", metavar="NAME", help="task, if the kind has several")
@finetune.common_options
@finetune.save_options
@click.pass_context
def command(ctx: click.Context, **args: Any) -> None:
    if (args["kind"] is None) != (args["train"] is None):
        raise click.UsageError("--finetune KIND and --train FILE go together", ctx)
    if args["kind"] is None and (alone := [name for name in ("dev", "columns", "task") if args[name]]):
        raise click.UsageError(
            f"--{alone[0].removesuffix('s')} is for fine-tuning: add --finetune KIND --train FILE", ctx
        )
    project = enter_project(ctx)
    finetune.run_preset(ctx, project, PRESET, build_overrides(ctx, project, args), args)


def split_steps(steps: int, phases: Sequence[str]) -> dict[str, int]:
    """Return the updates of each phase: most for the first, the others share the rest."""
    first = round(steps * FIRST_PHASE_SHARE) if len(phases) > 1 else steps
    each, left = divmod(steps - first, max(1, len(phases) - 1))
    others = [each + (number < left) for number in range(len(phases) - 1)]
    return {f"pretrain.{phase}.steps": count for phase, count in zip(phases, (first, *others), strict=True)}


def _find_phases(overrides: Sequence[str]) -> list[str]:
    """Return the phases that `--set` names, or else those of BERT.

    Raises:
        ParamsError: they switch pre-training off.
    """
    said = {setting.name: setting.value for setting in map(read_setting, overrides)}
    if said.get("pretrain.enabled") is False:
        raise ParamsError(
            "pretrain.enabled=false leaves nothing to pre-train: podium finetune trains on examples alone"
        )
    named = said.get("pretrain.phases")
    return named if isinstance(named, list) and named and all(isinstance(item, str) for item in named) else [*PHASES]


def add_original(entry: dict[str, Any]) -> dict[str, Any]:
    """Return the parameters of an entry, whose dotted name is the first key, and of the same fine-tuning of the model
    before its pre-training, which it is compared with."""
    name = next(iter(entry))
    original = f"{name}-original"
    same = {original + key.removeprefix(name): value for key, value in entry.items()}
    same |= {f"{original}.start": BASE, f"{original}.publish.folder": f"{entry[f'{name}.publish.folder']}-original"}
    return {**entry, f"{name}.against": original.rpartition(".")[2], **same}


def build_overrides(ctx: click.Context, project: Path, args: dict[str, Any]) -> list[str | Setting]:
    """Return the overrides of a command line. Those of `--set` come last and replace defaults.

    Raises:
        InputError, ParamsError: the model or a file is missing or invalid.
    """
    from flows.runs.model_source import model_parameters, project_path

    text = resolve_path(ctx, Path(args["text"]))
    if not text.exists():
        raise ParamsError(f"--text {args['text']} not found: pass a text file or folder")
    model = model_parameters(args["model"], resolve_path(ctx, Path()), project) if args["model"] is not None else {}
    defaults = CONTINUE_DEFAULTS if model else {}
    phases = _find_phases(args["overrides"])
    said = {name: args[name] or defaults.get(name) for name in ("steps", "learning_rate")}
    values = {"corpus.source": "files", "corpus.path": project_path(text, project), **finetune.device_parameters(args)}
    if said["steps"] is not None:
        values |= split_steps(int(said["steps"]), phases)
    for name, value in (("learning_rate", said["learning_rate"]), ("global_batch_size", args["global_batch_size"])):
        values |= {f"pretrain.{phase}.{name}": value for phase in phases if value is not None}
    if model.get("model.family", NEXT_SENTENCE_FAMILY) != NEXT_SENTENCE_FAMILY:
        values["pretrain_rows.next_sentence"] = False
    entry: dict[str, Any] = {}
    overrides = list(args["overrides"])
    if args["kind"] is not None:
        released = finetune.release_name(args["model"] or args["text"])
        entry = finetune.entry_parameters(ctx, project, args["kind"], args, released)
        if model:
            name = next(iter(entry))
            entry |= finetune.fit_rows(args["kind"], name, model)
            overrides += [
                f"{name}-original{text.removeprefix(name)}" for text in overrides if text.startswith(f"{name}.")
            ]
            entry = add_original(entry)
    if positions := model.get("model.max_positions"):
        lengths = {phase: getattr(PretrainRowsParams(), phase).row_length for phase in PHASES}
        long = {f"pretrain_rows.{phase}.row_length": positions for phase in PHASES if lengths[phase] > positions}
        values |= finetune.note_rows(positions, long) if long else {}
    # Remove the preset's entry first: the new entry may have the same name.
    below = finetune.mark_options(ctx, model | values | {ENTRY: None}, args)
    return [*below, *finetune.mark_options(ctx, entry, args), *overrides]
