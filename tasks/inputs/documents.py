"""Documents, and the records of a table as documents."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from tasks.inputs.tables import Column, Line, text_of_id
from tasks.project.errors import InputError
from tasks.reading.text_files import ZERO_WIDTH, Reading

ID_COLUMN, TITLE_COLUMN = "document_id", "title"
"""Read where they are there and params.yaml names no others."""
NUMBERED = "documents without an id, numbered"


class Document(NamedTuple):
    """One document as it will be written to the corpus."""

    document_id: str
    title: str
    text: str
    """Paragraphs apart by a newline, no empty lines; empty text is left out by the corpus stage."""


class TextColumns(NamedTuple):
    """The columns of a table that hold the parts of a document."""

    text: str
    title: str | None = None
    """None: TITLE_COLUMN, where there is one."""
    id: str | None = None
    """None: ID_COLUMN, where there is one; else file and number make the id."""

    def wanted(self) -> tuple[Column, ...]:
        """What a table is asked for; a column that params.yaml names must be there."""
        return (
            Column(self.text, "corpus.text_column", True),
            Column(self.title or TITLE_COLUMN, "corpus.title_column", self.title is not None),
            Column(self.id or ID_COLUMN, "corpus.id_column", self.id is not None),
        )


def as_documents(
    lines: Iterable[Line], columns: TextColumns, name: str, source: str, reading: Reading
) -> Iterator[Document]:
    """Documents from the records of a table; `name` begins the ids that are made.

    Raises:
        InputError: a value that is no text, with its place; numbers are no text, and neither is NaN.
    """
    (text_column, *_), (title_column, *_), (id_column, *_) = columns.wanted()
    for number, (where, values) in enumerate(lines):
        text = _text(values[text_column], source, where, text_column)
        title = _text(values.get(title_column), source, where, title_column)
        given = text_of_id(values.get(id_column), reading)
        document_id = _text(given, source, where, id_column).strip()
        if id_column in values and not document_id:
            reading.counts[NUMBERED] += 1
        yield Document(document_id or f"{name}:{number}", " ".join(title.split()), paragraphs(text))


def paragraphs(text: str) -> str:
    """`text` without lines of white space or ZERO_WIDTH characters, and without white space around the others."""
    parts = (part.strip() for part in text.splitlines())
    return "\n".join(part for part in parts if part.strip(ZERO_WIDTH + " "))


def _text(value: Any, source: str, where: str, column: str) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise InputError(
            f"{source}, {where}: {column} must be text, found {type(value).__name__} ({str(value)[:40]}); "
            "look at corpus.text_column, corpus.title_column and corpus.id_column"
        )
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise InputError(
            f"{source}, {where}: {column} holds half a surrogate pair (character {error.start}), "
            "which is no Unicode text; repair the file"
        ) from None
    return value
