"""Corpus to pre-training rows: sentence pairs, masking, packing.

    python -m tasks.pretrain_rows phase1|phase2

The corpus is read in chunks of a fixed size. A chunk is tokenized once and turned into rows
`duplicates` times, each time with other pairs and other masks, drawn from (seed, phase, duplicate,
chunk); random next sentences come from the same chunk, and a row is packed from one chunk and
duplicate. So memory does not grow with the corpus, and the rows do not depend on how many processes
share the work.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.parquet as pq

from tasks import artifacts
from tasks.encoding import Vocabulary, encode, load_tokenizer, read_vocabulary, tokenizer_file
from tasks.errors import InputError, run_main
from tasks.masking import (
    MaskedTokens,
    count_maskable,
    default_predictions,
    mask_tokens,
    predictions_per_sequence,
)
from tasks.packing import pack
from tasks.pairs import Documents, Pairs, cut_long, make_pairs
from tasks.parallel import Progress, ordered_map
from tasks.params import PHASES, PretrainRowsParams, load_params
from tasks.rows import IGNORED, Layout, Manifest, RowWriter, check_geometry, ranges
from tasks.sentences import split_sentences

if TYPE_CHECKING:
    from tokenizers import Tokenizer

CHUNK_DOCUMENTS = 2048
"""Documents per chunk at most. Another number gives other rows, so it is no parameter."""
CHUNK_CHARACTERS = 1 << 20
"""A chunk ends with the document that reaches this many characters (about 250,000 tokens)."""
LAST_CHUNK_DOCUMENTS = 16
"""A last chunk of fewer documents joins the one before: random next sentences need documents to draw from."""
READ_AT_ONCE = 256
"""Documents decoded from Parquet at a time."""
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class RowSettings:
    """What decides the rows of one phase, besides the corpus."""

    tokenizer: Path
    """Folder of tokenizer.json."""
    seed: int
    phase: int
    """1 or 2: the phases draw different pairs and masks."""
    duplicates: int
    row_length: int
    max_sequences: int
    max_predictions: int
    masked_fraction: float
    short_sequence_probability: float


@dataclass(frozen=True)
class ChunkRows:
    """Rows made of one chunk."""

    columns: list[dict[str, np.ndarray]]
    """One set of columns per duplicate; none when no document of the chunk has tokens."""
    documents: int
    skipped: int
    """Documents without tokens."""
    tokens: int
    """Tokens of the text, before pairing."""


@dataclass(frozen=True)
class RowsSummary:
    """What was made, for the stage's last line."""

    manifest: Manifest
    documents: int
    skipped: int
    tokens: int
    elapsed_s: float


def settings_of(params: PretrainRowsParams, phase: str, tokenizer: Path) -> RowSettings:
    """The settings of `phase` ("phase1" or "phase2"), P resolved.

    Raises:
        InputError: the schema cannot hold such rows.
    """
    own = params.phase1 if phase == "phase1" else params.phase2
    predictions = own.max_predictions_per_row
    if predictions is None:
        predictions = max(params.max_sequences_per_row, default_predictions(own.row_length, params.masked_fraction))
    check_geometry(own.row_length, params.max_sequences_per_row, predictions, f"pretrain_rows.{phase}")
    return RowSettings(
        tokenizer=Path(tokenizer),
        seed=params.seed,
        phase=1 + PHASES.index(phase),
        duplicates=own.duplicates,
        row_length=own.row_length,
        max_sequences=params.max_sequences_per_row,
        max_predictions=predictions,
        masked_fraction=params.masked_fraction,
        short_sequence_probability=params.short_sequence_probability,
    )


def write_pretrain_rows(
    params: PretrainRowsParams,
    phase: str,
    corpus: Path = artifacts.CORPUS,
    tokenizer: Path = artifacts.TOKENIZER,
    folder: Path | None = None,
    workers: int | None = None,
) -> RowsSummary:
    """Write the rows of `phase` into `folder` (default: its own artifact), whole or not at all.

    Args:
        workers: processes; None asks PODIUM_WORKERS. The rows do not depend on it.

    Raises:
        InputError: corpus or tokenizer missing or unusable, no document with tokens, rows out of range.
    """
    settings = settings_of(params, phase, tokenizer)
    vocabulary = read_vocabulary(load_tokenizer(tokenizer))
    files = corpus_files(corpus)
    progress = Progress(f"{phase} rows", "documents")
    documents = skipped = tokens = 0
    with (
        artifacts.new_folder(folder or artifacts.rows_folder(phase)) as partial,
        RowWriter(
            partial,
            "pretrain",
            settings.row_length,
            settings.max_sequences,
            settings.max_predictions,
            vocabulary.size,
        ) as writer,
    ):
        make = functools.partial(make_chunk_rows, settings)
        for made in ordered_map(make, enumerate(read_chunks(files)), workers):
            documents, skipped, tokens = documents + made.documents, skipped + made.skipped, tokens + made.tokens
            for columns in made.columns:
                writer.write(columns)
            progress.update(documents, f", {writer.rows} rows")
        if not writer.rows:
            raise InputError(
                f"none of the {documents} documents in {corpus} has a token: rows need text; "
                "look at corpus.path and corpus.text_column"
            )
        manifest = writer.finish(artifacts.sha256_of(tokenizer_file(tokenizer)), settings.seed)
    return RowsSummary(manifest, documents, skipped, tokens, progress.elapsed_s)


def corpus_files(corpus: Path) -> list[Path]:
    """The Parquet files of the corpus, sorted by name.

    Raises:
        InputError: there are none.
    """
    files = sorted(Path(corpus).glob("*.parquet"))
    if not files:
        raise InputError(
            f"{corpus} holds no .parquet file: rows need the corpus that the corpus stage makes; "
            "run `dvc repro corpus` (or `python -m tasks.corpus`) first"
        )
    return files


def read_chunks(files: list[Path]) -> Iterator[list[str]]:
    """Texts of the corpus in chunks, whose borders depend on the corpus alone."""
    before: list[str] = []
    chunk: list[str] = []
    characters = 0
    for text in _read_texts(files):
        chunk.append(text)
        characters += len(text)
        if len(chunk) >= CHUNK_DOCUMENTS or characters >= CHUNK_CHARACTERS:
            if before:
                yield before
            before, chunk, characters = chunk, [], 0
    if before and len(chunk) >= LAST_CHUNK_DOCUMENTS:
        yield before
        before = []
    if before or chunk:
        yield before + chunk


def _read_texts(files: list[Path]) -> Iterator[str]:
    for path in files:
        try:
            with pq.ParquetFile(path, pre_buffer=False) as parquet:
                for batch in parquet.iter_batches(READ_AT_ONCE, columns=["text"], use_threads=False):
                    for text in batch.column(0).to_pylist():
                        yield text or ""
        except (ValueError, KeyError, IndexError) as error:
            raise InputError(f"{path} cannot be read as the corpus ({error}): run the corpus stage again") from None


def make_chunk_rows(settings: RowSettings, numbered_chunk: tuple[int, list[str]]) -> ChunkRows:
    """Rows of one chunk: pure, whatever process runs it."""
    number, texts = numbered_chunk
    tokenizer = load_tokenizer(settings.tokenizer)
    vocabulary = read_vocabulary(tokenizer)
    documents = tokenize_documents(tokenizer, texts, settings.row_length, vocabulary.dtype)
    replacements = np.setdiff1d(np.arange(vocabulary.size), vocabulary.special)
    columns = []
    for duplicate in range(settings.duplicates if len(documents) else 0):
        rng = np.random.default_rng([settings.seed, settings.phase, duplicate, number])
        pairs = make_pairs(documents, settings.row_length, settings.short_sequence_probability, rng)
        columns.append(make_rows(documents.token_ids, pairs, settings, vocabulary, replacements, rng))
    return ChunkRows(columns, len(texts), len(texts) - len(documents), len(documents.token_ids))


def tokenize_documents(tokenizer: Tokenizer, texts: Sequence[str], row_length: int, dtype: Any) -> Documents:
    """Sentences of every text as token ids; texts without a token are left out."""
    by_text = [split_sentences(text) for text in texts]
    encoded = encode(tokenizer, itertools.chain.from_iterable(by_text), dtype)
    token_ids: list[np.ndarray] = [np.empty(0, dtype=dtype)]
    sentence_starts, document_starts = [0], [0]
    for sentences in by_text:
        for ids in itertools.islice(encoded, len(sentences)):
            token_ids.append(ids)
            for piece in cut_long(len(ids), row_length):
                sentence_starts.append(sentence_starts[-1] + piece)
        if len(sentence_starts) - 1 > document_starts[-1]:
            document_starts.append(len(sentence_starts) - 1)
    return Documents(np.concatenate(token_ids), sentence_starts, document_starts)


def make_rows(
    text_ids: np.ndarray,
    pairs: Pairs,
    settings: RowSettings,
    vocabulary: Vocabulary,
    replacements: np.ndarray,
    rng: np.random.Generator,
) -> dict[str, np.ndarray]:
    """The columns of `pretrain` rows that hold all `pairs`, masked and packed."""
    lengths = pairs.lengths
    token_ids = lay_out_pairs(text_ids, pairs, vocabulary)
    layout = Layout.of(pack(lengths, settings.row_length, settings.max_sequences), lengths, settings.row_length)
    maskable = count_maskable(token_ids, lengths, vocabulary.special)
    counts = predictions_per_sequence(
        lengths, maskable, layout.packs, settings.masked_fraction, settings.max_predictions
    )
    masked = mask_tokens(token_ids, lengths, counts, vocabulary.special, vocabulary.mask, replacements, rng)
    columns = layout.columns(masked.token_ids, pairs.first_length + 2)
    columns.update(prediction_columns(layout, masked, settings.max_predictions))
    columns["next_sentence_labels"] = layout.per_sequence(pairs.labels, IGNORED).astype(np.int8)
    return columns


def lay_out_pairs(text_ids: np.ndarray, pairs: Pairs, vocabulary: Vocabulary) -> np.ndarray:
    """All pairs as [CLS] A [SEP] B [SEP], one after the other; unsigned int[T]."""
    lengths = pairs.lengths
    ends = np.cumsum(lengths)
    starts, second = ends - lengths, ends - 1 - pairs.second_length
    token_ids = np.empty(int(ends[-1]), dtype=text_ids.dtype)
    token_ids[starts] = vocabulary.cls
    token_ids[second - 1] = token_ids[ends - 1] = vocabulary.sep
    for place, source, length in (
        (starts + 1, pairs.first_start, pairs.first_length),
        (second, pairs.second_start, pairs.second_length),
    ):
        token_ids[ranges(place, length)] = text_ids[ranges(source, length)]
    return token_ids


def prediction_columns(layout: Layout, masked: MaskedTokens, max_predictions: int) -> dict[str, np.ndarray]:
    """masked_positions int16[R, P] and masked_labels int32[R, P], ascending by position in the row."""
    targets = layout.targets()[masked.places]
    order = np.argsort(targets)
    rows, positions = np.divmod(targets[order], layout.row_length)
    per_row = np.bincount(rows, minlength=len(layout.packs))
    slots = np.arange(len(rows)) - np.repeat(np.cumsum(per_row) - per_row, per_row)
    shape = (len(layout.packs), max_predictions)
    masked_positions, masked_labels = np.zeros(shape, np.int16), np.full(shape, IGNORED, np.int32)
    masked_positions[rows, slots] = positions
    masked_labels[rows, slots] = masked.labels[order]
    return {"masked_positions": masked_positions, "masked_labels": masked_labels}


def main() -> None:
    parser = argparse.ArgumentParser(description="Make the pre-training rows of one phase from the corpus.")
    parser.add_argument("phase", choices=PHASES)
    phase = parser.parse_args().phase
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    made = write_pretrain_rows(load_params().pretrain_rows, phase)
    rows = made.manifest
    print(
        f"{phase}: {rows.rows} rows of {rows.row_length} with {rows.sequences} sequences "
        f"({rows.packing_factor:.2f} a row, {rows.packing_efficiency:.1%} real tokens) from "
        f"{made.documents - made.skipped} documents and {made.tokens} tokens; "
        f"{made.skipped} documents without tokens skipped; {made.elapsed_s:.1f} s"
    )


if __name__ == "__main__":
    run_main(main)
