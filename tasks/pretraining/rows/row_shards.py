"""Shards of a corpus: the pieces in which pre-training rows are made, kept when a run is killed, and joined.

    <work>/<fingerprint>/shard-00000/rows/        a row folder; none where the shard left no rows to train on
                                     held-out/    the same of documents that are held out
                                     shard.json   counts, and the SHA-256 of every file; written last
    <work>/share-2/<fingerprint>/...    shards that were made as a share (row_share.py), most likely elsewhere

Where a shard begins and ends follows from the row groups of the corpus alone, so that a shard has the same bytes
whatever process or host makes it, and whatever others were made before. Its texts become rows chunk by chunk.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import itertools
import json
import logging
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

from ipu_model.files import link_or_copy, new_folder, read_json, sha256_of, write_json
from tasks.project.row_folders import HELD_OUT, MANIFEST, Manifest, read_manifest
from tasks.reading.parquet import read_batches, sizes_of_groups
from tasks.rows.row_files import row_file

SHARD_BYTES = 64 << 20
"""Text of a shard, about; a smaller rest at the end joins the shard before. A shard takes 20 to 50 s on one core, and
no more than that is lost when a run is killed. Another number gives other rows, so it is no parameter."""
CHUNK_DOCUMENTS = 2048
"""Documents per chunk at most. Another number gives other rows, so it is no parameter."""
CHUNK_CHARACTERS = 1 << 20
"""A chunk ends with the document that reaches this many characters (about 250,000 tokens)."""
LAST_CHUNK_DOCUMENTS = 16
"""A last chunk of fewer documents joins the one before: random next sentences need documents to draw from."""
TRAINING = "rows"
PARTS = (TRAINING, HELD_OUT)
Counts = Counter[str]
"""What went into rows: `documents`, `skipped` ones that have no tokens, and `tokens` of the text, before pairing."""
RECORD = "shard.json"
READ_AT_ONCE = 256
"""Documents decoded from Parquet at a time."""
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Shard:
    """Consecutive row groups of a corpus."""

    number: int
    groups: tuple[tuple[Path, int], ...]
    """File and the number of the row group in it, in reading order."""
    documents: int
    bytes: int
    """Bytes of text."""


def plan_shards(files: Sequence[Path]) -> list[Shard]:
    """The shards of a corpus, from what its Parquet files say of themselves: no text is read.

    Raises:
        InputError: a file cannot be read, or has no text.
    """
    shards: list[Shard] = []
    groups = [
        (path, number, size) for path in files for number, size in enumerate(sizes_of_groups(path, "text", "corpus"))
    ]
    left = sum(size.bytes for _, _, size in groups)
    taken: list[tuple[Path, int]] = []
    documents = size_of_shard = 0
    for path, number, size in groups:
        taken.append((path, number))
        documents, size_of_shard, left = documents + size.rows, size_of_shard + size.bytes, left - size.bytes
        if size_of_shard >= SHARD_BYTES and left >= SHARD_BYTES:
            shards.append(Shard(len(shards), tuple(taken), documents, size_of_shard))
            taken, documents, size_of_shard = [], 0, 0
    if documents:
        shards.append(Shard(len(shards), tuple(taken), documents, size_of_shard))
    return shards


def texts_of(shard: Shard) -> Iterator[str]:
    """The texts of a shard in order, few in memory at a time; "" for null."""
    for path, groups in itertools.groupby(shard.groups, key=itemgetter(0)):
        for batch in read_batches(path, ["text"], READ_AT_ONCE, "corpus", [group for _, group in groups]):
            for text in batch.column("text").to_pylist():
                yield text or ""


class Chunk(NamedTuple):
    """Texts of a shard that are tokenized, paired and packed together."""

    shard: int
    part: str
    number: int
    """No other chunk of the corpus and part has it."""
    texts: list[str]


def read_chunks(shard: Shard, held_out: Callable[[str], bool]) -> Iterator[Chunk]:
    """The texts of a shard in chunks, those that are held out apart from the others."""
    cutters = {part: _Cutter() for part in PARTS}
    numbers = {part: itertools.count(shard.number << 32) for part in PARTS}
    for text in texts_of(shard):
        part = HELD_OUT if held_out(text) else TRAINING
        if (texts := cutters[part].add(text)) is not None:
            yield Chunk(shard.number, part, next(numbers[part]), texts)
    for part, cutter in cutters.items():
        for texts in cutter.rest():
            yield Chunk(shard.number, part, next(numbers[part]), texts)


class _Cutter:
    """Cuts texts into chunks, whose borders depend on these texts alone. The newest is held back: the last may join."""

    def __init__(self) -> None:
        self._before: list[str] = []
        self._chunk: list[str] = []
        self._characters = 0

    def add(self, text: str) -> list[str] | None:
        """Take a text; gives a chunk that is complete now."""
        self._chunk.append(text)
        self._characters += len(text)
        if len(self._chunk) < CHUNK_DOCUMENTS and self._characters < CHUNK_CHARACTERS:
            return None
        complete, self._before = self._before, self._chunk
        self._chunk, self._characters = [], 0
        return complete or None

    def rest(self) -> list[list[str]]:
        """The chunks that are left after the last text."""
        if self._before and len(self._chunk) >= LAST_CHUNK_DOCUMENTS:
            return [self._before, self._chunk]
        return [self._before + self._chunk] if self._before or self._chunk else []


class ShardStore:
    """Finished shards of one set of rows.

    Args:
        work: folder of the shards of all sets.
        parts: everything that decides the rows, as JSON values.
    """

    def __init__(self, work: Path, parts: dict[str, Any]) -> None:
        self.work = Path(work)
        name = hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:12]
        self.folder = self.work / name
        self._places = [self.folder, *sorted(self.work.glob(f"share-*/{name}"))]
        self._found: dict[int, Path] = {}

    def path(self, number: int) -> Path:
        """Folder of a shard: where it was found whole, else where it is to be made."""
        return self._found.get(number, self.folder / _name(number))

    @contextlib.contextmanager
    def new(self, number: int) -> Iterator[tuple[Path, dict[str, Counts]]]:
        """Fill a shard whole or not at all: yields its folder and, empty, the counts of its parts."""
        counts: dict[str, Counts] = {}
        with new_folder(self.path(number)) as partial:
            yield partial, counts
            files = [path for path in sorted(partial.rglob("*")) if path.is_file()]
            hashes = {path.relative_to(partial).as_posix(): sha256_of(path) for path in files}
            write_json(partial / RECORD, {"counts": counts, "sha256": hashes})

    def finished(self, number: int) -> dict[str, Counts] | None:
        """The counts of a shard that is there with the bytes it was written with; None: it has to be made."""
        for place in self._places:
            if (counts := _counts_of(place / _name(number))) is not None:
                self._found[number] = place / _name(number)
                return counts
        return None

    def join(self, numbers: Sequence[int], part: str, target: Path) -> Manifest | None:
        """One row folder of those of finished shards: their files under new names, and their sums.

        Args:
            part: of PARTS.
            target: an existing folder.

        Returns:
            The manifest as written; None where no shard has rows.
        """
        folders = [self.path(number) / part for number in numbers]
        found = [(folder, read_manifest(folder)) for folder in folders if (folder / MANIFEST).is_file()]
        files: dict[str, int] = {}
        for folder, manifest in found:
            for name, rows in sorted(manifest.files.items()):
                new = row_file(len(files))
                link_or_copy(folder / name, target / new)
                files[new] = rows
        if not found:
            return None
        manifests = [manifest for _, manifest in found]
        whole = dataclasses.replace(
            manifests[0],
            rows=sum(manifest.rows for manifest in manifests),
            sequences=sum(manifest.sequences for manifest in manifests),
            real_tokens=sum(manifest.real_tokens for manifest in manifests),
            files=files,
        )
        (target / MANIFEST).write_text(whole.to_json(), encoding="utf-8")
        return whole

    def hand_over(self, share: int, numbers: Sequence[int]) -> None:
        """Put finished shards into the folder of the share with that number, which holds nothing else then."""
        with new_folder(self.work / f"share-{share}") as partial:
            for number in numbers:
                target = partial / self.folder.name / _name(number)
                shutil.copytree(self.path(number), target, copy_function=link_or_copy)
            # also where a corpus has fewer shards than there are shares: DVC wants an output
            write_json(partial / "share.json", {"shards": list(numbers)})
        self.remove()

    def remove(self) -> None:
        """Remove the shards that were made here, those of other sets too: what they were made for is done.

        Shares stay, as the outputs of their stages; where a file system has links they take no room of their own.
        """
        for made in self.work.glob("*"):
            if not made.name.startswith("share-"):
                shutil.rmtree(made)
        with contextlib.suppress(OSError):  # shares are left
            self.work.rmdir()


def _name(number: int) -> str:
    return f"shard-{number:05d}"


def _counts_of(folder: Path) -> dict[str, Counts] | None:
    """By part; None where no shard is, or one that is not as it was written."""
    if not folder.is_dir():
        return None
    try:
        record = read_json(folder / RECORD)
        if all(sha256_of(folder / name) == digest for name, digest in record["sha256"].items()):
            return {part: Counts(values) for part, values in record["counts"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        logger.debug("%s: %s", folder, error)
    logger.warning("%s is damaged; it is made again", folder)
    return None
