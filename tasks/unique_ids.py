"""Are all ids of a data set different? Eight bytes of memory per id."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterable

import numpy as np

from tasks.errors import InputError


class UniqueIds:
    """Collects 64-bit checksums; only ids whose checksums meet are compared as text, in a second reading."""

    def __init__(self) -> None:
        self._sums = array("Q")

    def add(self, ids: Iterable[str]) -> None:
        self._sums.extend(
            int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little") for name in ids
        )

    def check(self, ids: Iterable[str]) -> None:
        """Read all ids once more if need be.

        Raises:
            InputError: some ids stand more than once; the first ten are named.
        """
        sums = np.sort(np.frombuffer(self._sums, dtype=np.uint64)) if self._sums else np.empty(0, np.uint64)
        suspects = set(sums[1:][sums[1:] == sums[:-1]].tolist())
        if not suspects:
            return
        seen: set[str] = set()
        repeated: list[str] = []
        for name in ids:
            checksum = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")
            if checksum in suspects:
                if name in seen:
                    repeated.append(name)
                seen.add(name)
        if repeated:
            raise InputError(
                f"document_id must be unique: {len(repeated)} repeated, the first: {', '.join(repeated[:10])}; give "
                "every document its own, or leave the column out (ids are then made from file name and number)"
            )
