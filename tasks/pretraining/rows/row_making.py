"""Shards of a corpus to pre-training rows: what is there is taken, the rest is made by several processes."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from operator import attrgetter
from pathlib import Path
from typing import Any

from ipu_model.files import sha256_of
from tasks.pretraining.rows import row_shards
from tasks.pretraining.rows.masking import default_predictions
from tasks.pretraining.rows.pair_rows import ChunkRows, RowSettings, make_chunk_rows
from tasks.pretraining.rows.row_shards import PARTS, TRAINING, Counts, Shard, ShardStore, plan_shards, read_chunks
from tasks.project.parallel import Progress, ordered_map, useful_workers
from tasks.project.params import PHASES, PretrainRowsParams
from tasks.project.row_folders import HELD_OUT
from tasks.reading.parquet import corpus_files
from tasks.rows.held_out import is_held_out
from tasks.rows.row_files import RowWriter, check_geometry
from tasks.vocabulary.encoding import load_tokenizer, read_vocabulary, tokenizer_file

CHUNKS_FOR_PROCESSES = 4
"""From here on more processes pay. A chunk takes 0.27 s (five duplicates), nearly all of it in the worker: 5.1 M
tokens (20 chunks) take 5.3 s in one process, 3.2 s with two more on two cores."""
MADE_BY = (
    "ipu_model/row_kinds/pretrain.py",
    "ipu_model/rows",
    "tasks/pretraining/rows",
    "tasks/rows",
    "tasks/vocabulary",
)
"""Packages and modules that decide the rows: what others made of the same text is not taken for finished."""
logger = logging.getLogger(__name__)


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
    def of(
        cls,
        params: PretrainRowsParams,
        phase: str,
        corpus: Path,
        tokenizer: Path,
        work: Path,
    ) -> Making:
        """The rows that `params` asks for, `work` being the folder of their shards.

        Raises:
            InputError: corpus or tokenizer missing or unusable, rows out of range.
        """
        settings = settings_of(params, phase, tokenizer)
        vocabulary = read_vocabulary(load_tokenizer(tokenizer)).size
        sha256 = sha256_of(tokenizer_file(settings.tokenizer))
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
            text = sum(shard.bytes for shard in missing)
            workers = useful_workers(text // row_shards.CHUNK_CHARACTERS, CHUNKS_FOR_PROCESSES)
        phase = PHASES[self.settings[TRAINING].phase - 1]
        progress = Progress(f"{phase} rows", "documents", sum(shard.documents for shard in missing))
        chunks = (chunk for shard in missing for chunk in read_chunks(shard, self.held_out))
        made = ordered_map(functools.partial(make_chunk_rows, self.settings), chunks, workers)
        for number, results in itertools.groupby(made, key=attrgetter("shard")):
            with self.store.new(number) as (folder, own):
                self._write(folder, results, own, progress)
            counts.append(own)
        sums = {part: sum((own[part] for own in counts), Counts()) for part in PARTS}
        return sums, progress

    def _write(self, folder: Path, made: Iterator[ChunkRows], counts: dict[str, Counts], progress: Progress) -> None:
        """Fill the folder of a shard, and its counts, with what its chunks became."""
        own = self.settings[TRAINING]
        sizes = (own.row_length, own.max_sequences, own.max_predictions, self.vocabulary)
        counts.update({part: Counts() for part in PARTS})
        with contextlib.ExitStack() as stack:
            for part in PARTS:
                (folder / part).mkdir()
            writers = {part: stack.enter_context(RowWriter(folder / part, "pretrain", *sizes)) for part in PARTS}
            for rows in made:
                counts[rows.part].update(rows.counts)
                for columns in rows.columns:
                    writers[rows.part].write(columns)
                progress.add(rows.counts["documents"])
            for part, writer in writers.items():
                if writer.rows:
                    writer.finish(self.tokenizer_sha256, own.seed)
                else:
                    (folder / part).rmdir()


def _deciding(settings: RowSettings, held_out_fraction: float, tokenizer: str, files: Sequence[Path]) -> dict[str, Any]:
    """Everything that decides the rows of a corpus, by content: the same on every host."""
    root = Path(__file__).parents[3]
    of_chunks = row_shards.CHUNK_DOCUMENTS, row_shards.CHUNK_CHARACTERS, row_shards.LAST_CHUNK_DOCUMENTS
    return {
        "settings": {**dataclasses.asdict(settings), "tokenizer": tokenizer},
        "held_out_fraction": held_out_fraction,
        "corpus": [sha256_of(path) for path in files],
        "sizes": [row_shards.SHARD_BYTES, *of_chunks],
        "sources": [sha256_of(path) for name in MADE_BY for path in _modules(root / name)],
        "versions": [metadata.version(name) for name in ("numpy", "pyarrow", "tokenizers")],
    }


def _modules(path: Path) -> list[Path]:
    """The modules of a package, or the one module that it is."""
    return sorted(path.glob("*.py")) if path.is_dir() else [path]
