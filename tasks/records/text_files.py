"""Lines of the user's text files, and what a stage notes while it reads: counted and reported, never passed over.

Files packed with gzip or zstandard (train.json.gz, text.csv.zst) are read as what they hold, a little at a time.
What they unpack to is bounded by what they are packed in: text shrinks to a third or a tenth, and what shrank to a
thousandth is made to fill a disk or a memory.
"""

from __future__ import annotations

import array
import codecs
import collections
import contextlib
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from ipu_model.files import open_regular, read_json, require_regular, write_json
from tasks.stage import artifacts, streams
from tasks.stage.errors import InputError

MAX_LINE_BYTES = 64 << 20
"""A longer line is refused: it would have to be held in memory as a whole."""
MARKS = {b"\xff\xfe\0\0": "UTF-32", b"\0\0\xfe\xff": "UTF-32", b"\xff\xfe": "UTF-16", b"\xfe\xff": "UTF-16"}
"""How files of other encodings begin, on any machine; the longer marks first, as one begins like a shorter one."""
BLOCK_BYTES = 1 << 20
"""Looked at to find out how lines end, and read at a time where they end in a way that Python's streams do not know."""
ZERO_WIDTH = "\u200b\ufeff"
"""Zero-width space and byte order mark: a line of them alone looks blank."""
PACKINGS = {".gz": "gzip", ".zst": "zstd"}
"""Ending of a packed file -> its codec."""
NEVER_PACKED = (".parquet", ".arrow")
"""Read from any place on, and packed inside as it is."""
FREE_BYTES = 64 << 20
MOST = 200
"""Bytes that a packed byte may unpack to, beyond FREE_BYTES."""
NUMBERS = "ids that were numbers, taken as text"
SHOWN_NAMES = 20
"""Names of files and columns kept in reading.json; the others are counted."""
SHOWN_PLACES, QUOTED = 5, 40
"""Places shown of a kind of problem, the others are counted; and characters of the user's text quoted there."""


@dataclass
class Reading:
    """What reading gave besides the records; filled while they are consumed."""

    files: int = 0
    ignored: list[str] = field(default_factory=list)
    """Files of the folder that no reader takes."""
    layouts: dict[str, str] = field(default_factory=dict)
    """Text file -> the layout it was read with."""
    unused_columns: set[str] = field(default_factory=set)
    """Columns of tables that nothing asks for."""
    counts: collections.Counter[str] = field(default_factory=collections.Counter)
    """What was left out or changed, in words -> how often: "empty documents left out", ..."""
    remarks: list[str] = field(default_factory=list)
    """How files were read where that was not clear from their names: which separator, which column."""

    def remark(self, text: str) -> None:
        """Add a remark that was not made yet."""
        if text not in self.remarks:
            self.remarks.append(text)

    def note_remarks(self) -> None:
        """Say the remarks on the terminal, whatever else of a stage's output is shown there."""
        for text in self.remarks[:SHOWN_NAMES]:
            streams.note(text)

    def numbers(self) -> dict[str, int]:
        """The figures that a person wants to see, those that are 0 left out."""
        seen = {
            "files read": self.files,
            "files ignored": len(self.ignored),
            "columns not used": len(self.unused_columns),
        }
        return {name: count for name, count in [*seen.items(), *sorted(self.counts.items())] if count}

    def summary(self) -> list[str]:
        """Parts of a stage's last line."""
        files = "1 file" if self.files == 1 else f"{self.files} files"
        said = [f"{files} read, {len(self.ignored)} ignored"] if self.files else []
        if self.layouts:
            said.append(f"layout {', '.join(sorted(set(self.layouts.values())))}")
        if self.unused_columns:
            said.append(f"columns not used: {', '.join(sorted(self.unused_columns)[:SHOWN_NAMES])}")
        return said + [f"{count:,} {what}" for what, count in sorted(self.counts.items()) if count] + self.remarks


class Problems:
    """What is wrong with the records of a source, said at once: each kind of problem with a few places and a count."""

    def __init__(self, source: str, meant: str) -> None:
        """Collect nothing yet.

        Args:
            source: in words.
            meant: what its records are to be.
        """
        self.source, self.meant = source, meant
        self._counts: dict[str, int] = {}
        self._shown: dict[str, list[str]] = {}

    def add(self, kind: str, where: str, found: object = None) -> None:
        """Note a problem.

        Args:
            kind: in words; equal ones are counted together.
            where: the place in the source.
            found: what stands there.
        """
        self._counts[kind] = self._counts.get(kind, 0) + 1
        shown = self._shown.setdefault(kind, [])
        if len(shown) < SHOWN_PLACES:
            shown.append(where if found is None else f"{where} ({found!r:.{QUOTED}})")

    def refuse(self) -> None:
        """Raise InputError with what was collected, if anything was."""
        if not self._counts:
            return
        lines = []
        for kind, count in self._counts.items():
            more = f" and {count - len(self._shown[kind]):,} more" if count > len(self._shown[kind]) else ""
            lines.append(f"\n  {kind}: {', '.join(self._shown[kind])}{more}")
        total = sum(self._counts.values())
        raise InputError(f"{self.source} is not usable as {self.meant}, {total:,} problem(s):{''.join(lines)}")


def write_reading(folder: Path, source: str, reading: Reading) -> None:
    """Write reading.json beside the data that were read."""
    values: dict[str, Any] = {
        "source": source,
        "numbers": reading.numbers(),
        "layouts": sorted(set(reading.layouts.values())),
        "ignored": reading.ignored[:SHOWN_NAMES],
        "columns_not_used": sorted(reading.unused_columns)[:SHOWN_NAMES],
        "remarks": reading.remarks[:SHOWN_NAMES],
    }
    write_json(folder / artifacts.READING, values)


def add_to_reading(folder: Path, numbers: Mapping[str, int], notes: Sequence[str]) -> None:
    """Add figures to reading.json, those that are 0 left out.

    Args:
        notes: names of those that people must know who read scores.
    """
    path = Path(folder) / artifacts.READING
    values = read_json(path)
    values["numbers"] |= {name: count for name, count in numbers.items() if count}
    write_json(path, {**values, "notes": list(notes)})


def read_reading(folder: Path) -> dict[str, Any]:
    """reading.json of a data folder: `source`, `numbers`, `notes` and `remarks`; an empty source where there is none.

    Raises:
        InputError: it is damaged.
    """
    path = Path(folder) / artifacts.READING
    if not path.is_file():
        return {"source": "", "numbers": {}, "notes": [], "remarks": []}
    try:
        values = read_json(path)
        numbers = {str(name): int(count) for name, count in values["numbers"].items()}
        texts = {key: [str(name) for name in values.get(key, ())] for key in ("notes", "remarks")}
        return {"source": str(values["source"]), "numbers": numbers, **texts}
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise InputError(f"{path} is not what its stage writes ({error}): delete {folder} and run that stage") from None


def repetitions(hashes: array.array[int]) -> int:
    """How many of these 64-bit hashes are one too many; they are sorted in place, so that no memory is needed.

    A billion different texts share 0.03 of them by chance.
    """
    import numpy as np  # scoring reads files without it

    ordered = np.frombuffer(hashes, np.int64)
    ordered.sort()
    return int(np.count_nonzero(ordered[1:] == ordered[:-1]))


def refuse_empty(path: Path, key: str) -> None:
    """A file without a byte was most likely cut off, or never written.

    Raises:
        InputError: it is one.
        OSError: it is no file, or not there.
    """
    found = path.stat()
    require_regular(found.st_mode, path)
    if found.st_size == 0:
        raise InputError(f"{path} is empty: put in it what is to be read, or take it away ({key})")


def surrogate_in(text: str) -> int | None:
    """The place of half a surrogate pair, which is not Unicode text; None where there is none."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return error.start
    return None


def first_bytes(path: Path, most: int) -> bytes:
    """Return what a file begins with, unpacked, without a byte order mark and blanks."""
    with opened(path) as stream:
        return stream.read(most).removeprefix(codecs.BOM_UTF8).lstrip()


def text_lines(path: Path, key: str) -> Iterator[str]:
    """Yield the lines of `exact_lines`; one of ZERO_WIDTH characters and blanks alone is an empty line."""
    for line in exact_lines(path, key):
        yield "\n" if _is_zero_width(line) else line


def _is_zero_width(line: str) -> bool:
    return bool(line) and not line.strip(ZERO_WIDTH + " \t\r\n") and not line.isspace()


def exact_lines(path: Path, key: str) -> Iterator[str]:
    """Yield the lines of a UTF-8 file, packed or not, with their line ends, a byte order mark taken off.

    Of a file without any "\\n", "\\r" is a line end.

    Args:
        path: the file.
        key: the params key that led to it, for messages.

    Raises:
        InputError: binary content, another encoding (with byte offset and line), a line past MAX_LINE_BYTES, or a
            disk that does not give the file back.
    """
    offset = 0
    try:
        with opened(path) as stream:
            head = stream.read(BLOCK_BYTES)
        is_old = b"\n" not in head and b"\r" in head[:-1]  # the last byte may begin "\r\n"
        with opened(path) as stream:
            lines = _old_lines(stream) if is_old else iter(lambda: stream.readline(MAX_LINE_BYTES + 1), b"")
            for number, line in enumerate(lines, 1):
                if len(line) > MAX_LINE_BYTES:
                    most = f"{MAX_LINE_BYTES >> 20} MB"
                    raise InputError(f"{path}: line {number} is longer than {most}; break it into lines ({key})")
                yield decode(line, path, key, number, offset)
                offset += len(line)
    except OSError as error:
        raise InputError(f"{path} cannot be read from offset {offset} on ({error.strerror or error}) ({key})") from None


def _old_lines(stream: BinaryIO) -> Iterator[bytes]:
    """Yield the lines of a file of old Macs, which end in "\\r" alone; or the first bytes of one that is too long."""
    rest = b""
    while block := stream.read(BLOCK_BYTES):
        *lines, rest = (rest + block).split(b"\r")
        yield from (line + b"\n" for line in lines)
        if len(rest) > MAX_LINE_BYTES:
            break
    if rest:
        yield rest


def decode(content: bytes, path: Path, key: str, number: int = 1, offset: int = 0) -> str:
    """Decode a part of a UTF-8 file; a byte order mark of the file is taken off.

    Args:
        path, key: as `exact_lines`.
        number: of the line in which the part begins.
        offset: of its first byte.

    Raises:
        InputError: binary content, or another encoding.
    """
    encoding = next((name for mark, name in MARKS.items() if content.startswith(mark)), "") if number == 1 else ""
    if encoding:
        raise InputError(
            f"{path} begins like {encoding} (offset 0, line 1); UTF-8 is required; "
            f"convert the file, e.g. iconv -f {encoding} -t UTF-8 ({key})"
        )
    if (nul := content.find(b"\0")) >= 0:
        line = number + content.count(b"\n", 0, nul)
        raise InputError(
            f"{path} is binary, or UTF-16 without a byte order mark: a NUL byte at offset {offset + nul} "
            f"(line {line}); a UTF-8 text file is required ({key})"
        )
    try:
        return content.decode("utf-8-sig" if number == 1 else "utf-8")
    except UnicodeDecodeError as error:
        at = error.start + len(content) - len(error.object)
        line = number + content.count(b"\n", 0, at)
        raise InputError(
            f"{path} is not UTF-8: byte 0x{content[at]:02x} at offset {offset + at} "
            f"(line {line}); UTF-8 is required; "
            f"convert the file, e.g. iconv -f LATIN1 -t UTF-8 ({key})"
        ) from None


# ---------------------------------------------------------------------------------------------- packed files


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
        import pyarrow as pa

        self._path, self._packing, self._given = path, path.suffix.lower(), 0
        self._packed = open_regular(path)
        self._stream = pa.CompressedInputStream(pa.PythonFile(self._packed, mode="r"), PACKINGS[self._packing])

    def close(self) -> None:
        self._stream.close()
        self._packed.close()
        super().close()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            found = self._stream.read(len(buffer))
        except OSError as error:
            raise OSError(f"its packing ({self._packing}) is damaged or cut off: {error}") from None
        self._given += len(found)
        if self._given > FREE_BYTES + MOST * self._packed.tell():
            raise InputError(
                f"{self._path} unpacks to more than {FREE_BYTES >> 20} MB and {MOST} times its size, which no text "
                "does: look at what is in it, and give it unpacked if it is right"
            )
        buffer[: len(found)] = found
        return len(found)
