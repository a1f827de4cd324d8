"""Documents from the user's files: .txt, .jsonl, .csv, .parquet, and the output of WikiExtractor.

Files are read in pieces, in any process: small files together, and a large file of text, JSON lines or Parquet in parts
that begin at a document. The documents are the same for pieces of any size. Memory stays flat. Every reader yields
`Document`s and raises InputError with the file, the position in it, the requirement and the params key to change. Text
must be UTF-8 (a byte order mark is accepted).

WikiExtractor writes folders AA, AB, ... of files wiki_00, wiki_01, ... without a suffix, in one of two formats: blocks
`<doc id="12" url="..." title="..."> ... </doc>`, or with --json one object per line with id, title and text. According
to its source (wikiextractor/extract.py of version 3, WikiExtractor.py of versions 2), reserved characters are HTML
entities in the text but not in the title, and a block begins with its title on a line of its own.
"""

import bisect
import collections
import contextlib
import html
import itertools
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import pyarrow as pa

from ipu_model.files import open_regular
from tasks.records import tables
from tasks.records.interpretation import Interpretation
from tasks.records.json_files import read_objects
from tasks.records.parquet import open_parquet
from tasks.records.tables import Columns, ColumnSpec, TableRow, convert_id, make_column, select_columns
from tasks.records.text_files import (
    BLOCK_BYTES,
    CODECS,
    MAX_LINE_BYTES,
    WHOLE,
    ZERO_WIDTH,
    FileRange,
    file_suffix,
    find_text_problem,
    peek,
    read_bytes,
    read_lines,
    refuse_empty,
)
from tasks.stage.errors import InputError
from tasks.stage.memory import limit_memory

KEY = "corpus.path"
PIECE_BYTES = 64 << 20
"""Approximate bytes of a piece. Another number divides the corpus into other files, so it is not a parameter."""
LEAST_FILE_BYTES = 64 << 10
"""Bytes that a file counts as at least: opening it takes as long as reading these."""
SUFFIXES, JSON = (".txt", *tables.ENDINGS), ".json"
"""Suffixes of files that are read in a folder; and .json, which is read only if the file itself is named, because a
folder may contain settings in .json files."""
_NEEDED = f"{', '.join(SUFFIXES)} files, or files of WikiExtractor without a suffix (wiki_00)"
_PACKED = re.compile(rf"(.*/)?(wiki_\d+|.*({'|'.join(map(re.escape, SUFFIXES))}))\.(bz2|gz|xz|zst)")
"""Packed files of WikiExtractor (its --compress), or of text."""
_TITLE = re.compile(r"^\s*=\s+(?!=)(.*?[^=\s])\s+=\s*$")
_HEADING = re.compile(r"^\s*=\s?=.*=\s?=\s*$")
ID_COLUMN, TITLE_COLUMN = "document_id", "title"
"""Optional columns, used unless params.yaml names others."""
NUMBERED = "documents without an id, numbered"
FILE_NAME = re.compile(r"wiki_\d+")
HEAD_BYTES = 4096
_BEGIN = re.compile(r'<doc id="([^"]*)"(?: revid="[^"]*")? url="[^"]*" title="(.*)">\s*')
_END = "</doc>"


class FilePiece(NamedTuple):
    """A file to read, or a part of it."""

    path: Path
    given: str
    """Path for messages: below corpus.path as the user gave it."""
    name: str
    """Name in ids and in the report: relative to corpus.path."""
    layout: str
    part: FileRange = WHOLE


class Document(NamedTuple):
    """One document of the corpus."""

    document_id: str
    title: str
    text: str
    """Paragraphs separated by newlines, without empty lines. The corpus stage leaves out empty documents."""


def document_columns(text: str, title: str | None = None, id: str | None = None) -> Columns:
    """Return the columns of a document; title and id are optional unless params.yaml names them."""
    return {
        "text": ColumnSpec((text,), "corpus.text_column"),
        "title": make_column(title, (TITLE_COLUMN,), "corpus.title_column", required=False),
        "id": make_column(id, (ID_COLUMN,), "corpus.id_column", required=False),
    }


_WIKIEXTRACTOR = document_columns("text", "title", "id")


def make_documents(lines: Iterable[TableRow], source: str, reading: Interpretation) -> Iterator[Document]:
    """Yield documents from the records of a table read with `document_columns`; the id may be empty.

    Raises:
        InputError: a value that is not text, such as a number or NaN; the message has its position.
    """
    for line in lines:
        values = line.values | {"id": convert_id(line.values.get("id"), reading)}
        text, title, document_id = (_text(values.get(part), source, line, part) for part in ("text", "title", "id"))
        reading.counts[NUMBERED] += "id" in line.values and not document_id.strip()
        yield Document(document_id.strip(), " ".join(title.split()), clean_paragraphs(text))


def add_ids(documents: Iterable[Document], name: str) -> Iterator[Document]:
    """Yield documents; those without an id get `name` and their number."""
    for number, one in enumerate(documents):
        yield one if one.document_id else one._replace(document_id=f"{name}:{number}")


def clean_paragraphs(text: str) -> str:
    """Return `text` without blank lines and without white space around its lines; ZERO_WIDTH characters are blank."""
    parts = (part.strip() for part in text.splitlines())
    return "\n".join(part for part in parts if part.strip(ZERO_WIDTH + " "))


def _text(value: Any, source: str, line: TableRow, part: str) -> str:
    if problem := find_text_problem("" if value is None else value):
        raise InputError(
            f"{source}, {line.where}: {line.names[part]} {problem} (found {type(value).__name__} {value!r:.40}). Check "
            "corpus.text_column, corpus.title_column and corpus.id_column"
        )
    return value or ""


def read_files(
    path: Path, columns: Columns, layout: str, reading: Interpretation, separator: str | None = None
) -> Iterator[Document]:
    """Yield the documents of a file, or of the usable files of a folder, sorted by name.

    Args:
        layout: `wikitext`, `paragraphs`, `wikiextractor` or `auto`, for .txt (corpus.layout).

    For other arguments and errors see `read_piece` and `list_usable_files`.
    """
    for piece in _name_files(path, layout, reading):
        yield from read_piece(piece, columns, reading, separator)


def _name_files(path: Path, layout: str, reading: Interpretation) -> Iterator[FilePiece]:
    for file in list_usable_files(path, reading):
        refuse_empty(file, f"{KEY}={path}")
        name = file.name if path.is_file() else file.relative_to(path).as_posix()
        yield FilePiece(file.absolute(), str(file), name, layout)


def plan_pieces(path: Path, layout: str, reading: Interpretation) -> Iterator[tuple[FilePiece, ...]]:
    """Yield the files, or the part of a file, of each piece, in reading order.

    For arguments see `read_files`.
    """
    files: list[FilePiece] = []
    held = 0
    for file in _name_files(path, layout, reading):
        size = max(LEAST_FILE_BYTES, file.path.stat().st_size)
        if files and held + size > PIECE_BYTES:
            yield tuple(files)
            files, held = [], 0
        parts = divide_file(file)
        if len(parts) > 1:
            yield from ((part,) for part in parts)
        else:
            files, held = files + parts, held + size
    if files:
        yield tuple(files)


def divide_file(file: FilePiece) -> list[FilePiece]:
    """Divide a file into parts of about PIECE_BYTES; one that is small, packed, a table without lines or a single
    document stays whole."""
    path, layout = file.path, file.layout
    suffix, count = file_suffix(path), round(path.stat().st_size / PIECE_BYTES)
    if count < 2 or path.suffix.lower() in CODECS or suffix in (".csv", JSON):
        return [file]
    with _naming_as_given(file):
        if suffix == ".parquet":
            bounds = _divide_groups(path)
        elif suffix == ".jsonl":
            bounds = _divide_lines(path, count, _begins_object)
        else:
            layout = _choose_layout(path, layout)
            is_json = layout == "wikiextractor" and peek(path, HEAD_BYTES).startswith(b"{")
            bounds = _divide_lines(path, count, _begins_object if is_json else _BEGINS[layout])
    parts = [FileRange(number, *bound) for number, bound in enumerate(itertools.pairwise(bounds))]
    return [file._replace(layout=layout, part=part) for part in (parts if len(parts) > 1 else [WHOLE])]


def _divide_groups(path: Path) -> list[int]:
    """Return the first row group of each part of a Parquet file, and their number."""
    try:
        with limit_memory(f"{path} ({KEY})"), open_parquet(path) as file:
            groups = [file.metadata.row_group(number) for number in range(file.num_row_groups)]
            ends = list(itertools.accumulate(group.total_byte_size for group in groups))
    except (pa.ArrowException, OSError):
        return []  # the reader reports the damage
    count = round(ends[-1] / PIECE_BYTES) if ends else 0
    firsts = (bisect.bisect(ends, ends[-1] * number // count) for number in range(1, count))
    return [*sorted({0, *firsts}), len(ends)]


def _divide_lines(path: Path, count: int, begins: Callable[[str, str], Any]) -> list[int]:
    """Return the first byte of each part of a text file, and its size.

    Args:
        begins: tells of two lines whether a document begins with the second one.
    """
    bounds, size = [0], path.stat().st_size
    with open_regular(path) as stream:
        if b"\n" not in stream.read(BLOCK_BYTES) and begins is not _begins_object:
            return []  # lines may end in "\r"
        for target in (size * number // count for number in range(1, count)):
            if target > bounds[-1]:  # else a document is longer than a part
                if (start := _find_start(stream, target, begins)) is None:
                    break
                bounds.append(start)
    return [*bounds, size]


def _find_start(stream: BinaryIO, target: int, begins: Callable[[str, str], Any]) -> int | None:
    stream.seek(target)
    lines = iter(lambda: stream.readline(MAX_LINE_BYTES), b"")
    whole = itertools.takewhile(lambda line: line.endswith(b"\n"), lines)
    next(whole, None)  # the rest of a line
    for before, line in itertools.pairwise(whole):
        if begins(before.decode(errors="replace"), line.decode(errors="replace")):
            return stream.tell() - len(line)
    return None


def read_piece(
    piece: FilePiece, columns: Columns, reading: Interpretation, separator: str | None = None
) -> Iterator[Document]:
    """Yield the documents of a file, or of a part of it.

    Args:
        columns: from `document_columns`, for .jsonl, .csv and .parquet.
        separator: field separator of .csv (corpus.separator); None: detected.

    Raises:
        InputError: a file of another format than its suffix states.
    """
    with _naming_as_given(piece):
        try:
            yield from _read_piece(piece, columns, reading, separator)
        except InputError:
            if piece.part.start:  # read again with the number of the first line, which only messages need
                blocks = read_bytes(piece.path, FileRange(stop=piece.part.start))
                part = piece.part._replace(line=1 + sum(block.count(b"\n") for block in blocks))
                collections.deque(_read_piece(piece._replace(part=part), columns, Interpretation(), separator), 0)
            raise


@contextlib.contextmanager
def _naming_as_given(file: FilePiece) -> Iterator[None]:
    try:
        yield
    except InputError as error:
        raise InputError(str(error).replace(str(file.path), file.given)) from None


def _read_piece(
    piece: FilePiece, columns: Columns, reading: Interpretation, separator: str | None
) -> Iterator[Document]:
    path, _, name, layout, part = piece
    if file_suffix(path) in (*tables.ENDINGS, JSON):
        spec = tables.RecordSpec("documents", [columns], (*tables.ENDINGS, JSON))
        lines = tables.open_file(path, KEY, spec, reading, tables.TableForm(separator), part).rows
        documents = make_documents(lines, str(path), reading)
    else:
        reading.files += part.number == 0
        layout = _choose_layout(path, layout)
        reading.formats[f"{layout}, UTF-8"] += part.number == 0
        documents = _READ_TEXT[layout](path, reading, part)
    yield from add_ids(documents, name if part.stop is None else f"{name}:{part.number}")


def list_usable_files(path: Path, reading: Interpretation) -> list[Path]:
    """Return the files to read, sorted, and add the others of a folder to `reading.ignored`.

    Raises:
        InputError: no such path, no usable file, or packed files that are not supported.
    """

    def is_usable(file: Path) -> bool:
        hidden = file != path and any(part.startswith(".") for part in file.relative_to(path).parts)
        suffixes = (*SUFFIXES, JSON) if file == path else SUFFIXES
        return not hidden and (file_suffix(file) in suffixes or (not file.suffix and is_wikiextractor(file)))

    usable = tables.select_files(path, KEY, is_usable, f"{_NEEDED}. Unpack files of other formats first", reading)
    if packed := [name for name in reading.ignored if _PACKED.fullmatch(name)]:
        raise InputError(
            f"the folder {path} contains {', '.join(packed[:5])} next to {len(usable)} readable files: {KEY} needs "
            f"{_NEEDED}. Unpack {packed[0]} first"
        )
    return usable


def _choose_layout(path: Path, layout: str) -> str:
    """Return `layout`, or detect it if that is `auto` or the file has no suffix.

    `wikiextractor` if it has no suffix or begins with one of its blocks. `wikitext` if it begins with a level-1 heading
    (= Title =) and has another heading: a single line between equals signs may occur in any text. Else `paragraphs`.
    """
    if layout != "auto" and path.suffix:
        return layout
    if not path.suffix or is_wikiextractor(path):
        return "wikiextractor"
    lines = (line for line in read_lines(path, KEY) if line.strip())
    if not _TITLE.match(next(lines, "")):
        return "paragraphs"
    return "wikitext" if any(_TITLE.match(line) or _HEADING.match(line) for line in lines) else "paragraphs"


def _read_wikitext(path: Path, reading: Interpretation, part: FileRange) -> Iterator[Document]:
    """Yield a document for each level-1 heading; deeper headings are dropped, as they are not sentences."""
    title, body = "", list[str]()
    for line in read_lines(path, KEY, part=part):
        heading = _TITLE.match(line)
        if heading:
            if title or body:
                yield Document("", title, "\n".join(body))
            title, body = heading.group(1), []
        elif line.strip() and not _HEADING.match(line):
            body.append(line.strip())
    if title or body:
        yield Document("", title, "\n".join(body))


def _read_paragraphs(path: Path, reading: Interpretation, part: FileRange) -> Iterator[Document]:
    """Yield a document for each block between blank lines; its lines are joined, as they may be hard-wrapped."""
    blocks = itertools.groupby(map(str.strip, read_lines(path, KEY, part=part)), bool)
    return (Document("", "", " ".join(lines)) for has_text, lines in blocks if has_text)


def is_wikiextractor(path: Path) -> bool:
    """Tell whether a file was written by WikiExtractor, by its name or its beginning."""
    return bool(FILE_NAME.fullmatch(path.name)) or peek(path, HEAD_BYTES).startswith(b'<doc id="')


def _read_wikiextractor(path: Path, reading: Interpretation, part: FileRange) -> Iterator[Document]:
    """Yield the articles of a file in either format; articles without text become empty documents.

    Raises:
        InputError: text outside a block, a block that does not end (a truncated file), or invalid JSON, with the line.
    """
    if not peek(path, HEAD_BYTES).startswith(b"{"):
        yield from _read_blocks(path, part)
        return
    lines = select_columns(read_objects(path, KEY, reading, part), [_WIKIEXTRACTOR], str(path), reading)
    for document in make_documents(lines, str(path), reading):
        body = html.unescape(document.text).split("\n")
        yield document._replace(text=_remove_title(body, document.title))


def _read_blocks(path: Path, part: FileRange) -> Iterator[Document]:
    begun = 0
    document_id = title = ""
    body: list[str] = []
    for at, line in enumerate(read_lines(path, KEY, part=part), part.line):
        begin = _BEGIN.fullmatch(line)
        if begin and not begun:
            begun, (document_id, title), body = at, begin.groups(), []
        elif begin:
            raise InputError(
                f"{path}, line {at} begins an article inside the one of line {begun}: the file is damaged, create it "
                f"again ({KEY})"
            )
        elif begun and line.strip() == _END:
            yield Document(document_id, title, _remove_title(body, title))
            begun = 0
        elif begun:
            body.append(html.unescape(line).strip())
        elif line.strip():
            raise InputError(
                f'{path}, line {at} is outside of <doc id="..." url="..." title="..."> ... </doc>: '
                f"found {line.strip()[:60]!r}. Files of WikiExtractor contain only such blocks ({KEY})"
            )
    if begun:
        raise InputError(f"{path} ends inside the article of line {begun}: it is cut off, create it again ({KEY})")


def _remove_title(body: list[str], title: str) -> str:
    lines = clean_paragraphs("\n".join(body)).split("\n")
    return "\n".join(lines[1:] if lines[0] == title.strip() else lines)


def _begins_object(before: str, line: str) -> bool:
    # Only between two objects can "}" and "{" have nothing but a line end between them: strings contain none.
    return before.rstrip().endswith("}") and line.lstrip().startswith("{")


_READ_TEXT: dict[str, Callable[[Path, Interpretation, FileRange], Iterator[Document]]] = {
    "wikitext": _read_wikitext,
    "paragraphs": _read_paragraphs,
    "wikiextractor": _read_wikiextractor,
}
_BEGINS: dict[str, Callable[[str, str], Any]] = {
    "wikitext": lambda before, line: _TITLE.match(line),
    "paragraphs": lambda before, line: not before.strip(),
    "wikiextractor": lambda before, line: _BEGIN.fullmatch(line),
}
"""Layout -> whether a document may begin with a line, given the line before it."""
