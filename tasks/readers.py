"""The user's own text files, read as documents: .txt, .jsonl, .csv, .parquet. Memory stays flat.

Every reader yields `Document`s and raises InputError, which says the file, the place in it, what is required
and the params key to turn. Text must be UTF-8 (a byte order mark is accepted).
"""

from __future__ import annotations

import csv
import difflib
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from tasks.artifacts import parse_json
from tasks.errors import InputError

log = logging.getLogger(__name__)

MAX_LINE_BYTES = 64 << 20
"""A longer line is refused: it would have to be held in memory as a whole."""
LAYOUT_SAMPLE_LINES = 2000
"""Lines looked at by `layout: auto`."""
ID_COLUMN, TITLE_COLUMN = "document_id", "title"
_TITLE = re.compile(r"^\s*=\s+(?!=)(.*?[^=\s])\s+=\s*$")
_HEADING = re.compile(r"^\s*=\s?=.*=\s?=\s*$")


class Document(NamedTuple):
    """One document as it will be written to the corpus."""

    document_id: str
    title: str
    text: str
    """Paragraphs apart by a newline, no empty lines; empty text is dropped by the corpus stage."""


@dataclass
class Reading:
    """What a folder of files gave; filled while the documents are consumed."""

    files: int = 0
    ignored: list[str] = field(default_factory=list)
    layouts: dict[str, str] = field(default_factory=dict)
    """Text file -> the layout it was read with."""


def read_files(path: Path, text_column: str, layout: str, reading: Reading) -> Iterator[Document]:
    """All documents of a file, or of the usable files of a folder in order of their names.

    Args:
        path: a file or a folder (params key corpus.path).
        text_column: column or key of the text, for all but .txt (corpus.text_column).
        layout: `wikitext`, `paragraphs` or `auto`, for .txt (corpus.layout).
        reading: counts, filled on the way.

    Raises:
        InputError: nothing there, nothing usable, or a file that cannot be read as what it says it is.
    """
    path = Path(path)
    for file in _usable_files(path, reading):
        name = file.name if path.is_file() else file.relative_to(path).as_posix()
        if file.stat().st_size == 0:
            raise InputError(f"{file} is empty: put text in it, or take it away (corpus.path={path})")
        reading.files += 1
        if file.suffix.lower() == ".txt":
            chosen = layout if layout != "auto" else detect_layout(file)
            reading.layouts[name] = chosen
            yield from _READ_TEXT[chosen](file, name)
        else:
            lines = _READ_TABLE[file.suffix.lower()](file, text_column)
            yield from as_documents(lines, text_column, name, str(file))


def _usable_files(path: Path, reading: Reading) -> list[Path]:
    known = (".txt", *_READ_TABLE)
    if not path.exists():
        raise InputError(f"corpus.path={path} is not there: set corpus.path to a file or folder of {', '.join(known)}")
    if path.is_file():
        if path.suffix.lower() not in known:
            raise InputError(f"{path} ends in {path.suffix or 'nothing'!r}: corpus.path needs {', '.join(known)}")
        return [path]
    usable = []
    for file in sorted(p for p in path.rglob("*") if p.is_file()):
        hidden = any(part.startswith(".") for part in file.relative_to(path).parts)
        if hidden or file.suffix.lower() not in known:
            reading.ignored.append(file.relative_to(path).as_posix())
        else:
            usable.append(file)
    if not usable:
        found = f"only {', '.join(reading.ignored[:5])}" if reading.ignored else "nothing"
        raise InputError(f"the folder {path} holds {found}: corpus.path needs files ending in {', '.join(known)}")
    return usable


# ---------------------------------------------------------------------------------------------- plain text


def text_lines(path: Path, key: str = "corpus.path") -> Iterator[str]:
    """Lines of a UTF-8 file with their line ends, a byte order mark taken off.

    Args:
        path: the file.
        key: the params key that led to it, for messages.

    Raises:
        InputError: binary content, another encoding (with byte offset and line), or a line past MAX_LINE_BYTES.
    """
    offset = 0
    with path.open("rb") as stream:
        for number, line in enumerate(iter(lambda: stream.readline(MAX_LINE_BYTES + 1), b""), 1):
            if len(line) > MAX_LINE_BYTES:
                raise InputError(
                    f"{path}: line {number} is longer than {MAX_LINE_BYTES >> 20} MB; break it into lines ({key})"
                )
            if number == 1 and line.startswith((b"\xff\xfe", b"\xfe\xff")):
                raise InputError(
                    f"{path} begins like UTF-16 (offset 0, line 1); UTF-8 is required; "
                    f"convert the file, e.g. iconv -f UTF-16 -t UTF-8 ({key})"
                )
            if b"\0" in line:
                raise InputError(
                    f"{path} is binary: a NUL byte at offset {offset + line.index(0)} (line {number}); "
                    f"a UTF-8 text file is required ({key})"
                )
            try:
                yield line.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                byte = error.object[error.start]
                start = offset + error.start + (len(line) - len(error.object))
                raise InputError(
                    f"{path} is not UTF-8: byte 0x{byte:02x} at offset {start} (line {number}); UTF-8 is required; "
                    f"convert the file, e.g. iconv -f LATIN1 -t UTF-8 ({key})"
                ) from None
            offset += len(line)


def detect_layout(path: Path) -> str:
    """`wikitext` when a level-1 heading (= Title =) stands in the first lines, else `paragraphs`."""
    for number, line in enumerate(text_lines(path)):
        if _TITLE.match(line):
            return "wikitext"
        if number >= LAYOUT_SAMPLE_LINES:
            break
    return "paragraphs"


def _read_wikitext(path: Path, name: str) -> Iterator[Document]:
    """A document from each level-1 heading to the next; deeper headings are dropped, they are no sentences."""
    number, title, paragraphs = 0, "", list[str]()
    for line in text_lines(path):
        heading = _TITLE.match(line)
        if heading:
            if title or paragraphs:
                yield Document(f"{name}:{number}", title, "\n".join(paragraphs))
                number += 1
            title, paragraphs = heading.group(1), []
        elif line.strip() and not _HEADING.match(line):
            paragraphs.append(line.strip())
    yield Document(f"{name}:{number}", title, "\n".join(paragraphs))


def _read_paragraphs(path: Path, name: str) -> Iterator[Document]:
    """A document is a block of lines between blank lines; its lines are joined, they may be wrapped by hand."""
    number, lines = 0, list[str]()
    for line in text_lines(path):
        if line.strip():
            lines.append(line.strip())
        elif lines:
            yield Document(f"{name}:{number}", "", " ".join(lines))
            number, lines = number + 1, []
    if lines:
        yield Document(f"{name}:{number}", "", " ".join(lines))


_READ_TEXT: dict[str, Callable[[Path, str], Iterator[Document]]] = {
    "wikitext": _read_wikitext,
    "paragraphs": _read_paragraphs,
}


# ------------------------------------------------------------------------------------------------- tables


class Line(NamedTuple):
    """One record of a table and where it stands, for messages."""

    where: str
    values: dict[str, Any]


def as_documents(lines: Iterable[Line], text_column: str, name: str, source: str) -> Iterator[Document]:
    """Documents from the records of a table; `name` begins the ids where the table has no document_id column.

    Raises:
        InputError: no such column (the columns and the nearest name are given), or a value that is no text.
    """
    for number, (where, values) in enumerate(lines):
        _require_column(text_column, list(values), f"{source}, {where}")
        text = _text(values[text_column], source, where, text_column)
        title = _text(values.get(TITLE_COLUMN), source, where, TITLE_COLUMN)
        given = values.get(ID_COLUMN)
        paragraphs = (part.strip() for part in text.splitlines())
        yield Document(
            f"{name}:{number}" if given is None else str(given),
            " ".join(title.split()),
            "\n".join(part for part in paragraphs if part),
        )


def _require_column(text_column: str, columns: Sequence[str], source: str) -> None:
    if text_column not in columns:
        near = difflib.get_close_matches(text_column, columns, 1)
        raise InputError(
            f"{source} has no column {text_column!r}: found {', '.join(columns) or 'no columns'}"
            + (f"; did you mean {near[0]}?" if near else "")
            + "; set corpus.text_column"
        )


def _text(value: Any, source: str, where: str, column: str) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise InputError(
            f"{source}, {where}: {column} must be text, found {type(value).__name__}; "
            "set corpus.text_column to a column of text"
        )
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise InputError(
            f"{source}, {where}: {column} holds half a surrogate pair (character {error.start}), "
            "which is no Unicode text; repair the file"
        ) from None
    return value


def _read_jsonl(path: Path, text_column: str) -> Iterator[Line]:
    for number, line in enumerate(text_lines(path), 1):
        if not line.strip():
            continue
        try:
            values = parse_json(line)
        except ValueError as error:
            raise InputError(f"{path}, line {number} is not JSON ({error}): one object a line is required") from None
        if not isinstance(values, dict):
            raise InputError(
                f"{path}, line {number} is no JSON object but {type(values).__name__}: one object a line is required"
            )
        yield Line(f"line {number}", values)


def _read_csv(path: Path, text_column: str) -> Iterator[Line]:
    csv.field_size_limit(MAX_LINE_BYTES)
    rows = csv.reader(text_lines(path), strict=True)
    try:
        header = next(rows, [])
        _require_column(text_column, header, str(path))
        for row in rows:
            if row and len(row) != len(header):
                raise InputError(
                    f"{path}, line {rows.line_num} has {len(row)} fields, the header has {len(header)}: "
                    "every row needs the header's columns (quote fields that hold commas)"
                )
            if row:
                yield Line(f"line {rows.line_num}", dict(zip(header, row, strict=True)))
    except csv.Error as error:
        raise InputError(f"{path}, line {rows.line_num} is not CSV: {error}") from None


def _read_parquet(path: Path, text_column: str) -> Iterator[Line]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            row = 0
            present = file.schema_arrow.names
            _require_column(text_column, present, str(path))
            columns = [name for name in (ID_COLUMN, TITLE_COLUMN, text_column) if name in present]
            for batch in file.iter_batches(batch_size=1024, columns=columns):
                for values in batch.to_pylist():
                    yield Line(f"row {row}", values)
                    row += 1
    except pa.ArrowInvalid as error:
        raise InputError(f"{path} is not a Parquet file that can be read: {error}") from None


_READ_TABLE: dict[str, Callable[[Path, str], Iterator[Line]]] = {
    ".jsonl": _read_jsonl,
    ".csv": _read_csv,
    ".parquet": _read_parquet,
}
