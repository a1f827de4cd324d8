"""What WikiExtractor makes of a Wikipedia dump: folders AA, AB, ... of files wiki_00, wiki_01, ... without an ending.

Two forms: blocks `<doc id="12" url="..." title="..."> ... </doc>`, and with --json one object a line with id, title
and text. Read from the program's source (wikiextractor/extract.py of version 3, WikiExtractor.py of versions 2):
reserved characters of the text are written as HTML entities, those of the title are not, and a block begins with its
title on a line of its own.
"""

from __future__ import annotations

import codecs
import html
import re
from collections.abc import Iterator
from pathlib import Path

from ipu_model.files import open_regular
from tasks.inputs.documents import Document, TextColumns, as_documents, paragraphs
from tasks.inputs.tables import checked, json_objects
from tasks.project.errors import InputError
from tasks.reading.text_files import Reading, text_lines

FILE_NAME = re.compile(r"wiki_\d+")
HEAD_BYTES = 4096
_BEGIN = re.compile(r'<doc id="([^"]*)"(?: revid="[^"]*")? url="[^"]*" title="(.*)">\s*')
_END = "</doc>"
_COLUMNS = TextColumns("text", "title", "id")
_KEY = "corpus.path"


def is_wikiextractor(path: Path) -> bool:
    """Whether a file without an ending is of WikiExtractor: by its name, or by how it begins."""
    if FILE_NAME.fullmatch(path.name):
        return True
    return _head(path).startswith(b'<doc id="')


def read_wikiextractor(path: Path, name: str, reading: Reading) -> Iterator[Document]:
    """The articles of one file, of either form; an article without text is empty, which the corpus stage counts.

    Args:
        path: the file.
        name: begins the ids of articles that have none.
        reading: counts, filled on the way.

    Raises:
        InputError: text outside of a block, a block that does not end (a file cut off), or broken JSON, with the line.
    """
    if not _head(path).startswith(b"{"):
        yield from _read_blocks(path, name)
        return
    wanted = _COLUMNS.wanted()
    lines = checked(json_objects(path, _KEY, reading), wanted, str(path), reading)
    for document in as_documents(lines, _COLUMNS, name, str(path), reading):
        body = html.unescape(document.text).split("\n")
        yield document._replace(text=_without_title(body, document.title))


def _head(path: Path) -> bytes:
    with open_regular(path) as stream:
        return stream.read(HEAD_BYTES).removeprefix(codecs.BOM_UTF8).lstrip()


def _read_blocks(path: Path, name: str) -> Iterator[Document]:
    begun, number = 0, 0
    document_id = title = ""
    body: list[str] = []
    for at, line in enumerate(text_lines(path, _KEY), 1):
        begin = _BEGIN.fullmatch(line)
        if begin and not begun:
            begun, (document_id, title), body = at, begin.groups(), []
        elif begin:
            raise InputError(f"{path}, line {at} begins an article inside the one of line {begun}: the file is damaged")
        elif begun and line.strip() == _END:
            yield Document(document_id or f"{name}:{number}", title, _without_title(body, title))
            begun, number = 0, number + 1
        elif begun:
            body.append(html.unescape(line).strip())
        elif line.strip():
            raise InputError(
                f'{path}, line {at} stands outside of <doc id="..." url="..." title="..."> ... </doc>: '
                f"found {line.strip()[:60]!r}; files of WikiExtractor hold nothing else ({_KEY})"
            )
    if begun:
        raise InputError(f"{path} ends inside the article of line {begun}: the file is cut off; make it again ({_KEY})")


def _without_title(body: list[str], title: str) -> str:
    lines = paragraphs("\n".join(body)).split("\n")
    return "\n".join(lines[1:] if lines[0] == title.strip() else lines)
