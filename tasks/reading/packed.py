"""Files packed with gzip or zstandard (train.json.gz, text.csv.zst), read as what they hold, a little at a time.

What they unpack to is bounded by what they are packed in: text shrinks to a third or a tenth, and what shrank to a
thousandth is made to fill a disk or a memory.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from ipu_model.files import open_regular
from tasks.project.errors import InputError

PACKINGS = (".gz", ".zst")
NEVER_PACKED = (".parquet", ".arrow")
"""Read from any place on, and packed inside as it is."""
FREE_BYTES = 64 << 20
MOST = 200
"""Bytes that a packed byte may unpack to, beyond FREE_BYTES."""


def ending_of(path: Path) -> str:
    """How the name of what a file holds ends, in small letters: ending_of(Path("a.CSV.gz")) == ".csv"."""
    if path.suffix.lower() in PACKINGS and Path(path.stem).suffix.lower() not in ("", *NEVER_PACKED):
        return Path(path.stem).suffix.lower()
    return path.suffix.lower()


@contextlib.contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """The bytes of a file, unpacked where its name says that it is packed; such a stream is read from its start on.

    Raises:
        InputError: while it is read: it unpacks to too much.
        OSError: it cannot be opened; while it is read: it is damaged, cut off, or not packed as its name says.
    """
    stream = io.BufferedReader(_Unpacked(path)) if path.suffix.lower() in PACKINGS else open_regular(path)
    with stream:
        yield stream


class _Unpacked(io.RawIOBase):
    def __init__(self, path: Path) -> None:
        self._path, self._packing, self._given = path, path.suffix.lower(), 0
        self._packed = open_regular(path)
        self._stream: Any = _unpacking(self._packed, self._packing)

    def close(self) -> None:
        self._stream.close()
        self._packed.close()
        super().close()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            found = self._stream.read(len(buffer))
        except (EOFError, zlib.error) as error:
            raise OSError(f"its packing ({self._packing}) is damaged or cut off: {error}") from None
        self._given += len(found)
        if self._given > FREE_BYTES + MOST * self._packed.tell():
            raise InputError(
                f"{self._path} unpacks to more than {FREE_BYTES >> 20} MB and {MOST} times its size, which no text "
                "does: look at what is in it, and give it unpacked if it is right"
            )
        buffer[: len(found)] = found
        return len(found)


def _unpacking(packed: BinaryIO, packing: str) -> Any:
    if packing == ".gz":
        return gzip.GzipFile(fileobj=packed)
    import pyarrow as pa

    return pa.CompressedInputStream(pa.PythonFile(packed, mode="r"), "zstd")
