"""Columns of tagged words: which of them has the words, the tags and the numbers of the words.

The word is in the first column and the tag in the last one, unless the content, a header or the user says otherwise:
GermEval and CoNLL-U number the words of each sentence in the first column.
"""

import itertools
import re
from collections.abc import Sequence
from typing import NamedTuple

from tasks.records.interpretation import BY_CONTENT, BY_NAME, BY_USER, Interpretation
from tasks.records.tables import Columns, ColumnSpec, find_layout
from tasks.records.tags import OUTSIDE, find_problem, looks_like_tag, split_tag
from tasks.records.text_files import ProblemList
from tasks.stage.errors import InputError

DOCUMENT = "-DOCSTART-"
"""Line that begins a document."""
COUNTED_WORDS = 4
"""Words of a sentence that prove a running number; two sentences of two words do so as well."""
_RANGE = re.compile(r"[0-9]+[-.][0-9]+")


class TaggedColumns(NamedTuple):
    """Columns to read, from 0."""

    word: int = 0
    tag: int = -1
    number: int | None = None
    """Column with a running number of the words in each sentence."""
    first_number: str = ""
    has_header: bool = False


def is_word(number: str, tag: str, is_inside: bool, chosen: TaggedColumns, where: str, problems: ProblemList) -> bool:
    """Return True if a line with this number is a word, False if it is a range or an empty node."""
    if _RANGE.fullmatch(number):
        if tag != OUTSIDE and not find_problem(tag):
            problems.add("a tag at a multiword token or empty node (tags belong to words)", where, tag)
        return False
    if not number.isdecimal():
        problems.add("a line without the word number with which the others begin", where, number)
    elif is_inside and number == chosen.first_number:
        problems.add("a word number that starts again without a blank line before", where, number)
    return True


def find_header(fields: Sequence[str], columns: Columns) -> dict[str, int]:
    """Return part -> its column in a header; empty if the fields do not name words and tags."""
    named = find_layout(fields, [columns])
    return {part: fields.index(name) for part, (name, _) in named.items()} if named else {}


def choose_columns(
    lines: Sequence[Sequence[str]], columns: Columns, source: str, reading: Interpretation, tagged: bool
) -> TaggedColumns:
    """Return the columns to read, those of tags if `tagged`; `reading` receives them.

    Args:
        lines: fields of the first lines; none for a blank line, DOCUMENT alone for one that begins a document.
        columns: columns of tables; their names are those of a header, or numbers from 1 if the user names them.

    Raises:
        InputError: columns with two readings, or a table with a column of sentences.
    """
    sentences = _split_sentences(lines)
    rows = list(itertools.chain.from_iterable(sentences))
    if not rows:
        return TaggedColumns()
    width = len(rows[0])
    if lines[0] is rows[0] and (header := find_header(rows[0], columns)):
        if "sentence" in header:
            raise InputError(
                f"{source} is a table with a column of sentences, {rows[0][header['sentence']]!r}. Give it the suffix "
                ".tsv, or remove that column and end sentences with a blank line"
            )
        for part, column in header.items():
            reading.use_column(part, rows[0][column], BY_NAME)
        return TaggedColumns(header["tokens"], header["tags"], has_header=True)
    chosen = {part: _parse_number(columns[part], width, source) for part in ("tokens", "tags")}
    word, number = chosen["tokens"], None
    if word != 0 and width > 1 + tagged and (first := _find_first_number(sentences)):
        number = 0
        if word is None and not _proves_number(sentences):
            raise InputError(
                f"{source}: column 1 has the words, or their numbers and column 2 has the words; the file is too short "
                f"to tell. {_options(columns['tokens'], (1, 2))}"
            )
    word = int(number is not None) if word is None else word
    reading.use_column("tokens", f"column {word + 1}", BY_USER if chosen["tokens"] is not None else BY_CONTENT)
    if number is not None:
        reading.use_column("word number", "column 1", BY_CONTENT)
    tag = chosen["tags"]
    if tagged:
        rows = [row for row in rows if number is None or not _RANGE.fullmatch(row[0])]
        tag = _choose_tags(rows, {word, number}, columns["tags"], source) if tag is None else tag
        reading.use_column("tags", f"column {tag + 1}", BY_USER if chosen["tags"] is not None else BY_CONTENT)
    return TaggedColumns(word, width - 1 if tag is None else tag, number, first if number is not None else "")


def _options(column: ColumnSpec, numbers: Sequence[int]) -> str:
    """Return the settings that name one of the columns with these numbers."""
    choices = " or ".join(column.key.replace("NAME", str(number)) for number in numbers)
    return f"Choose with {choices}"


def _parse_number(column: ColumnSpec, width: int, source: str) -> int | None:
    """Return the column that the user has named by its number, from 0."""
    name = column.names[0]
    if not name.isdecimal():
        return None
    if not 1 <= int(name) <= width:
        raise InputError(f"{source} has {width} columns, there is no column {name}. Set {column.key}")
    return int(name) - 1


def _split_sentences(lines: Sequence[Sequence[str]]) -> list[list[Sequence[str]]]:
    groups = itertools.groupby(lines, lambda fields: fields not in ([], [DOCUMENT]))
    return [list(fields) for is_row, fields in groups if is_row]


def _find_first_number(sentences: Sequence[Sequence[Sequence[str]]]) -> str:
    """Return the first number, 0 or 1, if the first column numbers the words of every sentence; else nothing."""
    numbers = [[row[0] for row in rows if not _RANGE.fullmatch(row[0])] for rows in sentences]
    first = next((cells[0] for cells in numbers if cells), "")
    if first not in ("0", "1") or all(number == first for cells in numbers for number in cells):
        return ""
    for sentence in numbers:
        after = [first, *(str(int(number) + 1) if number.isdecimal() else "" for number in sentence)]
        if any(number not in (first, expected) for number, expected in zip(sentence, after, strict=False)):
            return ""  # a number that starts again inside a sentence is reported later
    return first


def _proves_number(sentences: Sequence[Sequence[Sequence[str]]]) -> bool:
    """Return True if words that are 1, 2, 3 ... in every sentence are too unlikely."""
    lengths = [len(rows) for rows in sentences]
    return max(lengths) >= COUNTED_WORDS or sum(length > 1 for length in lengths) > 1


def _choose_tags(rows: Sequence[Sequence[str]], others: set[int | None], column: ColumnSpec, source: str) -> int:
    """Return the column of the tags: the last one, unless it has none and another has.

    Raises:
        InputError: another column has tags of named entities as well. Chunks (CoNLL-2003) are told apart by their tags:
            most words are in a chunk, but not in an entity.
    """
    width = len(rows[0])
    values = {at: [row[at] for row in rows] for at in range(width) if at not in others}
    last = values.pop(width - 1, [])
    tagged = {at: tags for at, tags in values.items() if all(map(_is_tag, tags)) and _types(tags)}
    if all(map(_is_tag, last)):
        rivals = [at for at, tags in tagged.items() if tags != last and _are_alike(tags, last)]
        rivals += [width - 1] * bool(rivals)
    else:
        rivals = [] if any(map(_is_tag, last)) else list(tagged)
    if len(rivals) == 1:
        return rivals[0]
    if rivals:
        names = " and ".join(str(at + 1) for at in rivals)
        raise InputError(
            f"{source}: the columns {names} all have tags of entities, and one is read. "
            f"{_options(column, [at + 1 for at in rivals])}"
        )
    return width - 1


def _is_tag(text: str) -> bool:
    return text == OUTSIDE or (looks_like_tag(text) and bool(split_tag(text)[1]))


def _are_alike(values: Sequence[str], other: Sequence[str]) -> bool:
    is_mostly_outside = all(2 * tags.count(OUTSIDE) > len(tags) for tags in (values, other))
    return is_mostly_outside or not _types(values).isdisjoint(_types(other))


def _types(tags: Sequence[str]) -> set[str]:
    return {split_tag(tag)[1] for tag in set(tags)} - {""}
