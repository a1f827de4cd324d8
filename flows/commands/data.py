"""`podium data show`: show training examples as the model sees them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from flows.commands import options
from flows.commands.project import enter_project
from flows.runs.checkout import checkout_folder
from tasks.downstream.jobs.labels import labels_of
from tasks.pages.markup import replace_hidden
from tasks.params.entries import find_entry
from tasks.params.schema import load_params
from tasks.rows.row_files import ABSENT, IGNORED
from tasks.stage import artifacts
from tasks.stage.errors import InputError, ParamsError
from tasks.stage.row_folders import MANIFEST, read_manifest
from tasks.vocabulary.encoding import load_tokenizer

if TYPE_CHECKING:
    from tokenizers import Tokenizer

UNLABELLED = ("input_ids", "token_type_ids", "position_ids", "sequence_ids", "cls_positions", "feature_ids")
"""Columns that are not labels."""
LABEL_FLAGS = "label_flags"
"""Column of texts with several labels."""


def first_sequences(
    rows: Path, tokenizer: Path, count: int, labels: Sequence[str] = (), made_by: str = ""
) -> Iterator[dict[str, Any]]:
    """Yield the first sequences of a row folder, in the order of its rows.

    Args:
        rows: the folder.
        tokenizer: folder of the tokenizer of these rows.
        count: maximum number of sequences.
        labels: names of the classes, in order of their numbers; empty: numbers are shown.
        made_by: the stage that writes the rows, for messages.

    Yields:
        For each sequence: row and slot, text with special tokens, ids, labels by column (those that enter a loss),
        and its window number if its example has several windows.

    Raises:
        InputError: the rows or the tokenizer are missing or damaged.
    """
    if not (rows / MANIFEST).is_file():
        raise InputError(f"{rows} has no rows. Create them first (podium run --to {made_by})")
    files = [rows / name for name in read_manifest(rows).files]
    encoder, windows = load_tokenizer(tokenizer), _read_windows(rows / artifacts.FEATURES)
    batches = ds.dataset(files, format="ipc").to_batches()
    every = enumerate(itertools.chain.from_iterable(batch.to_pylist() for batch in batches))
    starts = ((row, columns, slot) for row, columns in every for slot in range(len(columns["cls_positions"])))
    used = ((row, columns, slot) for row, columns, slot in starts if columns["cls_positions"][slot] != ABSENT)
    for row, columns, slot in itertools.islice(used, count):
        start, length = columns["cls_positions"][slot], columns["sequence_ids"].count(slot + 1)
        ids = columns["input_ids"][start : start + length]
        text = encoder.decode(ids, skip_special_tokens=False)
        sequence = {"row": row, "slot": slot, "tokens": length, "text": text, "ids": ids}
        if "feature_ids" in columns and (feature := columns["feature_ids"][slot]) != ABSENT:
            sequence["feature"] = feature
            if windows is not None and windows[1][feature] > 1:
                sequence["window"] = {"number": int(windows[0][feature]) + 1, "of": int(windows[1][feature])}
        yield {**sequence, "labels": dict(_read_labels(columns, slot, length, encoder, labels))}


def _read_labels(
    columns: dict[str, list[Any]], slot: int, length: int, tokenizer: Tokenizer, classes: Sequence[str]
) -> Iterator[tuple[str, Any]]:
    """Yield the name of each label column with its values for this sequence, as class names and tokens if possible."""
    ids, start = columns["input_ids"], columns["cls_positions"][slot]

    def format_token(number: int) -> str:
        return tokenizer.id_to_token(number) or f"id {number}"

    def format_position(position: int) -> str:
        return f"{position - start}: {format_token(ids[position])}"

    def format_label(value: float) -> str:
        return classes[value] if isinstance(value, int) and value < len(classes) else f"{value:g}"

    span = range(start, start + length)
    for name, values in columns.items():
        if name in UNLABELLED or name == "masked_labels":
            continue
        if name == "masked_positions":
            pairs = zip(values, columns["masked_labels"], strict=True)
            masked = [(at, to) for at, to in pairs if to != IGNORED and at in span]
            yield "masked", [f"{format_position(at)} -> {format_token(to)}" for at, to in masked]
        elif name == LABEL_FLAGS:  # one per class
            flags = np.reshape(values, (len(columns["cls_positions"]), -1))[slot]
            yield name, [format_label(int(number)) for number in np.flatnonzero(flags == 1)]
        elif len(values) == len(ids):  # one per token
            yield name, [f"{format_position(at)} -> {format_label(values[at])}" for at in span if values[at] != IGNORED]
        elif values[slot] != IGNORED:
            yield name, format_position(values[slot]) if name.endswith("_positions") else format_label(values[slot])
    if "start_positions" in columns and (first := columns["start_positions"][slot]) != IGNORED:
        last = columns["end_positions"][slot]
        yield "answer", tokenizer.decode(ids[first : last + 1], skip_special_tokens=False)


def _read_windows(features: Path) -> np.ndarray | None:
    """Return [2, N]: for each feature its window number within its example, from 0, and the number of windows.

    None without features.
    """
    if not features.is_file():
        return None
    examples = pq.read_table(features, columns=["example_index"]).column(0).to_numpy()
    _, first, count = np.unique(examples, return_index=True, return_counts=True)
    example = np.repeat(np.arange(len(first)), count)  # features of an example are consecutive
    return np.stack([np.arange(len(examples)) - first[example], count[example]])


@click.group(help="Show training examples as the model sees them.")
def command() -> None:
    pass


@command.command(
    "show",
    help="Print the first sequences of NAME: text, token ids, labels, and the window if an example was split. NAME is "
    "an entry of downstream, or a phase (pretrain.phases). The rows are those of the project folder, or of --run.",
)
@click.argument("name")
@click.option("-n", "count", type=click.IntRange(min=1), default=5, show_default=True, help="number of sequences")
@click.option("--split", default="train", show_default=True, help="train, or a development set of the entry")
@click.option("--run", "run", metavar="NAME", help="run whose rows to show (podium runs)")
@options.json_option
@click.pass_context
def show_sequences(ctx: click.Context, name: str, count: int, split: str, run: str | None, as_json: bool) -> None:
    project = enter_project(ctx)
    root = project if run is None else checkout_folder(project, run)
    if not (root / artifacts.PARAMS).is_file():
        raise ParamsError(f"run {run} not found in {root.parent}: podium runs lists the runs")
    labels, rows, stage = [], root / artifacts.rows_folder(name), f"pretrain_rows@{name}"
    params = load_params(root / artifacts.PARAMS)
    if name not in params.pretrain.phases:
        entry = find_entry(params, name)
        if split not in entry.splits:
            raise ParamsError(f"--split {split} not found: {name} has {', '.join(entry.splits)}")
        rows, stage = entry.rows_folder(split, root), entry.stage("rows")
        labels = list(labels_of(entry, rows)) if rows.is_dir() else []
    sequences = list(first_sequences(rows, root / artifacts.TOKENIZER, count, labels, stage))
    options.print_result(
        as_json, sequences, "\n".join(map(_format_sequence, sequences)), "--split dev, -n 20 and --json show more"
    )


def _format_sequence(sequence: dict[str, Any]) -> str:
    window = sequence.get("window")
    cut = f", window {window['number']} of {window['of']} of its example" if window else ""
    lines = [f"row {sequence['row']}, sequence {sequence['slot'] + 1}: {sequence['tokens']} tokens{cut}"]
    lines += [f"  text    {replace_hidden(sequence['text'])}", f"  ids     {' '.join(map(str, sequence['ids']))}"]
    for name, labels in sequence["labels"].items():
        lines.append(f"  {name}  {replace_hidden(', '.join(labels) if isinstance(labels, list) else labels)}")
    return "\n".join(lines) + "\n"
