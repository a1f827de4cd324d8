"""Documents from the user's files: .txt, .jsonl, .json, .csv, .parquet, and the output of WikiExtractor.

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
import io
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import pyarrow as pa

from ipu_model.core.files import open_regular
from tasks.corpus.folders import JSON, list_usable_files
from tasks.records import tables
from tasks.records.interpretation import Interpretation
from tasks.records.json_files import read_objects
from tasks.records.layouts import (
    AUTO,
    FEW_LINES,
    FILE,
    HEAD_BYTES,
    HEAD_ROWS,
    HEADING,
    JSON_LINES,
    KEY,
    LINES,
    MOST_LINES,
    PARAGRAPHS,
    SENTENCES,
    TITLE,
    WIKIEXTRACTOR,
    WIKITEXT,
    LineEnds,
    are_wikitext_lines,
    choose_layout,
    split_blocks,
)
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

PIECE_BYTES = 64 << 20
"""Approximate bytes of a piece. Another number divides the corpus into other files, so it is not a parameter."""
LEAST_FILE_BYTES = 64 << 10
"""Bytes that a file counts as at least: opening it takes as long as reading these."""
ID_COLUMN, TITLE_COLUMN = "document_id", "title"
"""Optional columns, used unless params.yaml names others."""
NUMBERED = "documents without an id, numbered"
UNWRAPPED = "documents of hard-wrapped lines, joined"
JOINED = "rows with a line of WikiText each, joined into articles"
NOT_TEXT = "values of the unnamed column {} that are not text, left out"
GROUPINGS = {
    WIKITEXT: "a document is an article, from one heading = Title = to the next",
    PARAGRAPHS: "a document is a block of lines between blank lines, which are joined",
    SENTENCES: "a line is a sentence, and a blank line ends a document",
    LINES: "a document is a line",
    WIKIEXTRACTOR: "a document is an article",
    FILE: "a document is a file",
    JSON_LINES: "a document is a record",
}
"""Layout -> how lines become documents."""
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
    has_sentences: bool = False
    """Each line is a sentence."""


def document_columns(text: str, title: str | None = None, id: str | None = None) -> Columns:
    """Return the columns of a document; title and id are optional unless params.yaml names them."""
    return {
        "text": ColumnSpec((text,), "corpus.text_column"),
        "title": make_column(title, (TITLE_COLUMN,), "corpus.title_column", required=False),
        "id": make_column(id, (ID_COLUMN,), "corpus.id_column", required=False),
    }


_USUAL, _WIKIEXTRACTOR = document_columns("text"), document_columns("text", "title", "id")


def make_documents(
    rows: Iterable[TableRow],
    source: str,
    columns: Columns,
    layout: str,
    reading: Interpretation,
    part: FileRange = WHOLE,
) -> Iterator[Document]:
    """Yield documents from the records of a table with the columns of `document_columns`; the id may be empty.

    By corpus.layout, `auto` joins hard-wrapped lines, and rows that are lines of WikiText; `sentences` makes a line a
    sentence. Only a whole table may have lines of WikiText.

    Raises:
        InputError: a value that is not text, such as a number or NaN; the message has its position.
    """
    rows = iter(rows)
    if layout in (AUTO, WIKITEXT) and part.stop is None:
        head = _read_head(rows)
        rows = itertools.chain(head, rows)
        if _are_wikitext(head):
            add_grouping(reading, f"a row is a line, {GROUPINGS[WIKITEXT]}")
            yield from _join_articles(_read_lines_of_rows(rows, source, reading))
            return
    add_grouping(reading, GROUPINGS[SENTENCES if layout == SENTENCES else JSON_LINES])
    for row in rows:
        values = row.values | {"id": convert_id(row.values.get("id"), reading)}
        text, title, document_id = (
            _text(values, source, row, part, columns, reading) for part in ("text", "title", "id")
        )
        reading.counts[NUMBERED] += "id" in row.values and not document_id.strip()
        if layout in (AUTO, WIKITEXT, LINES, FILE):
            text = _join_wrapped(text, row.where, reading)
        text = clean_paragraphs(text)
        yield Document(document_id.strip(), " ".join(title.split()), text, layout == SENTENCES)


def _read_head(rows: Iterator[TableRow]) -> list[TableRow]:
    """Return the first rows, at most HEAD_ROWS, up to one that is not a single line."""
    head: list[TableRow] = []
    characters = 0
    for row in itertools.islice(rows, HEAD_ROWS):
        head.append(row)
        text = row.values.get("text")
        characters += len(text) if isinstance(text, str) else 0
        if (isinstance(text, str) and "\n" in text.strip()) or characters > BLOCK_BYTES:
            break
    return head


def _are_wikitext(head: Iterable[TableRow]) -> bool:
    return are_wikitext_lines([str(row.values.get("text") or "") for row in head])


def _read_lines_of_rows(rows: Iterable[TableRow], source: str, reading: Interpretation) -> Iterator[str]:
    for row in rows:
        reading.count(JOINED, row.where)
        yield _require_text(row.values.get("text"), source, row, "text")


def _join_wrapped(text: str, where: str, reading: Interpretation) -> str:
    """Join the lines of each block of a hard-wrapped text; return any other text unchanged."""
    if text.count("\n") < FEW_LINES:
        return text
    lines = text.splitlines()
    if not LineEnds(split_blocks(lines[:MOST_LINES])).is_wrapped:
        return text
    reading.count(UNWRAPPED, where)
    return "\n".join(map(" ".join, split_blocks(lines)))


def add_grouping(reading: Interpretation, grouping: str) -> None:
    """Add how lines become documents, unless it is known."""
    if grouping not in reading.grouping:
        reading.grouping = "; ".join(filter(None, (reading.grouping, grouping)))


def add_ids(documents: Iterable[Document], name: str) -> Iterator[Document]:
    """Yield documents; those without an id get `name` and their number."""
    for number, document in enumerate(documents):
        yield document if document.document_id else document._replace(document_id=f"{name}:{number}")


def clean_paragraphs(text: str) -> str:
    """Return `text` without blank lines and without white space around its lines; ZERO_WIDTH characters are blank."""
    parts = (part.strip() for part in text.splitlines())
    return "\n".join(part for part in parts if part.strip(ZERO_WIDTH + " "))


def _text(
    values: Mapping[str, Any], source: str, row: TableRow, part: str, columns: Columns, reading: Interpretation
) -> str:
    """Return the text of a part of a row; a title or an id that no parameter names is left out if it is not text."""
    value = values.get(part)
    if columns[part].required or value is None or not find_text_problem(value):
        return _require_text(value, source, row, part)
    reading.count(NOT_TEXT.format(repr(row.names.get(part, part))), f"{source}, {row.where}")
    return ""


def _require_text(value: Any, source: str, row: TableRow, part: str) -> str:
    if problem := find_text_problem("" if value is None else value):
        raise InputError(
            f"{source}, {row.where}: {row.names[part]} {problem} (found {type(value).__name__} {value!r:.40}). Check "
            "corpus.text_column, corpus.title_column and corpus.id_column"
        )
    return value or ""


def name_files(path: Path, layout: str, reading: Interpretation, columns: Columns) -> Iterator[FilePiece]:
    """Yield a file, or the usable files of a folder, sorted by name; see `read_piece` and `list_usable_files`."""
    for file in list_usable_files(path, reading, columns):
        refuse_empty(file, f"{KEY}={path}")
        name = file.name if path.is_file() else file.relative_to(path).as_posix()
        yield FilePiece(file.absolute(), str(file), name, layout)


def plan_pieces(
    path: Path, layout: str, reading: Interpretation, columns: Columns = _USUAL
) -> Iterator[tuple[FilePiece, ...]]:
    """Yield the files, or the part of a file, of each piece, in reading order; see `name_files`."""
    files: list[FilePiece] = []
    total = 0
    for file in name_files(path, layout, reading, columns):
        size = max(LEAST_FILE_BYTES, file.path.stat().st_size)
        if files and total + size > PIECE_BYTES:
            yield tuple(files)
            files, total = [], 0
        parts = divide_file(file, columns)
        if len(parts) > 1:
            yield from ((part,) for part in parts)
        else:
            files, total = files + parts, total + size
    if files:
        yield tuple(files)


def divide_file(file: FilePiece, columns: Columns = _USUAL) -> list[FilePiece]:
    """Divide a file into parts of about PIECE_BYTES; one that is small, packed, a table without lines, a table whose
    rows are lines of WikiText, or a single document stays whole."""
    path, layout = file.path, file.layout
    suffix, count = file_suffix(path), round(path.stat().st_size / PIECE_BYTES)
    if count < 2 or path.suffix.lower() in CODECS or suffix in (".csv", JSON):
        return [file]
    with _naming_as_given(file):
        if suffix not in tables.ENDINGS:
            file = file._replace(layout=choose_layout(path, layout))
        is_table = suffix in tables.ENDINGS or file.layout == JSON_LINES
        if file.layout == FILE and not is_table or is_table and _has_wikitext_rows(file, columns):
            return [file]
        if suffix == ".parquet":
            bounds = _divide_groups(path)
        elif is_table or (file.layout == WIKIEXTRACTOR and peek(path, HEAD_BYTES).startswith(b"{")):
            bounds = _divide_lines(path, count, _begins_object)
        else:
            bounds = _divide_lines(path, count, _BEGINS[file.layout])
    parts = [FileRange(number, *bound) for number, bound in enumerate(itertools.pairwise(bounds))]
    return [file._replace(part=part) for part in (parts if len(parts) > 1 else [WHOLE])]


def _has_wikitext_rows(file: FilePiece, columns: Columns) -> bool:
    if file.layout not in (AUTO, WIKITEXT, JSON_LINES):
        return False
    with contextlib.suppress(InputError):  # reported by the reader
        return _are_wikitext(_read_head(_open_rows(file, columns, Interpretation(), None)))
    return False


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

    Of two lines, `begins` tells whether a document begins with the second one.
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
    name = name if part.stop is None else f"{name}:{part.number}"
    if file_suffix(path) not in (*tables.ENDINGS, JSON):
        layout = choose_layout(path, layout)
        if layout != JSON_LINES:
            reading.files += part.number == 0
            reading.formats[f"{layout}, UTF-8"] += part.number == 0
            add_grouping(reading, GROUPINGS[layout])
            yield from add_ids(_READ_TEXT[layout](path, reading, part), name)
            return
    rows = _open_rows(piece._replace(layout=layout), columns, reading, separator)
    documents = make_documents(rows, str(path), columns, AUTO if layout == JSON_LINES else layout, reading, part)
    yield from add_ids(documents, name)


def _open_rows(
    piece: FilePiece, columns: Columns, reading: Interpretation, separator: str | None
) -> Iterator[TableRow]:
    """Open the records of a table, or of a .txt file with objects."""
    path, part = piece.path, piece.part
    if piece.layout == JSON_LINES:
        reading.files += part.number == 0
        reading.formats[f"{JSON_LINES}, UTF-8, in {path.suffix}"] += part.number == 0
        return select_columns(read_objects(path, KEY, reading, part), [columns], str(path), reading)
    spec = tables.RecordSpec("documents", [columns], (*tables.ENDINGS, JSON))
    return tables.open_file(path, KEY, spec, reading, tables.TableForm(separator), part).rows


def _read_wikitext(path: Path, reading: Interpretation, part: FileRange) -> Iterator[Document]:
    return _join_articles(read_lines(path, KEY, part=part))


def _join_articles(lines: Iterable[str]) -> Iterator[Document]:
    """Yield a document for each level-1 heading; deeper headings are dropped, as they are not sentences."""
    title, body = "", list[str]()
    for line in lines:
        heading = TITLE.match(line)
        if heading:
            if title or body:
                yield Document("", title, "\n".join(body))
            title, body = heading.group(1), []
        elif line.strip() and not HEADING.match(line):
            body.append(line.strip())
    if title or body:
        yield Document("", title, "\n".join(body))


def _read_paragraphs(path: Path, reading: Interpretation, part: FileRange) -> Iterator[Document]:
    """Yield a document for each block between blank lines; its lines are joined, as they may be hard-wrapped."""
    blocks = itertools.groupby(map(str.strip, read_lines(path, KEY, part=part)), bool)
    return (Document("", "", " ".join(lines)) for has_text, lines in blocks if has_text)


def _read_sentences(path: Path, reading: Interpretation, part: FileRange) -> Iterator[Document]:
    """Yield a document for each block between blank lines; its lines are sentences."""
    return (Document("", "", "\n".join(block), True) for block in split_blocks(read_lines(path, KEY, part=part)))


def _read_single_lines(path: Path, reading: Interpretation, part: FileRange) -> Iterator[Document]:
    """Yield a document for each line that is not blank."""
    for text in map(clean_paragraphs, read_lines(path, KEY, part=part)):
        if text:
            yield Document("", "", text)


def _read_whole(path: Path, reading: Interpretation, part: FileRange) -> Iterator[Document]:
    """Yield one document, the file.

    Raises:
        InputError: the file is longer than a line may be.
    """
    text = io.StringIO()
    for line in read_lines(path, KEY, part=part):
        text.write(line)
        if text.tell() > MAX_LINE_BYTES:
            raise InputError(
                f"{path} is longer than {MAX_LINE_BYTES >> 20} MB, too long for one document: split it ({KEY})"
            )
    yield Document("", "", clean_paragraphs(_join_wrapped(text.getvalue(), path.name, reading)))


def _read_wikiextractor(path: Path, reading: Interpretation, part: FileRange) -> Iterator[Document]:
    """Yield the articles of a file in either format; articles without text become empty documents.

    Raises:
        InputError: text outside a block, a block that does not end (a truncated file), or invalid JSON, with the line.
    """
    if not peek(path, HEAD_BYTES).startswith(b"{"):
        yield from _read_blocks(path, part)
        return
    lines = select_columns(read_objects(path, KEY, reading, part), [_WIKIEXTRACTOR], str(path), reading)
    for document in make_documents(lines, str(path), _WIKIEXTRACTOR, WIKIEXTRACTOR, reading, part):
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
    WIKITEXT: _read_wikitext,
    PARAGRAPHS: _read_paragraphs,
    SENTENCES: _read_sentences,
    LINES: _read_single_lines,
    WIKIEXTRACTOR: _read_wikiextractor,
    FILE: _read_whole,
}
_BEGINS: dict[str, Callable[[str, str], Any]] = {
    WIKITEXT: lambda before, line: TITLE.match(line),
    PARAGRAPHS: lambda before, line: not before.strip(),
    SENTENCES: lambda before, line: not before.strip(),
    LINES: lambda before, line: True,
    WIKIEXTRACTOR: lambda before, line: _BEGIN.fullmatch(line),
    JSON_LINES: _begins_object,
}
"""Layout -> whether a document may begin with a line, given the line before it."""
