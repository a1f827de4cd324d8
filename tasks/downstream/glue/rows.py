"""Stage glue_rows@TASK: the examples of a GLUE task as packed rows, a folder for each split.

    python -m tasks.downstream.glue.rows sst2

A sequence is [CLS] sentence [SEP], or [CLS] first [SEP] second [SEP]. One that is too long loses tokens at the end of
the longer sentence first, as the `longest_first` of Hugging Face's tokenizers does. Examples are read and packed in
chunks of a fixed number, so memory does not grow with them.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from tasks.downstream.glue.tasks import TASKS, GlueTask, glue_task
from tasks.project import artifacts
from tasks.project.errors import InputError
from tasks.project.main import run_main
from tasks.project.param_inputs import RowsParams
from tasks.project.params import load_params, packed
from tasks.project.process import item
from tasks.project.row_folders import Manifest
from tasks.reading.parquet import read_batches
from tasks.rows.packing import pack
from tasks.rows.row_files import IGNORED, Layout, RowWriter, check_geometry, from_arrow, ranges
from tasks.vocabulary.encoding import encode, load_tokenizer, read_vocabulary, tokenizer_file

if TYPE_CHECKING:
    from tokenizers import Tokenizer

CHUNK_EXAMPLES = 65536
"""Examples packed among themselves; another number gives other rows, so it is no parameter."""
COLUMNS = ("first", "second", "label")


@dataclass(frozen=True)
class GlueSequences:
    """N examples as token ids."""

    token_ids: np.ndarray
    """uint16 or uint32[T], special tokens included, one sequence after the other."""
    lengths: np.ndarray
    """int64[N], sum T."""
    second_starts: np.ndarray
    """int64[N] first token of the second sentence; the length where there is none."""
    shortened: int
    """Sequences that lost tokens."""


@dataclass(frozen=True)
class SplitRows:
    """What was made of a split."""

    manifest: Manifest
    shortened: int


def keep_longest_first(first: np.ndarray, second: np.ndarray, room: int) -> tuple[np.ndarray, np.ndarray]:
    """Tokens that both sentences keep, int64[N] each: one token at a time is taken from the longer one.

    keep_longest_first([9], [3], 8) == ([5], [3]); of two long ones the second keeps the odd token, as in Hugging Face's
    tokenizers (src/utils/truncation.rs).
    """
    shorter, longer = np.minimum(first, second), np.maximum(first, second)
    kept = np.where(shorter > room, shorter, np.maximum(shorter, room - shorter))
    both = shorter + kept > room
    short, long = np.where(both, room // 2, shorter), np.where(both, room // 2 + room % 2, np.minimum(longer, kept))
    fits = first + second <= room
    swapped = first > second
    return (
        np.where(fits, first, np.where(swapped, long, short)),
        np.where(fits, second, np.where(swapped, short, long)),
    )


def make_sequences(
    tokenizer: Tokenizer, firsts: list[str], seconds: list[str] | None, row_length: int
) -> GlueSequences:
    """Sequences of single sentences, or of pairs, of at most `row_length` tokens."""
    vocabulary = read_vocabulary(tokenizer)
    one = encode(tokenizer, firsts)
    if seconds is None:
        kept, others = np.minimum(one.lengths, row_length - 2), np.zeros(len(firsts), dtype=np.int64)
        shortened = int((kept < one.lengths).sum())
    else:
        two = encode(tokenizer, seconds)
        kept, others = keep_longest_first(one.lengths, two.lengths, row_length - 3)
        shortened = int((kept + others < one.lengths + two.lengths).sum())
    second_starts = kept + 2
    lengths = second_starts if seconds is None else second_starts + others + 1
    starts = np.cumsum(lengths) - lengths
    token_ids = np.full(int(lengths.sum()), vocabulary.sep, dtype=vocabulary.dtype)
    token_ids[starts] = vocabulary.cls
    token_ids[ranges(starts + 1, kept)] = one.token_ids[ranges(one.starts, kept)]
    if seconds is not None:
        token_ids[ranges(starts + second_starts, others)] = two.token_ids[ranges(two.starts, others)]
    return GlueSequences(token_ids, lengths, second_starts, shortened)


def write_split(task: GlueTask, params: RowsParams, source: Path, tokenizer_folder: Path, folder: Path) -> SplitRows:
    """Write the rows of one split into the existing `folder`.

    Raises:
        InputError: examples or tokenizer missing or unusable, or no example.
    """
    tokenizer = load_tokenizer(tokenizer_folder)
    kind = "sequence_regression" if task.is_regression else "sequence_classification"
    size = read_vocabulary(tokenizer).size
    shortened = done = 0
    with RowWriter(
        folder, kind, params.row_length, params.max_sequences_per_row, 0, size, num_labels=len(task.labels)
    ) as writer:
        for chunk in _chunks(source):
            sequences = _sequences(task, tokenizer, chunk, params.row_length)
            writer.write(_columns(task, params, sequences, chunk, done))
            shortened, done = shortened + sequences.shortened, done + len(chunk)
        if not done:
            raise InputError(f"{source} holds no example, at least one is required: see glue.path")
        return SplitRows(writer.finish(artifacts.sha256_of(tokenizer_file(tokenizer_folder)), seed=0), shortened)


def _chunks(source: Path) -> Iterator[pa.Table]:
    """Tables of CHUNK_EXAMPLES examples, the last one of what is left, wherever the file's row groups end."""
    waiting: list[pa.RecordBatch] = []
    for batch in read_batches(source, COLUMNS, CHUNK_EXAMPLES, "glue_data"):
        waiting.append(batch)
        while sum(map(len, waiting)) >= CHUNK_EXAMPLES:
            table = pa.Table.from_batches(waiting)
            yield table.slice(0, CHUNK_EXAMPLES)
            waiting = table.slice(CHUNK_EXAMPLES).to_batches()
    if sum(map(len, waiting)):
        yield pa.Table.from_batches(waiting)


def _sequences(task: GlueTask, tokenizer: Tokenizer, chunk: pa.Table, row_length: int) -> GlueSequences:
    seconds = chunk.column("second").to_pylist() if len(task.columns) > 1 else None
    return make_sequences(tokenizer, chunk.column("first").to_pylist(), seconds, row_length)


def _columns(
    task: GlueTask, params: RowsParams, sequences: GlueSequences, chunk: pa.Table, first: int
) -> dict[str, np.ndarray]:
    """The columns of rows with a label for each sequence; `first` is the number of the chunk's first example."""
    packs = pack(sequences.lengths, params.row_length, params.max_sequences_per_row)
    layout = Layout.of(packs, sequences.lengths, params.row_length)
    columns = layout.columns(sequences.token_ids, sequences.second_starts)
    labels = from_arrow(chunk.column("label").combine_chunks())
    name = "targets" if task.is_regression else "class_labels"
    columns[name] = layout.per_sequence(labels, IGNORED).astype(labels.dtype)
    columns["feature_ids"] = np.where(packs >= 0, packs + first, packs).astype(np.int32)
    return columns


def write_glue_rows(
    task: GlueTask,
    params: RowsParams,
    examples: Path,
    folder: Path,
    tokenizer: Path = artifacts.TOKENIZER,
) -> dict[str, SplitRows]:
    """Write the rows of all splits of `task` into `folder`, whole or not at all.

    Raises:
        InputError: see `write_split`; or rows that the schema cannot hold.
    """
    check_geometry(params.row_length, params.max_sequences_per_row, 0, "glue_rows")
    made = {}
    with artifacts.new_folder(folder) as partial:
        for split in task.splits:
            (partial / split).mkdir()
            made[split] = write_split(task, params, examples / f"{split}.parquet", tokenizer, partial / split)
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description="Make the packed rows of a GLUE task.")
    parser.add_argument("task", type=item, choices=sorted(TASKS))
    task = glue_task(parser.parse_args().task)
    started_at, params = time.perf_counter(), load_params()
    rows = packed(params.glue_rows, params.packing)
    made = write_glue_rows(task, rows, artifacts.glue_folder(task.name), artifacts.glue_rows_folder(task.name))
    for split, rows_of in made.items():
        manifest = rows_of.manifest
        print(
            f"glue-{task.name} {split}: {manifest.rows:,} rows of {manifest.row_length} with {manifest.sequences:,} "
            f"examples ({manifest.packing_factor:.2f} a row, {manifest.packing_efficiency:.1%} real tokens), "
            f"{rows_of.shortened:,} shortened to fit"
        )
    print(f"glue-{task.name} rows: {time.perf_counter() - started_at:.1f} s")


if __name__ == "__main__":
    run_main(main)
