"""Texts as sets of shingles: every run of so many neighbouring characters, as a 64-bit hash.

What differs only in case, punctuation, white space or the form of a character (NFKC) has the same letters, and so the
same shingles. Runs of characters and not of words, so that a text of three words and a script without blanks have some.

Legend: n letters of all texts together, m texts, k shingles.
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
"""Odd, so that it has an inverse modulo 2**64."""
_BLANK = 32
_BASIC = 0x10000
"""Characters from here on are few, and not looked up in a table."""


@dataclass(frozen=True)
class Letters:
    """The letters of some texts in a row: lower case, a blank before each word, nothing else between words."""

    codes: NDArray[np.uint32]
    """[n] code points."""
    bounds: NDArray[np.int64]
    """[m + 1]: text i is codes[bounds[i] : bounds[i + 1]]; empty where a text is."""

    def text(self, first: int, last: int) -> str:
        """Some of them as a person reads them."""
        return self.codes[first:last].astype("<u4").tobytes().decode("utf-32-le", "replace").strip()


@dataclass(frozen=True)
class Shingles:
    """The shingles of some texts."""

    hashes: Hashes
    """[k], those of a text in their order, equal ones as often as they occur."""
    bounds: NDArray[np.int64]
    """[m + 1]: those of text i are hashes[bounds[i] : bounds[i + 1]]."""

    def of(self, text: int) -> Hashes:
        """Those of one text."""
        return self.hashes[self.bounds[text] : self.bounds[text + 1]]


def letters_of(texts: Sequence[str]) -> Letters:
    """The letters of texts."""
    plain = [" " + _plain(text) for text in texts]
    codes = np.frombuffer("".join(plain).encode("utf-32-le", "replace"), "<u4").astype(np.uint32, copy=False)
    ends = np.cumsum([0, *map(len, plain)])
    letter = _are_letters(codes)
    kept = letter.copy()
    kept[:-1] |= letter[1:]  # of all that stands between words the last one, which becomes a blank
    bounds = np.concatenate([[0], np.cumsum(kept)])[ends]
    return Letters(np.where(letter, codes, _BLANK)[kept].astype(np.uint32), bounds.astype(np.int64))


def _plain(text: str) -> str:
    """A text in lower case; one without a letter as the numbers of its characters, so that it is like itself alone."""
    found = unicodedata.normalize("NFKC", text).casefold()
    return found if any(map(str.isalnum, found)) else " ".join(f"u{ord(sign):x}" for sign in "".join(found.split()))


def _are_letters(codes: NDArray[np.uint32]) -> NDArray[np.bool_]:
    found = _basic_letters()[np.minimum(codes, _BASIC)]
    if len(beyond := np.flatnonzero(codes >= _BASIC)):
        signs, which = np.unique(codes[beyond], return_inverse=True)
        found[beyond] = np.array([chr(code).isalnum() for code in signs.tolist()])[which]
    return found


@lru_cache(maxsize=1)
def _basic_letters() -> NDArray[np.bool_]:
    return np.array([chr(code).isalnum() for code in range(_BASIC)] + [False])


def shingles_of(letters: Letters, size: int) -> Shingles:
    """The shingles of texts.

    Args:
        size: characters of a shingle; a text that has fewer is one shingle, an empty one has none.
    """
    lengths = np.diff(letters.bounds)
    counts = np.maximum(lengths - size + 1, lengths > 0)
    bounds = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    starts = np.arange(bounds[-1]) + np.repeat(letters.bounds[:-1] - bounds[:-1], counts)
    return Shingles(hashes_at(letters, starts, np.repeat(np.minimum(lengths, size), counts)), bounds)


def hashes_at(letters: Letters, starts: NDArray[np.int64], lengths: NDArray[np.int64] | int) -> Hashes:
    """Hashes of runs of letters.

    Args:
        starts: [k] first letter of each.
        lengths: [k] how many letters each has, or one number for all.
    """
    powers, inverses = _powers(1 << max(10, int(len(letters.codes)).bit_length()))
    # Differences of sums of codes[i] * BASE**i, moved back to exponent 0: any run costs the same, whatever its length.
    sums = np.zeros(len(letters.codes) + 1, np.uint64)
    np.cumsum(letters.codes * powers[: len(letters.codes)], out=sums[1:])
    found = (sums[starts + lengths] - sums[starts]) * inverses[starts]
    return mixed(found)  # the low bits of such a sum hardly depend on the high ones of the letters


def mixed(numbers: Hashes) -> Hashes:
    """Other numbers, one for each, every bit of which depends on all bits of the first."""
    found = numbers ^ (numbers >> np.uint64(32))
    found *= np.uint64(0xD6E8FEB86659FD93)
    found ^= found >> np.uint64(32)
    return found


@lru_cache(maxsize=2)
def _powers(count: int) -> tuple[Hashes, Hashes]:
    """BASE**i and BASE**-i modulo 2**64 for i below `count`. uint64 [count] each."""
    return _powers_of(BASE, count), _powers_of(pow(BASE, -1, 1 << 64), count)


def _powers_of(base: int, count: int) -> Hashes:
    factors = np.full(count, base, np.uint64)
    factors[0] = 1
    return np.cumprod(factors)
