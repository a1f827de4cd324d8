"""Lines of text files, and the problems of their records.

Files packed with gzip or zstandard (train.json.gz, text.csv.zst) are unpacked as a stream. The unpacked size is bounded
by the packed size: text shrinks to a third or a tenth, and a file that shrank to a thousandth was made to fill a disk
or memory.
"""

from __future__ import annotations

import array
import codecs
import collections
import io
import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

from ipu_model.core.files import open_regular, require_regular
from tasks.stage.errors import InputError

if TYPE_CHECKING:
    import numpy as np

MAX_LINE_BYTES = 64 << 20
"""Longer lines are refused, since a line is held in memory as a whole."""
BYTE_ORDER_MARKS = {b"\xff\xfe\0\0": "UTF-32", b"\0\0\xfe\xff": "UTF-32", b"\xff\xfe": "UTF-16", b"\xfe\xff": "UTF-16"}
"""Byte order mark -> encoding; longer marks first, because UTF-32's begins with UTF-16's."""
BLOCK_BYTES = 1 << 20
"""Bytes read at a time, and inspected to detect the line ending."""
ZERO_WIDTH = "\u200b\ufeff"
"""Zero-width space and byte order mark: a line of only these looks blank."""
BLANKS = f"{ZERO_WIDTH} \t\r\n"
CODECS = {".gz": "gzip", ".zst": "zstd"}
"""Suffix of a packed file -> codec."""
NEVER_PACKED = (".parquet", ".arrow")
"""Formats that need random access and are compressed inside."""
FREE_BYTES = 64 << 20
"""Unpacked bytes that are always allowed."""
MAX_RATIO = 200
"""Unpacked bytes allowed per packed byte, beyond FREE_BYTES."""
_C1 = re.compile(b"\xc2[\x80-\x84\x86-\x9f]")
"""UTF-8 of the C1 control characters, without the line end U+0085: they are punctuation in WINDOWS-1252."""
SHOWN_PLACES, QUOTED = 5, 40
"""Positions listed for each kind of problem (the rest are counted), and characters quoted from the user's text."""


class FileRange(NamedTuple):
    """A part of a file that is not packed: bytes of text from the start of a line, or row groups of Parquet."""

    number: int = 0
    start: int = 0
    stop: int | None = None
    """End of the part; None: the whole file."""
    line: int = 1
    """Number of the first line, for messages."""


WHOLE = FileRange()


class ProblemList:
    """Problems found in the records of a source, reported together: for each kind a few positions and a count."""

    def __init__(self, source: str, required: str) -> None:
        """Start an empty list; `source` is named in the message, and `required` is what its records must be."""
        self.source, self.required = source, required
        self._counts: collections.Counter[str] = collections.Counter()
        self._shown: dict[str, list[str]] = {}

    def add(self, kind: str, where: str, value: object = None) -> None:
        """Add a problem at the position `where`, with the value there; equal kinds are counted together."""
        self._counts[kind] += 1
        shown = self._shown.setdefault(kind, [])
        if len(shown) < SHOWN_PLACES:
            shown.append(where if value is None else f"{where} ({value!r:.{QUOTED}})")

    @property
    def count(self) -> int:
        """Number of problems."""
        return self._counts.total()

    def refuse(self) -> None:
        """Raise InputError if there are any problems."""
        if not self._counts:
            return
        lines = []
        for kind, count in self._counts.items():
            more = f" and {count - len(self._shown[kind]):,} more" if count > len(self._shown[kind]) else ""
            lines.append(f"\n  {kind}: {', '.join(self._shown[kind])}{more}")
        problems = "1 problem" if self.count == 1 else f"{self.count:,} problems"
        raise InputError(f"{self.source} cannot be used as {self.required}; {problems}:{''.join(lines)}")


def count_repetitions(hashes: array.array[int] | np.ndarray) -> int:
    """Count the 64-bit hashes that repeat an earlier one; sorts the array in place to need no further memory.

    A billion different texts are expected to share 0.03 hashes by chance.
    """
    import numpy as np  # not needed by scoring, which imports this module

    ordered = np.frombuffer(hashes, np.int64)
    ordered.sort()
    return int(np.count_nonzero(ordered[1:] == ordered[:-1]))


def refuse_empty(path: Path, key: str) -> None:
    """Refuse an empty file, which was most likely cut off or never written, and what is not a file."""
    status = path.stat()
    require_regular(status.st_mode, path)
    if status.st_size == 0:
        raise InputError(f"{path} is empty: add rows or remove the file ({key})")


def find_text_problem(value: Any) -> str:
    """Return what is wrong with a value that must be text, such as "is not text"; empty if nothing is."""
    try:
        return "" if isinstance(value, str) and value.encode() is not None else "is not text"
    except UnicodeEncodeError:
        return "has half a surrogate pair, which is not valid Unicode"


def find_control(value: Any) -> str:
    """Return the first C1 control character in a text, or in lists and objects of texts, as U+0093; empty: none."""
    if isinstance(value, str):
        sign = None if value.isascii() else _C1.search(value.encode("utf-8", "surrogatepass"))
        return f"U+{ord(sign[0].decode()):04X}" if sign else ""
    values = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return next(filter(None, map(find_control, values)), "")


def peek(path: Path, most: int) -> bytes:
    """Return the first unpacked bytes of a file, without a byte order mark and leading white space."""
    with open_unpacked(path) as stream:
        return stream.read(most).removeprefix(codecs.BOM_UTF8).lstrip()


def read_lines(path: Path, key: str, *, raw: bool = False, part: FileRange = WHOLE) -> Iterator[str]:
    """Yield the lines of a text file with their ends; lines of only ZERO_WIDTH characters and white space become empty.

    A file without any "\\n" is split at "\\r" (classic Mac OS), and is not divided into parts. If `raw`, all lines stay
    as they are.

    Raises:
        InputError: see `read_text`, or a line longer than MAX_LINE_BYTES.
    """
    rest, end, number = "", "" if part.stop is None else "\n", part.line
    for block in read_text(path, key, part):
        end = end or ("\r" if "\n" not in block and "\r" in block[:-1] else "\n")  # the last one may begin "\r\n"
        text = rest + block.replace(end, "\n")
        lines = io.StringIO(text, newline="\n").readlines()
        if max(map(len, lines)) > MAX_LINE_BYTES:
            number += next(at for at, line in enumerate(lines) if len(line) > MAX_LINE_BYTES)
            raise InputError(f"{path}, line {number} is longer than {MAX_LINE_BYTES >> 20} MB: split it ({key})")
        rest = "" if lines[-1].endswith("\n") else lines.pop()
        has_zero_width = not text.isascii() and any(character in text for character in ZERO_WIDTH)
        yield from map(_empty_blank, lines) if has_zero_width and not raw else lines
        number += len(lines)
    if rest:
        yield rest if raw else _empty_blank(rest)


def _empty_blank(line: str) -> str:
    return line if line.strip(BLANKS) or line.isspace() else "\n"


def read_text(path: Path, key: str, part: FileRange = WHOLE) -> Iterator[str]:
    """Yield the text of a UTF-8 file, packed or not, in blocks and without a byte order mark. Messages name `key`.

    Raises:
        InputError: binary content, another encoding (with byte offset and line), or a read error of the disk.
    """
    offset, line, rest = part.start, part.line, b""
    try:
        for block in itertools.chain(read_bytes(path, part), [b""]):
            content = rest + block
            text, used = _decode(content, not block, path, key, offset, line)
            if text := text.removeprefix("\ufeff") if offset == 0 else text:
                yield text
            offset, line, rest = offset + used, line + _count_lines(content, used), content[used:]
    except OSError as error:
        raise InputError(f"{path} cannot be read at offset {offset} ({error.strerror or error}) ({key})") from None


def read_bytes(path: Path, part: FileRange = WHOLE) -> Iterator[bytes]:
    """Yield the unpacked bytes of a file, or of a part of it, in blocks."""
    with open_unpacked(path) as stream:
        at = stream.seek(part.start) if part.start else 0
        while block := stream.read(BLOCK_BYTES if part.stop is None else min(BLOCK_BYTES, part.stop - at)):
            yield block
            at += len(block)


def _decode(content: bytes, is_last: bool, path: Path, key: str, offset: int, line: int) -> tuple[str, int]:
    """Return the text of a part of a file that begins at this position, and its number of bytes: its last character may
    be incomplete."""
    mark = next((name for prefix, name in BYTE_ORDER_MARKS.items() if content.startswith(prefix)), "")
    if mark and offset == 0:
        raise InputError(
            f"{path} is {mark} (byte order mark at offset 0, line 1); UTF-8 is required. "
            f"Convert the file, e.g. iconv -f {mark} -t UTF-8 ({key})"
        )
    if (nul := content.find(b"\0")) >= 0:
        raise InputError(
            f"{path} is binary, or UTF-16 without a byte order mark: found a NUL byte at offset {offset + nul} "
            f"(line {line + _count_lines(content, nul)}); a UTF-8 text file is required ({key})"
        )
    try:
        return codecs.utf_8_decode(content, "strict", is_last)
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path} is not UTF-8: found byte 0x{content[error.start]:02x} at offset {offset + error.start} "
            f"(line {line + _count_lines(content, error.start)}). "
            f"Convert the file, e.g. iconv -f {_guess_encoding(content[error.start :])} -t UTF-8 ({key})"
        ) from None


def _guess_encoding(content: bytes) -> str:
    """Return WINDOWS-1252 for bytes that are punctuation there and control characters in ISO-8859-1."""
    try:
        is_windows = re.search(b"[\x80-\x9f]", content) and content.decode("cp1252")
    except UnicodeDecodeError:  # five of these bytes have no character
        is_windows = ""
    return "WINDOWS-1252" if is_windows else "ISO-8859-1"


def _count_lines(content: bytes, end: int) -> int:
    return content.count(b"\n", 0, end) or content.count(b"\r", 0, end)


def file_suffix(path: Path) -> str:
    """Return the suffix of the unpacked file in lower case: file_suffix(Path("a.CSV.gz")) == ".csv"."""
    if path.suffix.lower() in CODECS and Path(path.stem).suffix.lower() not in ("", *NEVER_PACKED):
        return Path(path.stem).suffix.lower()
    return path.suffix.lower()


def open_unpacked(path: Path) -> BinaryIO:
    """Open a file for reading bytes, unpacked according to its suffix. A packed stream cannot seek.

    Raises:
        InputError: while reading: the file unpacks to too much.
        OSError: the file cannot be opened; while reading: it is damaged, cut off, or not packed as its suffix states.
    """
    return io.BufferedReader(_Unpacked(path)) if path.suffix.lower() in CODECS else open_regular(path)


class _Unpacked(io.RawIOBase):
    def __init__(self, path: Path) -> None:
        import pyarrow as pa

        self._path, self._suffix, self._unpacked_bytes = path, path.suffix.lower(), 0
        self._packed = open_regular(path)
        self._stream = pa.CompressedInputStream(pa.PythonFile(self._packed, mode="r"), CODECS[self._suffix])

    def close(self) -> None:
        self._stream.close()
        self._packed.close()
        super().close()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            data = self._stream.read(len(buffer))
        except OSError as error:
            raise OSError(f"the {self._suffix} data are damaged or cut off: {error}") from None
        self._unpacked_bytes += len(data)
        if self._unpacked_bytes > FREE_BYTES + MAX_RATIO * self._packed.tell():
            raise InputError(
                f"{self._path} unpacks to more than {FREE_BYTES >> 20} MB and {MAX_RATIO} times its size, which is "
                "unusual for text. Check its content; if it is right, unpack it yourself and name the unpacked file"
            )
        buffer[: len(data)] = data
        return len(data)
