"""`podium data show`: show training examples as the model sees them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from flows.commands import options
from flows.commands.project import enter_project
from tasks.rows.row_files import ABSENT, IGNORED
from tasks.stage import artifacts
from tasks.stage.errors import InputError
from tasks.stage.row_folders import MANIFEST, Manifest, read_manifest
from tasks.vocabulary.encoding import load_tokenizer

if TYPE_CHECKING:
    from tokenizers import Tokenizer


UNLABELLED = ("input_ids", "token_type_ids", "position_ids", "sequence_ids", "cls_positions", "feature_ids")
"""Columns that are not labels."""


def first_sequences(
    rows: Path, tokenizer: Path, count: int, labels: Sequence[str] = (), made_by: str = ""
) -> Iterator[dict[str, Any]]:
    """Return the first sequences of a row folder, in the order of its rows.

    Args:
        rows: the folder.
        tokenizer: folder of the tokenizer of these rows.
        count: maximum number of sequences.
        labels: names of the classes, in order of their numbers; empty: numbers are shown.
        made_by: the stage that writes the rows, for messages.

    Returns:
        For each sequence: row and slot, text with special tokens, ids, labels by column (those that enter a loss),
        and its window number if its example has several windows.

    Raises:
        InputError: the rows or the tokenizer are missing or damaged.
    """
    if not (rows / MANIFEST).is_file():
        raise InputError(f"{rows} has no rows. Create them first (podium run --to {made_by})")
    manifest, encoder = read_manifest(rows), load_tokenizer(tokenizer)
    windows = _windows(rows / artifacts.FEATURES)
    return itertools.islice(_sequences(rows, manifest, encoder, labels, windows), count)


def _sequences(
    rows: Path, manifest: Manifest, tokenizer: Tokenizer, labels: Sequence[str], windows: np.ndarray | None
) -> Iterator[dict[str, Any]]:
    row = 0
    for name in manifest.files:
        with pa.memory_map(str(rows / name)) as source:
            reader = pa.ipc.open_file(source)
            for number in range(reader.num_record_batches):
                for columns in reader.get_batch(number).to_pylist():
                    for slot, start in enumerate(columns["cls_positions"]):
                        if start != ABSENT:
                            yield _sequence(row, slot, start, columns, tokenizer, labels, windows)
                    row += 1


def _sequence(
    row: int,
    slot: int,
    start: int,
    columns: dict[str, list[Any]],
    tokenizer: Tokenizer,
    labels: Sequence[str],
    windows: np.ndarray | None,
) -> dict[str, Any]:
    length = columns["sequence_ids"].count(slot + 1)
    ids = columns["input_ids"][start : start + length]
    found: dict[str, Any] = {"row": row, "slot": slot, "tokens": length, "text": _text(tokenizer, ids), "ids": ids}
    feature = columns.get("feature_ids", [ABSENT] * (slot + 1))[slot]
    if feature != ABSENT:
        found["feature"] = feature
        if windows is not None and windows[1][feature] > 1:
            found["window"] = {"number": int(windows[0][feature]) + 1, "of": int(windows[1][feature])}
    found["labels"] = dict(_labels(columns, slot, start, length, tokenizer, labels))
    return found


def _text(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    return str(tokenizer.decode(list(ids), skip_special_tokens=False))


def _labels(
    columns: dict[str, list[Any]], slot: int, start: int, length: int, tokenizer: Tokenizer, labels: Sequence[str]
) -> Iterator[tuple[str, Any]]:
    """Yield the name of each label column with its values for this sequence, as class names and tokens if possible."""
    ids = columns["input_ids"]
    for name, values in columns.items():
        if name in UNLABELLED or name == "masked_labels":
            continue
        if name == "masked_positions":
            pairs = zip(values, columns["masked_labels"], strict=True)
            own = [(at, to) for at, to in pairs if to != IGNORED and start <= at < start + length]
            yield "masked", [f"{at - start}: {_token(tokenizer, ids[at])} -> {_token(tokenizer, to)}" for at, to in own]
        elif len(values) == len(ids):  # one per token
            own = [(at, values[at]) for at in range(start, start + length) if values[at] != IGNORED]
            yield name, [f"{at - start}: {_token(tokenizer, ids[at])} -> {_name(value, labels)}" for at, value in own]
        elif values[slot] != IGNORED:
            at = values[slot]
            yield (
                name,
                f"{at - start}: {_token(tokenizer, ids[at])}" if name.endswith("_positions") else _name(at, labels),
            )
    if columns.get("start_positions", [IGNORED] * (slot + 1))[slot] != IGNORED:
        first, last = columns["start_positions"][slot], columns["end_positions"][slot]
        yield "answer", _text(tokenizer, ids[first : last + 1])


def _token(tokenizer: Tokenizer, number: int) -> str:
    return tokenizer.id_to_token(number) or f"id {number}"


def _name(value: float, labels: Sequence[str]) -> str:
    return labels[value] if isinstance(value, int) and value < len(labels) else f"{value:g}"


def _windows(features: Path) -> np.ndarray | None:
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
    "an entry of downstream, phase1 or phase2. The rows are those of the project folder, or of --run.",
)
@click.argument("name")
@click.option("-n", "count", type=click.IntRange(min=1), default=5, show_default=True, help="number of sequences")
@click.option("--split", default="train", show_default=True, help="train, or a development set of the entry")
@click.option("--run", "run", metavar="NAME", help="run whose rows to show (podium runs)")
@options.json_option
@click.pass_context
def show_sequences(ctx: click.Context, name: str, count: int, split: str, run: str | None, as_json: bool) -> None:
    from flows.runs.checkout import checkout_folder
    from tasks.params.entries import find_entry
    from tasks.params.schema import PHASES, load_params
    from tasks.plan.kinds import load_spec
    from tasks.stage import artifacts
    from tasks.stage.errors import ParamsError

    project = enter_project(ctx)
    root = project if run is None else checkout_folder(project, run)
    if not (root / artifacts.PARAMS).is_file():
        raise ParamsError(f"run {run} not found in {root.parent}: podium runs lists the runs")
    labels, rows, stage = [], root / artifacts.rows_folder(name), f"pretrain_rows@{name}"
    if name not in PHASES:
        task = load_spec(find_entry(load_params(root / artifacts.PARAMS), name))
        if split not in task.splits:
            raise ParamsError(f"--split {split} not found: {name} has {', '.join(task.splits)}")
        rows, stage = task.rows_folder(split, root), task.entry.stage("rows")
        labels = list(task.labels_of(rows)) if rows.is_dir() else []
    found = list(first_sequences(rows, root / artifacts.TOKENIZER, count, labels, stage))
    options.print_result(as_json, found, "\n".join(map(_lines, found)), "--split dev, -n 20 and --json show more")


def _lines(one: dict[str, Any]) -> str:
    from tasks.pages.markup import replace_hidden

    window = one.get("window")
    cut = f", window {window['number']} of {window['of']} of its example" if window else ""
    lines = [f"row {one['row']}, sequence {one['slot'] + 1}: {one['tokens']} tokens{cut}"]
    lines += [f"  text    {replace_hidden(one['text'])}", f"  ids     {' '.join(map(str, one['ids']))}"]
    for name, said in one["labels"].items():
        words = ", ".join(said) if isinstance(said, list) else said
        lines.append(f"  {name}  {replace_hidden(words)}")
    return "\n".join(lines) + "\n"
