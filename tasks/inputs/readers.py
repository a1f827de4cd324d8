"""The user's own text files, read as documents: .txt, .jsonl, .csv, .parquet, and what WikiExtractor writes.

Memory stays flat. Every reader yields `Document`s and raises InputError, which says the file, the place in it, what is
required and the params key to turn. Text must be UTF-8 (a byte order mark is accepted).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

from tasks.inputs import tables
from tasks.inputs.documents import Document, TextColumns, as_documents
from tasks.inputs.wikiextractor import FILE_NAME, is_wikiextractor, read_wikiextractor
from tasks.project.errors import InputError
from tasks.project.given import files_in
from tasks.reading.packed import ending_of
from tasks.reading.text_files import Reading, refuse_empty, text_lines

KEY = "corpus.path"
KNOWN, JSON = (".txt", *tables.ENDINGS), ".json"
"""Endings of files that are read in a folder, and of those that are read only by their own name: a folder may have
settings and records in .json files."""
_NEEDED = f"{', '.join(KNOWN)}, or without an ending as WikiExtractor writes them (wiki_00)"
_TITLE = re.compile(r"^\s*=\s+(?!=)(.*?[^=\s])\s+=\s*$")
_HEADING = re.compile(r"^\s*=\s?=.*=\s?=\s*$")


def read_files(
    path: Path, columns: TextColumns, layout: str, reading: Reading, separator: str | None = None
) -> Iterator[Document]:
    """All documents of a file, or of the usable files of a folder in order of their names.

    Args:
        path: a file or a folder (params key corpus.path).
        columns: of text, title and id, for .jsonl, .csv and .parquet.
        layout: `wikitext`, `paragraphs`, `wikiextractor` or `auto`, for .txt (corpus.layout).
        reading: counts, filled on the way.
        separator: of the fields of .csv (corpus.separator); None: it is found.

    Raises:
        InputError: nothing there, nothing usable, or a file that cannot be read as what it says it is.
    """
    path = Path(path)
    for file in usable_files(path, reading):
        name = file.name if path.is_file() else file.relative_to(path).as_posix()
        refuse_empty(file, f"{KEY}={path}")
        reading.files += 1
        ending = ending_of(file)
        if ending in (*tables.ENDINGS, JSON):
            lines = tables.read_table(file, columns.wanted(), KEY, reading, separator)
            yield from as_documents(lines, columns, name, str(file), reading)
        else:
            chosen = _layout_of(file, layout)
            reading.layouts[name] = chosen
            yield from _READ_TEXT[chosen](file, name, reading)


def _layout_of(file: Path, layout: str) -> str:
    if not file.suffix:
        return "wikiextractor"
    return layout if layout != "auto" else detect_layout(file)


def usable_files(path: Path, reading: Reading) -> list[Path]:
    """The files that will be read, in order; those of a folder that will not are entered as ignored.

    Raises:
        InputError: nothing there, nothing usable, or packed files.
    """
    found = files_in(path, KEY)
    if path.is_file():
        if ending_of(path) != JSON and not _is_usable(path):
            raise InputError(
                f"{path} ends in {path.suffix or 'nothing'!r}: {KEY} needs {_NEEDED}{_packed([path.name])}"
            )
        return [path]
    usable = []
    for file in found:
        hidden = any(part.startswith(".") for part in file.relative_to(path).parts)
        if hidden or not _is_usable(file):
            reading.ignored.append(file.relative_to(path).as_posix())
        else:
            usable.append(file)
    packed = [name for name in reading.ignored if _packed([name])]
    if packed or not usable:
        holds = f"only {', '.join(reading.ignored[:5])}" if reading.ignored else "nothing"
        holds = f"{', '.join(packed[:5])} beside {len(usable)} files that can be read" if usable else holds
        raise InputError(f"the folder {path} holds {holds}: {KEY} needs files ending in {_NEEDED}{_packed(packed)}")
    return usable


def _is_usable(file: Path) -> bool:
    return ending_of(file) in KNOWN or (not file.suffix and is_wikiextractor(file))


def _packed(names: list[str]) -> str:
    """A hint where WikiExtractor's files (its --compress) or text files were left packed."""
    for name in names:
        stem, _, ending = name.rpartition("/")[2].rpartition(".")
        if ending in ("bz2", "gz", "xz", "zst") and (FILE_NAME.fullmatch(stem) or Path(stem).suffix in KNOWN):
            return f"; unpack {name} first: packed files are not read"
    return ""


# ---------------------------------------------------------------------------------------------- plain text


def detect_layout(path: Path) -> str:
    """Find the layout of a .txt file.

    `wikiextractor` when it begins with a block of it, `wikitext` when it begins with a level-1 heading (= Title =) and
    has another heading, else `paragraphs`: a single line between signs of equality may stand in any text.
    """
    if is_wikiextractor(path):
        return "wikiextractor"
    lines = (line for line in text_lines(path, KEY) if line.strip())
    if not _TITLE.match(next(lines, "")):
        return "paragraphs"
    return "wikitext" if any(_TITLE.match(line) or _HEADING.match(line) for line in lines) else "paragraphs"


def _read_wikitext(path: Path, name: str, reading: Reading) -> Iterator[Document]:
    """A document from each level-1 heading to the next; deeper headings are dropped, they are no sentences."""
    number, title, paragraphs = 0, "", list[str]()
    for line in text_lines(path, KEY):
        heading = _TITLE.match(line)
        if heading:
            if title or paragraphs:
                yield Document(f"{name}:{number}", title, "\n".join(paragraphs))
                number += 1
            title, paragraphs = heading.group(1), []
        elif line.strip() and not _HEADING.match(line):
            paragraphs.append(line.strip())
    yield Document(f"{name}:{number}", title, "\n".join(paragraphs))


def _read_paragraphs(path: Path, name: str, reading: Reading) -> Iterator[Document]:
    """A document is a block of lines between blank lines; its lines are joined, they may be wrapped by hand."""
    number, lines = 0, list[str]()
    for line in text_lines(path, KEY):
        if line.strip():
            lines.append(line.strip())
        elif lines:
            yield Document(f"{name}:{number}", "", " ".join(lines))
            number, lines = number + 1, []
    if lines:
        yield Document(f"{name}:{number}", "", " ".join(lines))


_READ_TEXT: dict[str, Callable[[Path, str, Reading], Iterator[Document]]] = {
    "wikitext": _read_wikitext,
    "paragraphs": _read_paragraphs,
    "wikiextractor": read_wikiextractor,
}
