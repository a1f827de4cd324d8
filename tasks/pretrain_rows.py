"""Corpus to pre-training rows: sentence pairs, masking, packing.

    python -m tasks.pretrain_rows phase1|phase2

The corpus is read in chunks of a fixed size. A chunk is tokenized once and turned into rows
`duplicates` times, each time with other pairs and other masks, drawn from (seed, phase, duplicate,
chunk); random next sentences come from the same chunk, and a row is packed from one chunk and
duplicate. So memory does not grow with the corpus, and the rows do not depend on how many processes
share the work. Documents that are held out (tasks/held_out.py) go through the same steps on their own, once.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tasks import artifacts
from tasks.encoding import load_tokenizer, read_vocabulary, tokenizer_file
from tasks.errors import InputError, run_main
from tasks.held_out import FOLDER as HELD_OUT
from tasks.held_out import is_held_out
from tasks.masking import default_predictions
from tasks.pair_rows import RowSettings, make_chunk_rows
from tasks.parallel import Progress, ordered_map, useful_workers
from tasks.params import PHASES, PretrainRowsParams, load_params, packed
from tasks.parquet import read_batches, size_of
from tasks.prepared_rows import write_prepared_rows
from tasks.rows import Manifest, RowWriter, check_geometry

CHUNK_DOCUMENTS = 2048
"""Documents per chunk at most. Another number gives other rows, so it is no parameter."""
CHUNK_CHARACTERS = 1 << 20
"""A chunk ends with the document that reaches this many characters (about 250,000 tokens)."""
CHUNKS_FOR_PROCESSES = 4
"""From here on more processes pay. A chunk takes 0.27 s (five duplicates), nearly all of it in the worker: 5.1 M
tokens (20 chunks) take 5.3 s in one process, 3.2 s with two more on two cores."""
LAST_CHUNK_DOCUMENTS = 16
"""A last chunk of fewer documents joins the one before: random next sentences need documents to draw from."""
READ_AT_ONCE = 256
"""Documents decoded from Parquet at a time."""
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class RowsSummary:
    """What was made, for the stage's last line; all but `held_out` is of the training rows."""

    manifest: Manifest
    documents: int
    skipped: int
    tokens: int
    elapsed_s: float
    held_out: RowsSummary | None = None
    """None where no document was held out."""


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
        workers: processes; None: what pays, at most PODIUM_WORKERS. The rows do not depend on it.

    Raises:
        InputError: corpus or tokenizer missing or unusable, no document with tokens, rows out of range.
    """
    settings = settings_of(params, phase, tokenizer)
    vocabulary = read_vocabulary(load_tokenizer(tokenizer))
    files = corpus_files(corpus)
    sizes = [size_of(path, ["text"], "corpus") for path in files]
    if workers is None:
        workers = useful_workers(sum(size.bytes for size in sizes) // CHUNK_CHARACTERS, CHUNKS_FOR_PROCESSES)
    progress = Progress(f"{phase} rows", "documents", sum(size.rows for size in sizes))
    with artifacts.new_folder(folder or artifacts.rows_folder(phase)) as partial:
        held_out = functools.partial(is_held_out, fraction=params.held_out_fraction, seed=settings.seed)
        chunks = read_chunks(files, lambda text: not held_out(text))
        made = _write(partial, settings, vocabulary.size, chunks, progress, workers)
        if made is None:
            raise InputError(
                f"none of the {progress.total} documents in {files[0].parent} that are not held out has a token, at "
                "least one is required: look at corpus.path, corpus.text_column and pretrain_rows.held_out_fraction"
            )
        if not params.held_out_fraction:
            return made
        (partial / HELD_OUT).mkdir()
        once = dataclasses.replace(settings, duplicates=1)
        kept = _write(partial / HELD_OUT, once, vocabulary.size, read_chunks(files, held_out), progress, 1)
        if kept is None:
            (partial / HELD_OUT).rmdir()
        return dataclasses.replace(made, held_out=kept, elapsed_s=progress.elapsed_s)


def _write(
    folder: Path, settings: RowSettings, vocabulary: int, chunks: Iterator[list[str]], progress: Progress, workers: int
) -> RowsSummary | None:
    """Make the row folder of these chunks; None, and no file, where none of them has a token."""
    documents = skipped = tokens = 0
    make = functools.partial(make_chunk_rows, settings)
    sizes = (settings.row_length, settings.max_sequences, settings.max_predictions, vocabulary)
    with RowWriter(folder, "pretrain", *sizes) as writer:
        for made in ordered_map(make, enumerate(chunks), workers):
            documents, skipped, tokens = documents + made.documents, skipped + made.skipped, tokens + made.tokens
            for columns in made.columns:
                writer.write(columns)
            progress.update(documents, f", {writer.rows} rows")
        if not writer.rows:
            return None
        manifest = writer.finish(artifacts.sha256_of(tokenizer_file(settings.tokenizer)), settings.seed)
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


def read_chunks(files: list[Path], wanted: Callable[[str], bool] = lambda text: True) -> Iterator[list[str]]:
    """The wanted texts of the corpus in chunks, whose borders depend on these texts alone."""
    before: list[str] = []
    chunk: list[str] = []
    characters = 0
    for text in filter(wanted, _read_texts(files)):
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
        for batch in read_batches(path, ["text"], READ_AT_ONCE, "corpus"):
            for text in batch.column("text").to_pylist():
                yield text or ""


def main() -> None:
    parser = argparse.ArgumentParser(description="Make the pre-training rows of one phase from the corpus.")
    parser.add_argument("phase", choices=PHASES)
    phase = parser.parse_args().phase
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    whole = load_params()
    params = packed(whole.pretrain_rows, whole.packing)
    print(_from_corpus(params, phase) if params.source == "corpus" else _from_prepared(params, phase))


def _from_prepared(params: PretrainRowsParams, phase: str) -> str:
    made = write_prepared_rows(params, phase)
    rows = made.manifest
    return (
        f"{phase}: {rows.rows} rows of {rows.row_length} with {rows.sequences} sequences "
        f"({rows.packing_factor:.2f} a row, {rows.packing_efficiency:.1%} real tokens) from prepared data "
        f"({', '.join(made.reading.summary())}); {made.held_out.sequences if made.held_out else 'no'} sequences held "
        f"out; {made.elapsed_s:.1f} s"
    )


def _from_corpus(params: PretrainRowsParams, phase: str) -> str:
    made = write_pretrain_rows(params, phase)
    rows = made.manifest
    return (
        f"{phase}: {rows.rows} rows of {rows.row_length} with {rows.sequences} sequences "
        f"({rows.packing_factor:.2f} a row, {rows.packing_efficiency:.1%} real tokens) from "
        f"{made.documents - made.skipped} documents and {made.tokens} tokens; "
        f"{made.skipped} documents without tokens skipped; "
        f"{made.held_out.documents if made.held_out else 'no'} documents held out; {made.elapsed_s:.1f} s"
    )


if __name__ == "__main__":
    run_main(main)
