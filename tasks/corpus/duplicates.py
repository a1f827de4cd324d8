"""Duplicate documents in a corpus of any size: those that repeat an earlier one are removed.

Each document has keys: the hash of its text, and one of each band of its MinHash signature. Documents with an equal key
are compared, always with the first of them and with the previous one. Keys and signatures are on disk, one file for
each kind of key; any process searches one of them, sorted in parts. So memory grows by a byte per document, and 16 for
one that is removed. Whether a document is removed depends on the order of the documents, but not on how they are
divided when keys are made.

Legend: m documents, b bands, k pairs.
"""

from __future__ import annotations

import functools
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import xxhash
from numpy.typing import NDArray

from ipu_model.core.files import new_file
from tasks.params.sections import QualityParams
from tasks.records.minhash import (
    PERMUTATIONS,
    Hashes,
    choose_bands,
    extract_letters,
    hash_bands,
    make_shingles,
    make_signatures,
)
from tasks.records.parquet import split_into_groups
from tasks.stage.parallel import ordered_map

PIECE_CHARACTERS = 1 << 20
"""Characters of which a signature is made at a time: about 60 MB of memory."""
MAX_SORTED = 1 << 22
"""Keys sorted at a time, about 100 MB of memory."""
MAX_COMPARED = 1 << 16
COPIED_BYTES = 1 << 20
EXACT, NEAR = "duplicates: exact", "duplicates: near"
RULES = ("", EXACT, NEAR)


class DocumentKeys(NamedTuple):
    """Keys of m documents, which depend on their texts only."""

    exact: Hashes
    """Hash of each text, [m]; the text decides."""
    bands: Hashes
    """[m, b]; equal keys make two documents candidates."""
    signatures: NDArray[np.uint16]
    """Low bits of each MinHash signature, [m, PERMUTATIONS]."""


def make_keys(texts: Sequence[str], threshold: float | None) -> DocumentKeys:
    """Return the keys of texts; those for near-duplicates only with a threshold."""
    exact = np.array([xxhash.xxh3_64_intdigest(text.encode()) for text in texts], np.uint64)
    if threshold is None:
        return DocumentKeys(exact, np.zeros((len(texts), 0), np.uint64), np.zeros((len(texts), 0), np.uint16))
    signed = np.full((len(texts), PERMUTATIONS), np.iinfo(np.uint32).max, np.uint32)
    pieces = (
        (number, text[first : first + PIECE_CHARACTERS])
        for number, text in enumerate(texts)
        for first in range(0, len(text), PIECE_CHARACTERS)
    )
    for group in split_into_groups(pieces, lambda piece: len(piece[1]), len(texts), PIECE_CHARACTERS):
        shingles = make_shingles(extract_letters([text for _, text in group]))
        full = np.flatnonzero(np.diff(shingles.bounds))  # a piece of a long text may have no shingle
        owners, starts = np.unique(np.array([number for number, _ in group])[full], return_index=True)
        signed[owners] = np.minimum(signed[owners], np.minimum.reduceat(make_signatures(shingles)[full], starts))
    return DocumentKeys(exact, hash_bands(signed, *choose_bands(threshold)), signed.astype(np.uint16))


def keys_file(folder: Path, name: str) -> Path:
    """Return the file of one kind of keys: exact, signatures or band-N."""
    return folder / f"{name}.keys"


def add_keys(folder: Path, keys: DocumentKeys) -> None:
    """Add the keys of the next documents to the files of a folder."""
    columns: dict[str, np.ndarray] = {"exact": keys.exact, "signatures": keys.signatures}
    columns |= {f"band-{number}": keys.bands[:, number] for number in range(keys.bands.shape[1])}
    for name, values in columns.items():
        with keys_file(folder, name).open("ab") as file:
            file.write(values.tobytes())


def join_keys(source: Path, folder: Path) -> None:
    """Move the keys of the next documents from the folder `source` to the files of another one."""
    for path in source.glob(keys_file(source, "*").name):
        with path.open("rb") as new_keys, (folder / path.name).open("ab") as file:
            shutil.copyfileobj(new_keys, file, COPIED_BYTES)
        path.unlink()


def open_keys(path: Path, kind: type = np.uint64) -> np.ndarray:
    """Return the keys in a file."""
    return np.memmap(path, kind, "r") if path.is_file() and path.stat().st_size else np.zeros(0, kind)


def find_duplicates(
    folder: Path, params: QualityParams, workers: int
) -> tuple[NDArray[np.uint8], dict[str, tuple[int, int]]]:
    """Return for each document the number of the rule in RULES that removes it, 0 for none, [m]; and for each rule the
    numbers of an earlier document and the first one that it removes. Each worker searches one kind of keys."""
    names = ["exact"] if params.exact_duplicates else []
    if params.near_duplicates is not None:
        names += [f"band-{number}" for number in range(choose_bands(params.near_duplicates)[0])]
    removed, examples = np.zeros(len(open_keys(keys_file(folder, "exact"))), np.uint8), dict[str, tuple[int, int]]()
    find = functools.partial(find_pairs, keys_file(folder, "signatures"), params.near_duplicates)
    items = [(keys_file(folder, name), folder / f"{name}.pairs") for name in names]
    for name, path in zip(names, ordered_map(find, items, workers, folder), strict=True):
        pairs, rule = open_keys(path, np.int64).reshape(-1, 2), EXACT if name == "exact" else NEAR
        pairs = pairs[removed[pairs[:, 1]] == 0]
        if len(pairs):
            removed[pairs[:, 1]] = RULES.index(rule)
            examples.setdefault(rule, tuple(pairs[pairs[:, 1].argmin()].tolist()))
    return removed, examples


def find_pairs(signatures: Path, threshold: float | None, item: tuple[Path, Path]) -> Path:
    """Write pairs of an earlier document and one that repeats it to a file, [k, 2], and return its path.

    Signatures and threshold decide on documents with an equal key, unless it is that of the text. `item` is the file of
    the keys, and the file to write.
    """
    keys, target = item
    signed = open_keys(signatures, np.uint16).reshape(-1, PERMUTATIONS)
    with new_file(target) as partial, partial.open("wb") as file:
        for every in find_equal(open_keys(keys)):
            for first in range(0, len(every), MAX_COMPARED):
                pairs = every[first : first + MAX_COMPARED]
                if keys.stem != "exact":
                    pairs = pairs[(signed[pairs[:, 0]] == signed[pairs[:, 1]]).mean(axis=1) >= threshold]
                file.write(pairs.tobytes())
    return target


def find_equal(keys: np.ndarray) -> Iterator[np.ndarray]:
    """Yield pairs of places with equal keys: each with the previous and with the first one. [k, 2]"""
    parts = 1 + len(keys) // MAX_SORTED
    for part in range(parts):
        blocks = range(0, len(keys), MAX_SORTED)
        chosen = [start + np.flatnonzero(keys[start : start + MAX_SORTED] % parts == part) for start in blocks]
        places = np.concatenate([np.zeros(0, np.int64), *chosen])
        places = places[np.argsort(keys[places], kind="stable")]
        repeats = np.concatenate([[False], keys[places[1:]] == keys[places[:-1]]])[: len(places)]
        first = places[np.maximum.accumulate(np.where(repeats, 0, np.arange(len(places))))]
        later = np.flatnonzero(repeats)
        for earlier in (places[later - 1], first[later]):
            yield np.stack([earlier, places[later]], axis=1)
