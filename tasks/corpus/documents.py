"""Documents from the user's files: .txt, .jsonl, .csv, .parquet, and the output of WikiExtractor.

Memory stays flat. Every reader yields `Document`s and raises InputError with the file, the position in it, the
requirement and the params key to change. Text must be UTF-8 (a byte order mark is accepted).

WikiExtractor writes folders AA, AB, ... of files wiki_00, wiki_01, ... without a suffix, in one of two formats: blocks
`<doc id="12" url="..." title="..."> ... </doc>`, or with --json one object per line with id, title and text. According
to its source (wikiextractor/extract.py of version 3, WikiExtractor.py of versions 2), reserved characters are HTML
entities in the text but not in the title, and a block begins with its title on a line of its own.
"""

import html
import itertools
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from tasks.records import tables
from tasks.records.json_files import read_objects
from tasks.records.tables import Columns, ColumnSpec, TableRow, convert_id, make_column, select_columns
from tasks.records.text_files import ZERO_WIDTH, ReadLog, file_suffix, find_text_problem, peek, read_lines, refuse_empty
from tasks.stage.errors import InputError

KEY = "corpus.path"
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


def make_documents(lines: Iterable[TableRow], source: str, reading: ReadLog) -> Iterator[Document]:
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
    path: Path, columns: Columns, layout: str, reading: ReadLog, separator: str | None = None
) -> Iterator[Document]:
    """Yield the documents of a file, or of the usable files of a folder, sorted by name.

    Args:
        columns: from `document_columns`, for .jsonl, .csv and .parquet.
        layout: `wikitext`, `paragraphs`, `wikiextractor` or `auto`, for .txt (corpus.layout).
        separator: field separator of .csv (corpus.separator); None: detected.

    Raises:
        InputError: no such path, no usable file, or a file of another format than its suffix states.
    """
    spec = tables.RecordSpec("documents", [columns], (*tables.ENDINGS, JSON))
    for file in list_usable_files(path, reading):
        name = file.name if path.is_file() else file.relative_to(path).as_posix()
        refuse_empty(file, f"{KEY}={path}")
        if file_suffix(file) in spec.endings:
            lines = tables.open_file(file, KEY, spec, reading, separator).rows
            yield from add_ids(make_documents(lines, str(file), reading), name)
        else:
            reading.files += 1
            chosen = layout if layout != "auto" and file.suffix else detect_layout(file)
            reading.layouts[name] = chosen
            yield from add_ids(_READ_TEXT[chosen](file, reading), name)


def list_usable_files(path: Path, reading: ReadLog) -> list[Path]:
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


def detect_layout(path: Path) -> str:
    """Detect the layout of a text file.

    `wikiextractor` if it has no suffix or begins with one of its blocks. `wikitext` if it begins with a level-1 heading
    (= Title =) and has another heading: a single line between equals signs may occur in any text. Else `paragraphs`.
    """
    if not path.suffix or is_wikiextractor(path):
        return "wikiextractor"
    lines = (line for line in read_lines(path, KEY) if line.strip())
    if not _TITLE.match(next(lines, "")):
        return "paragraphs"
    return "wikitext" if any(_TITLE.match(line) or _HEADING.match(line) for line in lines) else "paragraphs"


def _read_wikitext(path: Path, reading: ReadLog) -> Iterator[Document]:
    """Yield a document for each level-1 heading; deeper headings are dropped, as they are not sentences."""
    title, body = "", list[str]()
    for line in read_lines(path, KEY):
        heading = _TITLE.match(line)
        if heading:
            if title or body:
                yield Document("", title, "\n".join(body))
            title, body = heading.group(1), []
        elif line.strip() and not _HEADING.match(line):
            body.append(line.strip())
    yield Document("", title, "\n".join(body))


def _read_paragraphs(path: Path, reading: ReadLog) -> Iterator[Document]:
    """Yield a document for each block between blank lines; its lines are joined, as they may be hard-wrapped."""
    blocks = itertools.groupby(map(str.strip, read_lines(path, KEY)), bool)
    return (Document("", "", " ".join(lines)) for has_text, lines in blocks if has_text)


def is_wikiextractor(path: Path) -> bool:
    """Tell whether a file was written by WikiExtractor, by its name or its beginning."""
    return bool(FILE_NAME.fullmatch(path.name)) or peek(path, HEAD_BYTES).startswith(b'<doc id="')


def read_wikiextractor(path: Path, reading: ReadLog) -> Iterator[Document]:
    """Yield the articles of one file in either format; articles without text become empty documents.

    Raises:
        InputError: text outside a block, a block that does not end (a truncated file), or invalid JSON, with the line.
    """
    if not peek(path, HEAD_BYTES).startswith(b"{"):
        yield from _read_blocks(path)
        return
    lines = select_columns(read_objects(path, KEY, reading), [_WIKIEXTRACTOR], str(path), reading)
    for document in make_documents(lines, str(path), reading):
        body = html.unescape(document.text).split("\n")
        yield document._replace(text=_remove_title(body, document.title))


def _read_blocks(path: Path) -> Iterator[Document]:
    begun = 0
    document_id = title = ""
    body: list[str] = []
    for at, line in enumerate(read_lines(path, KEY), 1):
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


_READ_TEXT: dict[str, Callable[[Path, ReadLog], Iterator[Document]]] = {
    "wikitext": _read_wikitext,
    "paragraphs": _read_paragraphs,
    "wikiextractor": read_wikiextractor,
}
