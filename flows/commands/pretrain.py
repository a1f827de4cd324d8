"""`podium pretrain`: BERT's pre-training on one's own text, from fresh weights or on from a given model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from flows.commands import finetune, options
from flows.commands.project import entered, given
from tasks.params.overlays import Setting, settings
from tasks.params.schema import PHASES
from tasks.params.sections import PhaseParams, PretrainRowsParams
from tasks.stage import streams
from tasks.stage.errors import ParamsError

PRESET = "bert"
ENTRY = "downstream.squad"
"""What that preset fine-tunes for, unless something else is asked for."""
FIRST_PHASE = 0.9
"""The share of the updates that are made on short sequences, as the README of google-research/bert advises."""
GOING_ON = {"learning_rate": 2e-5, "steps": 100_000}
"""What that README advises for more pre-training of a model that there is, on text of one's own."""


@click.command(
    help="Pre-train BERT on your own text, in two phases: a new one, with a vocabulary made of the text, or on from "
    "--model with its own. With --finetune KIND --train FILE the result is fine-tuned, too."
)
@click.option("--text", required=True, metavar="FILE", help="text: a file or a folder (docs/inputs.md)")
@click.option("--model", metavar="DIR|NAME", help="goes on from this BERT: a model's folder, or a Hub repository")
@click.option("--steps", type=click.IntRange(min=10), metavar="N", help="updates of both phases; BERT's: 1,000,000")
@options.of_parameter(PhaseParams, "learning_rate", help="of both phases")
@options.of_parameter(
    PhaseParams, "global_batch_size", "batch-size", help="sequences behind one update, in both phases"
)
@click.option("--finetune", "kind", metavar="KIND", help="then fine-tune for this (podium finetune --help)")
@click.option("--train", metavar="FILE|NAME", help="what fine-tuning learns from, or a Hub data set")
@finetune.DEV
@click.option("--task", metavar="NAME", help="the task, where the kind has several")
@finetune.COMMON
@finetune.SAVE
@click.pass_context
def command(ctx: click.Context, **stated: Any) -> None:
    if (stated["kind"] is None) != (stated["train"] is None):
        raise click.UsageError("--finetune KIND and --train FILE go together", ctx)
    project = entered(ctx)
    finetune.carry_out(ctx, project, PRESET, overrides_of(ctx, project, stated), stated)


def overrides_of(ctx: click.Context, project: Path, stated: dict[str, Any]) -> list[str | Setting]:
    """Return the overrides that the command line states; those of `--set` come last, so that they win.

    Raises:
        InputError, ParamsError: the model or a file is not there or none.
    """
    from flows.runs.given_model import model_values, stated_path

    text = given(ctx, Path(stated["text"]))
    if not text.exists():
        raise ParamsError(f"--text {stated['text']} is not there: name a file or folder of text")
    model = model_values(stated["model"], given(ctx, Path()), project) if stated["model"] is not None else {}
    defaults = GOING_ON if model else {}
    said = {name: stated[name] or defaults.get(name) for name in ("steps", "learning_rate")}
    values = {"corpus.source": "files", "corpus.path": stated_path(text, project), **finetune.device_values(stated)}
    if said["steps"] is not None:
        first = round(said["steps"] * FIRST_PHASE)
        values |= {"pretrain.phase1.steps": first, "pretrain.phase2.steps": said["steps"] - first}
    for name, value in (("learning_rate", said["learning_rate"]), ("global_batch_size", stated["global_batch_size"])):
        values |= {f"pretrain.{phase}.{name}": value for phase in PHASES if value is not None}
    entry: dict[str, Any] = {}
    if stated["kind"] is not None:
        released = finetune.released_as(stated["model"] or stated["text"])
        entry = finetune.entry_values(ctx, project, stated["kind"], stated, released)
        entry |= finetune.row_values(stated["kind"], next(iter(entry)), model) if model else {}
    # What the preset fine-tunes for goes first: the entry that is asked for may have its name.
    below = settings(model | values | _row_lengths(model) | {ENTRY: None})
    return [*below, *settings(entry), *stated["overrides"]]


def _row_lengths(model: Mapping[str, Any]) -> dict[str, Any]:
    """Return the row lengths of the phases whose rows are longer by default than a given model takes, and say so."""
    positions = model.get("model.max_positions")
    default = PretrainRowsParams()
    found = {
        f"pretrain_rows.{phase}.row_length": positions
        for phase in PHASES
        if positions is not None and getattr(default, phase).row_length > positions
    }
    if found:
        keys = " and ".join(found)
        streams.note(f"the model has {positions} positions, so rows are no longer: {keys} {positions} (--set ...)")
    return found
