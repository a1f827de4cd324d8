"""MinHash signatures of texts, which estimate how many of their shingles two texts share.

Two texts are near-duplicates if the Jaccard similarity of their sets of shingles reaches a threshold. A shingle is the
64-bit hash of a fixed number of consecutive characters. Texts that differ only in case, punctuation, white space or
character form (NFKC) have the same letters, and so the same shingles. Shingles of characters instead of words also work
for texts of three words and for scripts without spaces.

Legend: n letters of all texts, m texts, k shingles.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Hashes = NDArray[np.uint64]
BASE = 0x9E3779B97F4A7C15
"""Base of the rolling hash; odd, so that it has an inverse modulo 2**64."""
_BLANK = 32
_BASIC = 0x10000
"""Code points from here on are rare and are not looked up in a table."""
SHINGLE = 5
"""Characters of a shingle."""
PERMUTATIONS = 128
MAX_MISSED = 0.001
"""Share of the pairs at the threshold that the bands may miss."""


@dataclass(frozen=True)
class NormalizedLetters:
    """Normalized letters of texts, concatenated: lower case, one space before each word, no other characters."""

    codes: NDArray[np.uint32]
    """Code points, [n]."""
    bounds: NDArray[np.int64]
    """[m + 1]; text i is codes[bounds[i] : bounds[i + 1]]."""

    def text(self, first: int, last: int) -> str:
        """Return a range of letters as readable text."""
        return self.codes[first:last].astype("<u4").tobytes().decode("utf-32-le", "replace").strip()


@dataclass(frozen=True)
class Shingles:
    """Shingles of texts."""

    hashes: Hashes
    """Shingles in order of the text, with repetitions, [k]."""
    bounds: NDArray[np.int64]
    """[m + 1]; text i has the shingles hashes[bounds[i] : bounds[i + 1]]."""

    def for_text(self, text: int) -> Hashes:
        """Return the shingles of one text."""
        return self.hashes[self.bounds[text] : self.bounds[text + 1]]


def extract_letters(texts: Sequence[str]) -> NormalizedLetters:
    """Return the normalized letters of texts."""
    plain = [" " + _normalize_text(text) for text in texts]
    codes = np.frombuffer("".join(plain).encode("utf-32-le", "replace"), "<u4").astype(np.uint32, copy=False)
    ends = np.cumsum([0, *map(len, plain)])
    letter = _basic_letters()[np.minimum(codes, _BASIC)]
    if len(beyond := np.flatnonzero(codes >= _BASIC)):
        signs, inverse = np.unique(codes[beyond], return_inverse=True)
        letter[beyond] = np.array([chr(code).isalnum() for code in signs.tolist()])[inverse]
    mask = letter.copy()
    mask[:-1] |= letter[1:]  # the last character between two words becomes a space
    bounds = np.concatenate([[0], np.cumsum(mask)])[ends]
    return NormalizedLetters(np.where(letter, codes, _BLANK)[mask].astype(np.uint32), bounds.astype(np.int64))


def _normalize_text(text: str) -> str:
    """Return a text in lower case; a text without letters as its code points, so that it only matches itself."""
    normalized = unicodedata.normalize("NFKC", text).casefold()
    if any(map(str.isalnum, normalized)):
        return normalized
    return " ".join(f"u{ord(sign):x}" for sign in "".join(normalized.split()))


@lru_cache(maxsize=1)
def _basic_letters() -> NDArray[np.bool_]:
    return np.array([chr(code).isalnum() for code in range(_BASIC)] + [False])


def make_shingles(letters: NormalizedLetters) -> Shingles:
    """Return the shingles of texts; one shorter than SHINGLE is one shingle, an empty one has none."""
    lengths = np.diff(letters.bounds)
    counts = np.maximum(lengths - SHINGLE + 1, lengths > 0)
    bounds = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    starts = np.arange(bounds[-1]) + np.repeat(letters.bounds[:-1] - bounds[:-1], counts)
    return Shingles(hash_runs(letters, starts, np.repeat(np.minimum(lengths, SHINGLE), counts)), bounds)


def hash_runs(letters: NormalizedLetters, starts: NDArray[np.int64], lengths: NDArray[np.int64] | int) -> Hashes:
    """Return the hashes of runs of letters; `lengths` is [k], or one number for all."""
    powers, inverses = _powers_and_inverses(1 << max(10, int(len(letters.codes)).bit_length()))
    # Differences of sums of codes[i] * BASE**i, shifted to exponent 0: the cost does not depend on the length.
    sums = np.zeros(len(letters.codes) + 1, np.uint64)
    np.cumsum(letters.codes * powers[: len(letters.codes)], out=sums[1:])
    hashes = (sums[starts + lengths] - sums[starts]) * inverses[starts]
    return mix_bits(hashes)  # low bits of the sum hardly depend on high bits of the letters


def mix_bits(numbers: Hashes) -> Hashes:
    """Map numbers one-to-one so that every bit depends on all bits of the input."""
    mixed = numbers ^ (numbers >> np.uint64(32))
    mixed *= np.uint64(0xD6E8FEB86659FD93)
    mixed ^= mixed >> np.uint64(32)
    return mixed


@lru_cache(maxsize=2)
def _powers_and_inverses(count: int) -> Hashes:
    """Return BASE**i and BASE**-i modulo 2**64 for i below `count`. uint64 [2, count]."""
    factors = np.repeat(np.array([[BASE], [pow(BASE, -1, 1 << 64)]], np.uint64), count, axis=1)
    factors[:, 0] = 1
    return np.cumprod(factors, axis=1)


def choose_bands(threshold: float) -> tuple[int, int]:
    """Return numbers of bands and rows with the fewest candidates that miss at most MAX_MISSED of the pairs."""
    for rows in range(PERMUTATIONS // 2, 1, -1):
        bands = PERMUTATIONS // rows
        if (1 - threshold**rows) ** bands <= MAX_MISSED:
            return bands, rows
    return PERMUTATIONS, 1


def make_signatures(shingles: Shingles) -> NDArray[np.uint32]:
    """Return the MinHash signature of each text; undefined without shingles. uint32 [m, PERMUTATIONS].

    Each permutation is applied to all texts together: a call per text would take five times as long.
    """
    signatures = np.zeros((PERMUTATIONS, len(shingles.bounds) - 1), np.uint32)
    full = np.flatnonzero(np.diff(shingles.bounds))
    if len(full):
        hashes, starts = _high_bits(shingles.hashes), shingles.bounds[full]
        # factor * hash + term modulo 2**32 is one-to-one, because the factor is odd.
        factors = _high_bits(np.arange(PERMUTATIONS, dtype=np.uint64)) | np.uint32(1)
        terms = _high_bits(np.arange(PERMUTATIONS, 2 * PERMUTATIONS, dtype=np.uint64))
        for number in range(PERMUTATIONS):
            signatures[number, full] = np.minimum.reduceat(hashes * factors[number] + terms[number], starts)
    return np.ascontiguousarray(signatures.T)


def hash_bands(signatures: NDArray[np.uint32], bands: int, rows: int) -> Hashes:
    """Return a hash of each band of each signature. uint64 [m, bands]."""
    parts = signatures[:, : bands * rows].astype(np.uint64).reshape(len(signatures), bands, rows)
    # A collision costs one comparison and changes no result.
    return mix_bits((parts * mix_bits(np.arange(1, rows + 1, dtype=np.uint64))).sum(axis=2, dtype=np.uint64))


def _high_bits(numbers: Hashes) -> NDArray[np.uint32]:
    """Return the high 32 bits of the mixed numbers."""
    return (mix_bits(numbers) >> np.uint64(32)).astype(np.uint32)


def jaccard_similarity(hashes: Hashes, other: Hashes) -> float:
    """Return the Jaccard similarity of two sets of shingles, 0 to 1."""
    first, second = np.unique(hashes), np.unique(other)
    both = len(np.intersect1d(first, second, assume_unique=True))
    return both / (len(first) + len(second) - both)
