"""Corpus to pre-training rows: sentence pairs, masking, packing.

    python -m tasks.pretrain_rows phase1|phase2

The corpus is made into rows shard by shard (tasks/row_shards.py), and a shard in chunks of a fixed size. A chunk is
tokenized once and turned into rows `duplicates` times, each time with other pairs and other masks, drawn from (seed,
phase, duplicate, chunk); random next sentences come from the same chunk, and a row is packed from one chunk and
duplicate. So memory does not grow with the corpus, and the rows do not depend on how many processes share the work.
Documents that are held out (tasks/held_out.py) go through the same steps on their own, once.

A run that was killed keeps the shards it has finished, and makes the others when it is run again.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import itertools
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

from tasks import artifacts, row_chunks, row_shards
from tasks.encoding import load_tokenizer, read_vocabulary, tokenizer_file
from tasks.errors import InputError, run_main
from tasks.held_out import FOLDER as HELD_OUT
from tasks.held_out import is_held_out
from tasks.masking import default_predictions
from tasks.pair_rows import ChunkRows, RowSettings, make_chunk_rows
from tasks.parallel import Progress, ordered_map, useful_workers
from tasks.params import PHASES, PretrainRowsParams, load_params, packed
from tasks.prepared_rows import write_prepared_rows
from tasks.row_chunks import Item, read_items
from tasks.row_shards import PARTS, TRAINING, Counts, Shard, ShardStore, plan_shards
from tasks.rows import Manifest, RowWriter, check_geometry

CHUNKS_FOR_PROCESSES = 4
"""From here on more processes pay. A chunk takes 0.27 s (five duplicates), nearly all of it in the worker: 5.1 M
tokens (20 chunks) take 5.3 s in one process, 3.2 s with two more on two cores."""
MADE_BY = (
    "ipu_model/rows.py", "tasks/encoding.py", "tasks/held_out.py", "tasks/masking.py", "tasks/packing.py",
    "tasks/pair_rows.py", "tasks/pairs.py", "tasks/pretrain_rows.py", "tasks/row_chunks.py",
    "tasks/row_shards.py", "tasks/rows.py", "tasks/sentences.py", "tasks/word_cache.py",
)  # fmt: skip
"""Sources that decide the rows: what others made of the same text is not taken for finished."""
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class RowsSummary:
    """What was made, for the stage's last line; all but `held_out` is of the training rows."""

    manifest: Manifest
    counts: Counts
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
    work: Path | None = None,
) -> RowsSummary:
    """Write the rows of `phase` into `folder` (default: its own artifact), whole or not at all.

    Args:
        workers: processes; None: what pays, at most PODIUM_WORKERS. The rows do not depend on it.
        work: where finished shards wait for the others; None: beside `folder`. Removed when all is done.

    Raises:
        InputError: corpus or tokenizer missing or unusable, no document with tokens, rows out of range.
    """
    folder = Path(folder or artifacts.rows_folder(phase))
    making = Making.of(params, phase, corpus, tokenizer, work or folder.with_name(f"{folder.name}.shards"))
    counts, progress = making.make(making.shards, workers)
    numbers = [shard.number for shard in making.shards]
    with artifacts.new_folder(folder) as partial:
        manifest = making.store.join(numbers, TRAINING, partial)
        if manifest is None:
            making.store.remove()
            raise InputError(
                f"none of the {sum(shard.documents for shard in making.shards)} documents in {corpus} that are not "
                "held out has a token, at least one is required: look at corpus.path, corpus.text_column and "
                "pretrain_rows.held_out_fraction"
            )
        (partial / HELD_OUT).mkdir()
        others = making.store.join(numbers, HELD_OUT, partial / HELD_OUT)
        if others is None:
            (partial / HELD_OUT).rmdir()
    making.store.remove()
    kept = None if others is None else RowsSummary(others, counts[HELD_OUT], progress.elapsed_s)
    return RowsSummary(manifest, counts[TRAINING], progress.elapsed_s, kept)


@dataclass(frozen=True)
class Making:
    """Rows of one phase that are to be made of a corpus."""

    settings: dict[str, RowSettings]
    """By part: documents that are held out are masked once."""
    vocabulary: int
    """Entries."""
    tokenizer_sha256: str
    held_out: Callable[[str], bool]
    """Whether a text is."""
    shards: list[Shard]
    store: ShardStore

    @classmethod
    def of(cls, params: PretrainRowsParams, phase: str, corpus: Path, tokenizer: Path, work: Path) -> Making:
        """The rows that `params` asks for, `work` being the folder of their shards.

        Raises:
            InputError: corpus or tokenizer missing or unusable, rows out of range.
        """
        settings = settings_of(params, phase, tokenizer)
        vocabulary = read_vocabulary(load_tokenizer(tokenizer)).size
        sha256 = artifacts.sha256_of(tokenizer_file(settings.tokenizer))
        files = corpus_files(corpus)
        shards = plan_shards(files)
        store = ShardStore(work, _deciding(settings, params.held_out_fraction, sha256, files))
        held_out = functools.partial(is_held_out, fraction=params.held_out_fraction, seed=settings.seed)
        by_part = {TRAINING: settings, HELD_OUT: dataclasses.replace(settings, duplicates=1)}
        return cls(by_part, vocabulary, sha256, held_out, shards, store)

    def make(self, shards: Sequence[Shard], workers: int | None) -> tuple[dict[str, Counts], Progress]:
        """Make those of `shards` that are not there yet; what went into all of them, by part."""
        found = [self.store.finished(shard.number) for shard in shards]
        counts = [counts for counts in found if counts is not None]
        missing = [shard for shard, counts_of_it in zip(shards, found, strict=True) if counts_of_it is None]
        if counts:
            logger.info("%d of %d shards are there from before", len(counts), len(shards))
        if workers is None:
            chunks = sum(shard.bytes for shard in missing) // row_chunks.CHUNK_CHARACTERS
            workers = useful_workers(chunks, CHUNKS_FOR_PROCESSES)
        phase = PHASES[self.settings[TRAINING].phase - 1]
        progress = Progress(f"{phase} rows", "documents", sum(shard.documents for shard in missing))
        items = (item for shard in missing for item in read_items(shard, self.held_out))
        made = ordered_map(functools.partial(make_item, self.settings), items, workers)
        for number, results in itertools.groupby(made, key=attrgetter("shard")):
            with self.store.new(number) as (folder, own):
                self._write(folder, results, own, progress)
            counts.append(own)
        return {
            part: functools.reduce(Counts.plus, (own[part] for own in counts), Counts()) for part in PARTS
        }, progress

    def _write(self, folder: Path, made: Iterator[ItemRows], counts: dict[str, Counts], progress: Progress) -> None:
        """Fill the folder of a shard, and its counts, with what its chunks became."""
        own = self.settings[TRAINING]
        sizes = (own.row_length, own.max_sequences, own.max_predictions, self.vocabulary)
        counts.update(dict.fromkeys(PARTS, Counts()))
        with contextlib.ExitStack() as stack:
            for part in PARTS:
                (folder / part).mkdir()
            writers = {part: stack.enter_context(RowWriter(folder / part, "pretrain", *sizes)) for part in PARTS}
            for _, part, rows in made:
                counts[part] = counts[part].plus(Counts(rows.documents, rows.skipped, rows.tokens))
                for columns in rows.columns:
                    writers[part].write(columns)
                progress.add(rows.documents)
            for part, writer in writers.items():
                if writer.rows:
                    writer.finish(self.tokenizer_sha256, own.seed)
                else:
                    (folder / part).rmdir()


def _deciding(settings: RowSettings, held_out_fraction: float, tokenizer: str, files: Sequence[Path]) -> dict[str, Any]:
    """Everything that decides the rows of a corpus, by content: the same on every host."""
    root = Path(__file__).parents[1]
    return {
        "settings": {**dataclasses.asdict(settings), "tokenizer": tokenizer},
        "held_out_fraction": held_out_fraction,
        "corpus": [artifacts.sha256_of(path) for path in files],
        "sizes": [row_shards.SHARD_BYTES, *row_chunks.sizes()],
        "sources": [artifacts.sha256_of(root / name) for name in MADE_BY],
        "versions": [metadata.version(name) for name in ("numpy", "pyarrow", "tokenizers")],
    }


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


class ItemRows(NamedTuple):
    """What became of it."""

    shard: int
    part: str
    rows: ChunkRows


def make_item(settings: Mapping[str, RowSettings], item: Item) -> ItemRows:
    """The rows of a chunk, by the settings of its part: pure, whatever process runs it."""
    return ItemRows(item.shard, item.part, make_chunk_rows(settings[item.part], (item.number, item.texts)))


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
    made = write_pretrain_rows(params, phase, work=artifacts.row_shards(phase))
    rows, counts = made.manifest, made.counts
    return (
        f"{phase}: {rows.rows} rows of {rows.row_length} with {rows.sequences} sequences "
        f"({rows.packing_factor:.2f} a row, {rows.packing_efficiency:.1%} real tokens) from "
        f"{counts.documents - counts.skipped} documents and {counts.tokens} tokens; "
        f"{counts.skipped} documents without tokens skipped; "
        f"{made.held_out.counts.documents if made.held_out else 'no'} documents held out; {made.elapsed_s:.1f} s"
    )


if __name__ == "__main__":
    run_main(main)
