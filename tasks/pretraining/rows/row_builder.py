"""Building of pre-training rows from the shards of a corpus; finished shards are reused.

    <work>/<fingerprint>/shard-00000/rows/        a row folder; absent if the shard has no training rows
                                     held-out/    the same for held-out documents
                                     shard.json   counts, and the SHA-256 of every file; written last

Shards survive when a run is killed, and are joined when all are finished.
"""

import contextlib
import dataclasses
import functools
import hashlib
import itertools
import json
import logging
import re
import shutil
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from ipu_model.core.files import link_or_copy, new_folder, read_json, sha256_of, write_json
from ipu_model.rows.format import DOCUMENTS
from tasks.params.schema import PretrainRowsParams
from tasks.pretraining.rows import chunks
from tasks.pretraining.rows.chunks import PARTS, TRAINING, Counts, read_chunks
from tasks.pretraining.rows.masking import default_max_predictions
from tasks.pretraining.rows.pair_rows import RowSettings, make_chunk_rows
from tasks.records.parquet import list_corpus_files
from tasks.records.shards import Shard, plan_shards, read_texts
from tasks.rows.held_out import is_held_out, resolve_fraction
from tasks.rows.row_files import RowWriter, check_geometry, row_file_name
from tasks.stage.parallel import StageProgress, ordered_map, useful_workers
from tasks.stage.row_folders import HELD_OUT, MANIFEST, Manifest, read_manifest
from tasks.vocabulary.encoding import TokenizerInfo, find_tokenizer_file, load_tokenizer, read_tokenizer_info

CHUNKS_FOR_PROCESSES = 4
"""Chunks from which more processes pay off. A chunk takes 0.27 s (five duplicates), nearly all of it in the worker:
5.1 M tokens (20 chunks) take 5.3 s in one process, 3.2 s with two more on two cores."""
ROW_SOURCES = (
    "ipu_model/row_kinds",
    "ipu_model/rows",
    "tasks/pretraining/rows",
    "tasks/rows",
    "tasks/vocabulary",
)
"""Packages that affect the rows: shards made with other versions of them are not reused."""
RECORD = "shard.json"
logger = logging.getLogger(__name__)


def _number(phase: str) -> int:
    """Return the number with which a phase draws pairs and masks: N for phaseN, a hash for a name of the user."""
    match = re.fullmatch(r"phase([1-9]\d?)", phase)
    return int(match[1]) if match else 2**32 + zlib.crc32(phase.encode())


def resolve_row_settings(params: PretrainRowsParams, phase: str, tokenizer: Path) -> RowSettings:
    """Return the row settings of `phase`, with P resolved; refuse sizes that rows cannot have."""
    phase_params = params.get_phase(phase)
    predictions = phase_params.max_predictions_per_row
    if predictions is None:
        predictions = max(
            params.max_sequences_per_row, default_max_predictions(phase_params.row_length, params.masked_fraction)
        )
    check_geometry(phase_params.row_length, params.max_sequences_per_row, predictions, f"pretrain_rows.{phase}")
    return RowSettings(
        tokenizer=Path(tokenizer).absolute(),  # the workers of a cluster have other working folders
        seed=params.seed,
        phase=_number(phase),
        duplicates=phase_params.duplicates,
        row_length=phase_params.row_length,
        max_sequences=params.max_sequences_per_row,
        max_predictions=predictions,
        masked_fraction=params.masked_fraction,
        short_sequence_probability=params.short_sequence_probability,
        segments=1 + params.next_sentence,
    )


@dataclass(frozen=True)
class ShardMaker:
    """Maker of the rows of a shard, in any process that sees the folders."""

    folder: Path
    settings: RowSettings
    kind: str
    held_out_fraction: float
    tokenizer_sha256: str
    vocabulary: TokenizerInfo

    def make(self, shard: Shard) -> dict[str, Counts]:
        """Make the rows of a shard in its folder, and return its counts by part."""
        # A worker that hung may complete a shard after another has made it, while the stage reads it.
        with new_folder(shard_folder(self.folder, shard.number), replace=False) as partial:
            counts = self._write(shard, partial)
            files = [path for path in sorted(partial.rglob("*")) if path.is_file()]
            hashes = {path.relative_to(partial).as_posix(): sha256_of(path) for path in files}
            write_json(partial / RECORD, {"counts": counts, "sha256": hashes})
        return counts

    def _write(self, shard: Shard, folder: Path) -> dict[str, Counts]:
        """Write the rows of a shard's chunks to a folder; return the counts, by part."""
        row_settings, counts = self.settings, {part: Counts() for part in PARTS}
        sizes = (
            row_settings.row_length,
            row_settings.max_sequences,
            row_settings.max_predictions,
            self.vocabulary.size,
        )
        make = functools.partial(RowWriter, pad_id=self.vocabulary.pad)
        # Held-out documents are masked once.
        settings = {TRAINING: row_settings, HELD_OUT: dataclasses.replace(row_settings, duplicates=1)}
        held_out = functools.partial(is_held_out, fraction=self.held_out_fraction, seed=row_settings.seed)
        with contextlib.ExitStack() as stack:
            for part in PARTS:
                (folder / part).mkdir()
            writers = {part: stack.enter_context(make(folder / part, self.kind, *sizes)) for part in PARTS}
            documents = []
            for chunk in read_chunks(shard, held_out):
                rows = make_chunk_rows(settings, chunk)
                counts[rows.part].update(rows.counts)
                if rows.part == HELD_OUT:
                    documents.append(rows.documents)
                for columns in rows.columns:
                    writers[rows.part].write(columns)
            _write_documents(folder / HELD_OUT, documents)
            for part, writer in writers.items():
                if writer.rows:
                    writer.finish(self.tokenizer_sha256, row_settings.seed, **self.vocabulary.masking)
                else:
                    shutil.rmtree(folder / part)
        return counts


def _write_documents(folder: Path, parts: Sequence[np.ndarray]) -> None:
    """Write the document of each sequence, numbered through all parts, for figures by document."""
    counts = [int(part.max(initial=-1)) + 1 for part in parts]
    firsts = [sum(counts[:number]) for number in range(len(parts))]
    numbered = [np.where(part < 0, part, part + first) for part, first in zip(parts, firsts, strict=True)]
    if numbered:
        np.save(folder / DOCUMENTS, np.concatenate(numbered).astype(np.int32))


def shard_folder(folder: Path, number: int) -> Path:
    """Return the folder of a shard in the folder of all shards."""
    return folder / f"shard-{number:05d}"


class ShardBuilder:
    """Builder of the rows of one phase from a corpus."""

    def __init__(self, params: PretrainRowsParams, phase: str, corpus: Path, tokenizer: Path, work: Path) -> None:
        """Plan the shards; `work` is the folder of the shards of all sets of rows.

        Raises:
            InputError: corpus or tokenizer missing or unusable, or row sizes out of range.
        """
        settings = resolve_row_settings(params, phase, tokenizer)
        self._phase, self.vocabulary = phase, read_tokenizer_info(load_tokenizer(tokenizer))
        sha256 = sha256_of(find_tokenizer_file(settings.tokenizer))
        files = list_corpus_files(Path(corpus).absolute())
        self.shards = plan_shards(files)
        texts = itertools.chain.from_iterable(map(read_texts, self.shards))
        self.held_out_fraction = resolve_fraction(texts, params.held_out_fraction, settings.seed)
        deciding = _fingerprint_values(settings, self.held_out_fraction, sha256, files, self.shards)
        name = hashlib.sha256(json.dumps(deciding, sort_keys=True).encode()).hexdigest()[:12]
        self._work = Path(work).absolute()
        self._folder = self._work / name
        self._maker = ShardMaker(
            self._folder, settings, params.row_kind, self.held_out_fraction, sha256, self.vocabulary
        )

    def make(self, workers: int | None) -> tuple[dict[str, Counts], StageProgress]:
        """Make the shards that are not finished; return the counts of all of them, by part."""
        every = [_read_counts(shard_folder(self._folder, shard.number)) for shard in self.shards]
        counts = [counts for counts in every if counts is not None]
        missing = [shard for shard, counts_of_it in zip(self.shards, every, strict=True) if counts_of_it is None]
        if counts:
            logger.info("reusing %d of %d shards", len(counts), len(self.shards))
        if workers is None:
            text = sum(shard.bytes for shard in missing)
            workers = useful_workers(text // chunks.CHUNK_CHARACTERS, CHUNKS_FOR_PROCESSES)
        progress = StageProgress(f"{self._phase} rows", "documents", sum(shard.documents for shard in missing))
        for new_counts in ordered_map(self._maker.make, missing, workers, self._folder):
            counts.append(new_counts)
            progress.add(sum(new_counts[part]["documents"] for part in PARTS))
        return {part: sum((shard_counts[part] for shard_counts in counts), Counts()) for part in PARTS}, progress

    def join(self, part: str, target: Path) -> Manifest | None:
        """Join the row folders of all shards, which must be finished, into the existing folder `target`.

        Return the manifest as written; None if no shard has rows of `part` (one of PARTS).
        """
        shards = [shard_folder(self._folder, shard.number) for shard in self.shards]
        # The record decides, not whether the file is seen: a shared folder may show a new file late.
        with_rows = [shard / part for shard in shards if f"{part}/{MANIFEST}" in read_json(shard / RECORD)["sha256"]]
        manifests = {folder: read_manifest(folder) for folder in with_rows}
        if not manifests:
            return None
        files: dict[str, int] = {}
        for folder, manifest in manifests.items():
            for name, rows in sorted(manifest.files.items()):
                new = row_file_name(len(files))
                link_or_copy(folder / name, target / new)
                files[new] = rows
        if part == HELD_OUT:
            _write_documents(target, [np.load(source / DOCUMENTS) for source in manifests])
        first, numbers = next(iter(manifests.values())), ("rows", "sequences", "real_tokens")
        sums = {name: sum(getattr(shard_manifest, name) for shard_manifest in manifests.values()) for name in numbers}
        whole = dataclasses.replace(first, **sums, files=files)
        (target / MANIFEST).write_text(whole.to_json(), encoding="utf-8")
        return whole

    def remove(self) -> None:
        """Remove the finished shards, including those of other sets: they are no longer needed."""
        shutil.rmtree(self._work, ignore_errors=True)


def _read_counts(folder: Path) -> dict[str, Counts] | None:
    """Return the counts of a shard by part; None if it is missing. Remove it if its files have changed."""
    if not folder.is_dir():
        return None
    try:
        record = read_json(folder / RECORD)
        if all(sha256_of(folder / name) == digest for name, digest in record["sha256"].items()):
            return {part: Counts(values) for part, values in record["counts"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        logger.debug("%s: %s", folder, error)
    logger.warning("%s is damaged, making it again", folder)
    shutil.rmtree(folder)
    return None


def _fingerprint_values(
    settings: RowSettings, held_out_fraction: float, tokenizer: str, files: Sequence[Path], shards: Sequence[Shard]
) -> dict[str, Any]:
    """Return everything that affects the rows of a corpus, by content, so that it is the same on every host."""
    root = Path(__file__).parents[3]
    return {
        "settings": {**dataclasses.asdict(settings), "tokenizer": tokenizer},
        "held_out_fraction": held_out_fraction,
        "corpus": [sha256_of(path) for path in files],
        "shards": [shard.documents for shard in shards],
        "sources": [sha256_of(path) for name in ROW_SOURCES for path in sorted((root / name).glob("*.py"))],
        "versions": [metadata.version(name) for name in ("numpy", "pyarrow", "tokenizers")],
    }
