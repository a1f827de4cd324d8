"""Questions to packed rows of features, and features.parquet beside them.

    python -m tasks.downstream.squad.rows train|dev

Questions are read in chunks of a fixed number; a chunk's features are packed among themselves, so
memory does not grow with the questions and the rows do not depend on how many processes share the work.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tasks.downstream.squad.features import Features, Spans, find_answers, make_features
from tasks.downstream.squad.question_chunks import CHUNK_QUESTIONS, COLUMNS, read_questions, split_questions
from tasks.project import artifacts
from tasks.project.errors import InputError
from tasks.project.main import run_main
from tasks.project.parallel import Progress, ordered_map, useful_workers
from tasks.project.params import SquadRowsParams, load_params, packed
from tasks.project.row_folders import HELD_OUT, Manifest
from tasks.reading.parquet import size_of
from tasks.rows.packing import pack
from tasks.rows.row_files import ABSENT, IGNORED, Layout, RowWriter, check_geometry, from_arrow, to_arrow
from tasks.vocabulary.encoding import load_tokenizer, read_vocabulary, tokenizer_file

SPLITS = ("train", "dev")
KIND = "question_answering"
CHUNKS_FOR_PROCESSES = 24
"""From here on more processes pay. A chunk takes 0.12 s, of which writing (0.03 s) stays with one process:
87,599 questions (22 chunks) take 2.9 s in one process, 2.6 s with two more on two cores."""
FEATURES_SCHEMA = pa.schema(
    [
        pa.field("feature_id", pa.int32(), nullable=False),
        pa.field("example_id", pa.string(), nullable=False),
        pa.field("example_index", pa.int32(), nullable=False),
        pa.field("n_tokens", pa.int32(), nullable=False),
        pa.field("context_start", pa.int32(), nullable=False),
        pa.field("offsets", pa.list_(pa.int32()), nullable=False),
    ]
)
"""One line per feature: its example's id and line, its tokens, where the context begins among them, and
the characters (start, end, start, end, ...) of its context tokens."""
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ChunkRows:
    """Rows of one chunk; feature and example numbers count within the chunk."""

    columns: dict[str, np.ndarray]
    features: Features
    example_ids: pa.StringArray
    answered: int
    """Features that hold the whole answer."""


@dataclass(frozen=True)
class RowsSummary:
    """What was made, for the stage's last line; all but `held_out` is of the rows to train on or to answer."""

    manifest: Manifest
    questions: int
    features: int
    answered: int
    elapsed_s: float
    held_out: RowsSummary | None = None


class _FeatureRowWriter:
    """Writes rows and features.parquet together, numbering features and examples on from chunk to chunk."""

    def __init__(self, folder: Path, row_length: int, max_sequences: int, vocab_size: int) -> None:
        self.rows = RowWriter(folder, KIND, row_length, max_sequences, 0, vocab_size)
        self.table = pq.ParquetWriter(folder / artifacts.FEATURES, FEATURES_SCHEMA)
        self.features = self.examples = 0

    def __enter__(self) -> _FeatureRowWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.table.close()
        self.rows.__exit__(kind, error, trace)

    def write(self, columns: dict[str, np.ndarray], features: Features, example_ids: pa.StringArray) -> None:
        """Append a chunk."""
        ids = columns["feature_ids"]
        self.rows.write({**columns, "feature_ids": np.where(ids == ABSENT, ABSENT, ids + self.features)})
        self.table.write_table(self._table(features, example_ids))
        self.features += len(features)
        self.examples += len(example_ids)

    def _table(self, features: Features, example_ids: pa.StringArray) -> pa.Table:
        borders = np.concatenate([[0], np.cumsum(2 * features.context_lengths)])
        columns: list[Any] = [
            np.arange(len(features)) + self.features,
            example_ids.take(to_arrow(features.example_index)),
            features.example_index + self.examples,
            features.lengths,
            features.context_starts,
            pa.ListArray.from_arrays(to_arrow(borders.astype(np.int32)), to_arrow(features.offsets.reshape(-1))),
        ]
        arrays = [
            to_arrow(column).cast(field.type) if isinstance(column, np.ndarray) else column
            for column, field in zip(columns, FEATURES_SCHEMA, strict=True)
        ]
        return pa.Table.from_arrays(arrays, schema=FEATURES_SCHEMA)


def write_rows(
    folder: Path,
    features: Features,
    example_ids: Sequence[str],
    *,
    row_length: int,
    max_sequences: int,
    vocab_size: int,
    tokenizer_sha256: str,
    spans: Spans | None = None,
) -> Manifest:
    """Write `features` as a row folder with its features.parquet, whole or not at all.

    Args:
        example_ids: id of every example that features.example_index counts.
        spans: answers to train on; None leaves the label slots empty (-100).

    Raises:
        InputError: no features, or rows out of range of the schema.
    """
    check_geometry(row_length, max_sequences, 0, "squad_rows")
    if not len(features):
        raise InputError("there is no question to make rows of: at least one is required")
    with (
        artifacts.new_folder(folder) as partial,
        _FeatureRowWriter(partial, row_length, max_sequences, vocab_size) as writer,
    ):
        columns = feature_columns(features, spans, row_length, max_sequences)
        writer.write(columns, features, pa.array(example_ids, pa.string()))
        return writer.rows.finish(tokenizer_sha256, seed=0)


def feature_columns(
    features: Features, spans: Spans | None, row_length: int, max_sequences: int
) -> dict[str, np.ndarray]:
    """The columns of `question_answering` rows that hold all features, packed; feature_ids count from 0."""
    layout = Layout.of(pack(features.lengths, row_length, max_sequences), features.lengths, row_length)
    columns = layout.columns(features.token_ids, features.context_starts)
    for name, values in (
        ("start_positions", None if spans is None else spans.starts),
        ("end_positions", None if spans is None else spans.ends),
    ):
        absolute = np.full(len(features), IGNORED) if values is None else values + layout.start_of
        columns[name] = layout.per_sequence(absolute, IGNORED).astype(np.int16)
    columns["feature_ids"] = layout.packs.astype(np.int32)
    return columns


def write_squad_rows(
    params: SquadRowsParams,
    split: str,
    questions: Path | None = None,
    tokenizer: Path = artifacts.TOKENIZER,
    folder: Path | None = None,
    workers: int | None = None,
) -> RowsSummary:
    """Write the rows of `split` ("train": with answers, "dev": without) into `folder`, whole or not at all.

    Args:
        questions: Parquet file; default data/questions/<split>.parquet.
        workers: processes; None: what pays, at most PODIUM_WORKERS. The rows do not depend on it.

    Raises:
        InputError: questions or tokenizer missing or unusable, no question at all, a question that
            leaves the context no room, rows out of range of the schema.
    """
    check_geometry(params.row_length, params.max_sequences_per_row, 0, "squad_rows")
    source = questions or artifacts.QUESTIONS / f"{split}.parquet"
    total = size_of(source, COLUMNS, "questions").rows
    if workers is None:
        workers = useful_workers(-(-total // CHUNK_QUESTIONS), CHUNKS_FOR_PROCESSES)
    progress = Progress(f"squad-{split} rows", "questions", total)
    make = functools.partial(make_chunk_rows, params, split, Path(tokenizer))
    parts = split_questions(source, params.held_out_fraction) if split == "train" else None
    with artifacts.new_folder(folder or artifacts.rows_folder(f"squad-{split}")) as partial:
        side = None if parts is None else parts.training
        chunks = ordered_map(make, read_questions(source, side), workers)
        made = _write(partial, params, tokenizer, chunks, progress)
        if not made.questions:
            raise InputError(f"{source} holds no question, at least one is required: see questions.{split}_path")
        if parts is None:
            return made
        (partial / HELD_OUT).mkdir()
        kept = _write(
            partial / HELD_OUT, params, tokenizer, map(make, read_questions(source, parts.held_out)), progress
        )
    return dataclasses.replace(made, held_out=kept)


def _write(
    folder: Path, params: SquadRowsParams, tokenizer: Path, chunks: Iterable[ChunkRows], progress: Progress
) -> RowsSummary:
    """Fill a row folder."""
    answered = 0
    vocabulary = read_vocabulary(load_tokenizer(tokenizer))
    with _FeatureRowWriter(folder, params.row_length, params.max_sequences_per_row, vocabulary.size) as writer:
        for made in chunks:
            writer.write(made.columns, made.features, made.example_ids)
            answered += made.answered
            progress.update(writer.examples, f", {writer.features} features")
        manifest = writer.rows.finish(artifacts.sha256_of(tokenizer_file(tokenizer)), seed=0)
    return RowsSummary(manifest, writer.examples, writer.features, answered, progress.elapsed_s)


def make_chunk_rows(
    params: SquadRowsParams, split: str, tokenizer_folder: Path, questions: pa.RecordBatch
) -> ChunkRows:
    """Features and rows of one chunk: pure, whatever process runs it."""
    contexts = questions.column("context")
    features = make_features(
        load_tokenizer(tokenizer_folder),
        questions.column("question").to_pylist(),
        contexts.dictionary.to_pylist(),
        params.row_length,
        params.doc_stride,
        params.max_question_length,
        from_arrow(contexts.indices),
    )
    spans = find_answers(features, *_first_answers(questions.column("answers"))) if split == "train" else None
    columns = feature_columns(features, spans, params.row_length, params.max_sequences_per_row)
    answered = 0 if spans is None else int((spans.starts > 0).sum())
    return ChunkRows(columns, features, questions.column("id"), answered)


def _first_answers(answers: pa.ListArray) -> tuple[np.ndarray, np.ndarray]:
    """Characters [E] where the first answer of every question begins and ends; -1 for none."""
    none = to_arrow(np.zeros(len(answers), np.int32))
    counts = from_arrow(pc.coalesce(answers.value_lengths(), none))
    flat = answers.flatten()  # without what stands under a null
    starts, ends = np.full(len(answers), -1), np.full(len(answers), -1)
    first = (np.cumsum(counts) - counts)[counts > 0]
    starts[counts > 0] = from_arrow(flat.field("answer_start"))[first]
    ends[counts > 0] = starts[counts > 0] + from_arrow(pc.utf8_length(flat.field("text")))[first]
    return starts, ends


def main() -> None:
    parser = argparse.ArgumentParser(description="Make the packed feature rows of the questions.")
    parser.add_argument("split", choices=SPLITS)
    split = parser.parse_args().split
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    params = load_params()
    made = write_squad_rows(packed(params.squad_rows, params.packing), split)
    rows = made.manifest
    answers = f", {made.answered} holding their answer" if split == "train" else ""
    kept = f"; {made.held_out.questions} questions held out" if made.held_out else ""
    print(
        f"squad-{split}: {rows.rows} rows of {rows.row_length} with {made.features} features"
        f"{answers} of {made.questions} questions ({rows.packing_factor:.2f} a row, "
        f"{rows.packing_efficiency:.1%} real tokens){kept}; {made.elapsed_s:.1f} s"
    )


if __name__ == "__main__":
    run_main(main)
