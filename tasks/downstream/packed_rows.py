"""Conversion of examples to packed rows, one folder per split.

Examples are read in chunks of a fixed size, smaller if they are long, and each chunk is packed separately, so that
memory use is constant. A fraction of the training examples may be held out; their rows are in a subfolder of the
training rows.
"""

from __future__ import annotations

import contextlib
import os
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ipu_model.core.files import new_folder, sha256_of
from tasks.params.entries import TRAIN, Entry
from tasks.records.parquet import count_rows, read_batches
from tasks.rows.held_out import is_held_out
from tasks.rows.packing import pack_sequences
from tasks.rows.row_files import (
    ABSENT,
    CutTexts,
    Manifest,
    RowLayout,
    RowWriter,
    UnknownTokens,
    check_geometry,
    to_arrow,
)
from tasks.stage import artifacts
from tasks.stage.errors import InputError
from tasks.stage.parallel import StageProgress
from tasks.stage.row_folders import HELD_OUT
from tasks.vocabulary.encoding import find_tokenizer_file, load_tokenizer, read_tokenizer_info
from tasks.vocabulary.fast_tokenizer import BLANK_NEEDED

if TYPE_CHECKING:
    from tokenizers import Tokenizer

ExampleMask = Callable[[pa.RecordBatch], pa.Array]
"""Boolean mask of the examples to use in a batch."""
READ_AT_ONCE = 1024
"""Examples decoded from Parquet at a time."""
CHUNK_BYTES = 8 << 20
"""Size in bytes at which a chunk is full, even with few examples."""


@dataclass(frozen=True)
class HeldOutPartition:
    """Partition of the training examples; the held-out ones are evaluated during training."""

    column: str
    """Column that decides the side of an example; read in addition to the others."""
    held_out: ExampleMask

    def training(self, batch: pa.RecordBatch) -> pa.Array:
        """Return the mask of the other side."""
        return pc.invert(self.held_out(batch))


@dataclass(frozen=True)
class EncodedSequences:
    """N tokenized sequences of a chunk of examples."""

    token_ids: np.ndarray
    """uint16 or uint32, concatenated sequences with special tokens."""
    lengths: np.ndarray
    """int64[N] number of tokens."""
    second_starts: np.ndarray
    """int64[N] first position with token_type_id 1."""
    labels: Mapping[str, np.ndarray] = field(default_factory=dict)
    """Labels for `Encoder.label_columns`."""
    features: Mapping[str, np.ndarray | pa.Array] = field(default_factory=dict)
    """[N] each: columns of `Encoder.features` except feature_id; numbered within the chunk."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """Counts for the summary line, such as shortened sequences."""
    unit: int = 1
    """Sequences of an example that share a row; above 1, every row is one example."""
    whole_lengths: np.ndarray | None = None
    """int64[N] number of tokens before examples are cut; None: examples are windows, which are not cut."""


@dataclass(frozen=True)
class Encoder(ABC):
    """Conversion of examples to sequences and rows."""

    entry: Entry
    chunk: ClassVar[int]
    """Number of examples packed together. Not a parameter, because another size gives other rows."""
    columns: ClassVar[tuple[str, ...]]
    """Columns of the examples that are read."""
    hashed: ClassVar[tuple[str, ...]] = ()
    """Columns of the text that decides whether an example is held out."""

    @property
    def labels(self) -> tuple[str, ...]:
        """Classes of the examples; existing rows may belong to other examples."""
        return ()

    @property
    def features(self) -> pa.Schema | None:
        """Schema of features.parquet, including feature_id and example_index; None if sequence n is example n, so that
        no such file is needed."""
        return None

    def hashed_texts(self, examples: pa.RecordBatch) -> Iterable[str]:
        """Return the text of each example whose hash decides its side, from the columns `hashed`."""
        [column] = self.hashed
        texts: list[str] = examples.column(column).to_pylist()
        return texts

    def hold_out(self, source: Path, fraction: float) -> HeldOutPartition:
        """Partition the training examples in the file `source`, holding out about `fraction` of them.

        By default hashes of their texts decide, so that equal texts are on the same side.

        Raises:
            InputError: one side would be empty.
        """

        def held_out(batch: pa.RecordBatch) -> pa.Array:
            return pa.array([is_held_out(text, fraction, seed=0) for text in self.hashed_texts(batch)], pa.bool_())

        entry = self.entry
        batches = read_batches(source, self.hashed, READ_AT_ONCE, entry.stage("examples"))
        if {flag for batch in batches for flag in held_out(batch).to_pylist()} != {True, False}:
            raise InputError(
                f"{entry.key('rows', 'held_out_fraction')}={fraction:g} leaves no {entry.record} of {source} on one "
                f"side. Use more {entry.record}s or another fraction"
            )
        return HeldOutPartition(self.hashed[0], held_out)

    @abstractmethod
    def sequences(self, tokenizer: Tokenizer, examples: pa.RecordBatch, *, labelled: bool) -> EncodedSequences:
        """Return the sequences of a chunk, with labels for training if `labelled`; a pure function."""

    @abstractmethod
    def label_columns(self, layout: RowLayout, sequences: EncodedSequences) -> dict[str, np.ndarray]:
        """Return the label columns of the rows."""


@dataclass(frozen=True)
class PackedSplit:
    """Summary of the written rows; held-out rows are counted separately in `held_out`."""

    manifest: Manifest
    examples: int
    sequences: int
    counts: Counter[str] = field(default_factory=Counter)
    held_out: PackedSplit | None = None
    elapsed_s: float = 0.0
    unknown: UnknownTokens | None = None
    cut: CutTexts | None = None


def read_chunks(
    encoder: Encoder, source: Path, sides: HeldOutPartition | None = None, *, held_out: bool = False
) -> Iterator[pa.RecordBatch]:
    """Yield the examples in `source`, or those of one side, in chunks of at most `encoder.chunk`.

    Raises:
        InputError: the file is missing or lacks columns.
    """
    waiting: list[pa.RecordBatch] = []
    columns = dict.fromkeys((*encoder.columns, *([] if sides is None else [sides.column])))
    side = None if sides is None else sides.held_out if held_out else sides.training
    # Batches end with their row group. Chunks are cut here, so that they depend only on the examples.
    for batch in read_batches(source, tuple(columns), READ_AT_ONCE, encoder.entry.stage("examples")):
        waiting.append(batch if side is None else batch.filter(side(batch)))
        while sum(map(len, waiting)) >= encoder.chunk or sum(batch.nbytes for batch in waiting) >= CHUNK_BYTES:
            table = pa.Table.from_batches(waiting)
            yield table.slice(0, encoder.chunk).combine_chunks().to_batches()[0]
            waiting = table.slice(encoder.chunk).to_batches()
    if any(map(len, waiting)):
        yield pa.Table.from_batches(waiting).combine_chunks().to_batches()[0]


def make_lists(lengths: np.ndarray, values: np.ndarray) -> pa.ListArray:
    """Return lists of int32 from concatenated `values`."""
    borders = np.concatenate([[0], np.cumsum(lengths)])
    return pa.ListArray.from_arrays(*(to_arrow(array.astype(np.int32)) for array in (borders, values)))


def make_feature_table(schema: pa.Schema, sequences: EncodedSequences, first: int, first_example: int) -> pa.Table:
    """Return a line of features.parquet for each sequence of a chunk.

    Args:
        first: number of sequences before the chunk.
        first_example: number of examples before it.
    """
    columns = {"feature_id": np.arange(first, first + len(sequences.lengths)), **sequences.features}
    columns["example_index"] = columns["example_index"] + first_example
    arrays = [
        to_arrow(np.ascontiguousarray(column)).cast(field.type) if isinstance(column, np.ndarray) else column
        for field, column in ((field, columns[field.name]) for field in schema)
    ]
    return pa.Table.from_arrays(arrays, schema=schema)


def write_rows(
    encoder: Encoder,
    split: str,
    source: Path | None = None,
    tokenizer: Path = artifacts.TOKENIZER,
    folder: Path | None = None,
) -> PackedSplit:
    """Write the rows of a split to `folder`, completely or not at all.

    Args:
        source: the examples; default: the output of stage `examples`.
        folder: default: the folder that later stages read.

    Raises:
        InputError: examples or tokenizer missing or unusable, no examples, an example that does not fit a row, or rows
            out of range of the schema.
    """
    entry = encoder.entry
    shape = entry.rows
    check_geometry(shape.row_length, shape.max_sequences_per_row, 0, entry.key("rows"))
    source = source or entry.examples_file(split)
    total = count_rows(source, encoder.columns, entry.stage("examples"))
    progress = StageProgress(f"{entry.name}-{split} rows", f"{entry.record}s", total)
    training = split == TRAIN
    sides = encoder.hold_out(source, shape.held_out_fraction) if training and shape.held_out_fraction > 0 else None
    with new_folder(folder or entry.rows_folder(split)) as partial:
        made = _write(encoder, partial, tokenizer, read_chunks(encoder, source, sides), progress, labelled=training)
        if not made.examples:
            raise InputError(
                f"{source} contains no {entry.record}, at least one is required. Check {entry.key('data')}"
            )
        if sides is None:
            return made
        (partial / HELD_OUT).mkdir()
        held_out = read_chunks(encoder, source, sides, held_out=True)
        kept = _write(encoder, partial / HELD_OUT, tokenizer, held_out, progress, labelled=training)
    return replace(made, held_out=kept)


def _write(
    encoder: Encoder,
    folder: Path,
    tokenizer_folder: Path,
    chunks: Iterable[pa.RecordBatch],
    progress: StageProgress,
    *,
    labelled: bool,
) -> PackedSplit:
    """Write the packed rows of these chunks, and features.parquet if the kind has one."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    entry = encoder.entry
    tokenizer = load_tokenizer(Path(tokenizer_folder))
    vocabulary = read_tokenizer_info(tokenizer)
    if labelled and entry.params.reads_words and vocabulary.blank_before_words:
        raise InputError(f"{entry.name} {BLANK_NEEDED}")
    shape, labels = entry.rows, len(encoder.labels)

    def open_writer(unit: int) -> RowWriter:
        return RowWriter(
            folder,
            entry.params.row_kind,
            shape.row_length * unit,
            shape.max_sequences_per_row if unit == 1 else unit,
            0,
            vocabulary.size,
            num_labels=labels,
            pad_id=vocabulary.pad,
            unit=unit,
        )

    rows: RowWriter | None = None
    unknown = UnknownTokens(vocabulary.unk, (vocabulary.cls, *vocabulary.between, vocabulary.sep))
    total, examples, counts, features, cut = 0, 0, Counter[str](), encoder.features, None
    with contextlib.ExitStack() as stack:
        table = features and stack.enter_context(pq.ParquetWriter(folder / artifacts.FEATURES, features))
        for chunk in chunks:
            sequences = encoder.sequences(tokenizer, chunk, labelled=labelled)
            lengths, unit = sequences.lengths, sequences.unit
            rows = rows or stack.enter_context(open_writer(unit))
            if unit == 1:
                packs = pack_sequences(lengths, shape.row_length, shape.max_sequences_per_row)
            else:
                packs = np.arange(len(lengths), dtype=np.int32).reshape(-1, unit)
            layout = RowLayout.from_packs(packs, lengths, shape.row_length * unit)
            ids = layout.packs.astype(np.int32)
            columns = {
                **layout.columns(sequences.token_ids, sequences.second_starts),
                **encoder.label_columns(layout, sequences),
                "feature_ids": np.where(ids == ABSENT, ABSENT, ids + total),
            }
            rows.write(columns)
            if table is not None:
                table.write_table(make_feature_table(features, sequences, total, examples))
            total, examples = total + len(lengths), examples + len(chunk)
            counts.update(sequences.counts)
            if sequences.whole_lengths is not None:
                cut = cut or CutTexts(shape.row_length)
                cut.add(sequences.whole_lengths)
            unknown.add(columns["input_ids"], columns["sequence_ids"] > 0)
            progress.update(examples, f", {total} sequences")
        rows = rows or stack.enter_context(open_writer(1))
        manifest = rows.finish(sha256_of(find_tokenizer_file(tokenizer_folder)), seed=0)
    if cut is not None:
        cut.write(folder)
    return PackedSplit(manifest, examples, total, counts, None, progress.elapsed_s, unknown, cut)
