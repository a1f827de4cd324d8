"""CoNLL files: one word per line, its tag in a column, and a blank line after a sentence.

Columns are separated by tabs if the first row has one, else by spaces. A line that begins with -DOCSTART- begins a
document. A line with an empty word and tag O is dropped and counted, because some public corpora have such lines.

The word is in the first column and the tag in the last one, unless the content, a header or the user says otherwise:
GermEval and CoNLL-U number the words of each sentence in the first column.
"""

import itertools
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from tasks.downstream.ner.tags import OUTSIDE, find_problem, looks_like_tag, split_tag
from tasks.records.interpretation import BLANK_LINES, BY_CONTENT, BY_NAME, BY_USER, Interpretation
from tasks.records.tables import Columns, ColumnSpec, TableRow, find_layout
from tasks.records.text_files import ProblemList, read_lines
from tasks.stage.errors import InputError

DOCUMENT = "-DOCSTART-"
COMMENTS = "comment lines skipped"
HEADER = "header lines skipped"
NO_WORD = "lines with an empty word tagged O, dropped"
RANGES = "lines of multiword tokens (1-2) and empty nodes (3.1), skipped"
MAX_LINE_CHARACTERS = 100_000
"""Maximum length of a line."""
MAX_WORDS = 50_000
"""Maximum words of a sentence; longer ones usually lack blank lines between sentences."""
FIRST_LINES = 5_000
"""Lines that decide which columns are read."""
COUNTED_WORDS = 4
"""Words of a sentence that prove a running number; two sentences of two words do so as well."""
_BLANKS = " \t"
_RANGE = re.compile(r"[0-9]+[-.][0-9]+")


class Line(NamedTuple):
    """A line of a file, without comments."""

    number: int
    fields: list[str]
    """Columns; empty for a blank line, DOCUMENT alone for a line that begins a document."""


class ConllColumns(NamedTuple):
    """Columns to read, from 0."""

    word: int = 0
    tag: int = -1
    number: int | None = None
    """Column with a running number of the words in each sentence."""
    first_number: str = ""
    has_header: bool = False


def read_conll(
    path: Path, key: str, reading: Interpretation, problems: ProblemList, *, columns: Columns, tagged: bool = True
) -> Iterator[TableRow]:
    """Yield the sentences of a CoNLL file, in order, and the lines that begin a document.

    Args:
        path: the file.
        key: parameter with the path, for messages.
        reading: receives counts of skipped lines and the columns.
        problems: receives invalid lines.
        columns: columns of tables; their names are those of a header, or numbers from 1 if the user names them.
        tagged: read tags; else all are O.

    Raises:
        InputError: text that is not UTF-8, a line or sentence that is too long, or columns with two readings.
    """
    reading.formats["CoNLL columns, UTF-8"] += 1
    reading.grouping = "a blank line ends a sentence"
    lines = _read_fields(path, key, reading, problems, tagged)
    head = list(itertools.islice(lines, FIRST_LINES))
    chosen = _choose_columns(head, columns, f"{path} ({key})", reading, tagged)
    words: list[tuple[str, str, str]] = []
    for number, fields in itertools.chain(head, lines):
        where = f"line {number}"
        if len(fields) < 2 and fields in ([], [DOCUMENT]):
            yield from _make_row(words)
            words = []
            if fields:
                yield TableRow(where, {"tokens": fields, "tags": [OUTSIDE]})
            continue
        if chosen.has_header and number == head[0].number:
            reading.count(HEADER, where)
            continue
        word, tag = fields[chosen.word], fields[chosen.tag] if tagged else OUTSIDE
        if chosen.number is not None and not _is_word(fields[chosen.number], tag, bool(words), chosen, where, problems):
            reading.count(RANGES, where)
            continue
        if not word and tag == OUTSIDE:
            reading.count(NO_WORD, where)
            continue
        words.append((word, tag, where))
        if len(words) > MAX_WORDS:
            raise InputError(
                f"{path}: the sentence from {words[0][2]} has more than {MAX_WORDS:,} words. End sentences "
                f"with a blank line ({key})"
            )
    yield from _make_row(words)


def _make_row(words: list[tuple[str, str, str]]) -> Iterator[TableRow]:
    if words:
        tokens, tags, places = map(list, zip(*words, strict=True))
        yield TableRow(places[0], {"tokens": tokens, "tags": tags, "places": places})


def _is_word(number: str, tag: str, is_inside: bool, chosen: ConllColumns, where: str, problems: ProblemList) -> bool:
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


# ---------------------------------------------------------------------------------------------- lines


_COMMAS = re.compile(r"\S+,\s+\S+(?:,\s+\S+)*")


def _read_fields(path: Path, key: str, reading: Interpretation, problems: ProblemList, tagged: bool) -> Iterator[Line]:
    """Yield lines without comments and invalid ones; the first row decides the separator and the number of columns."""
    texts = enumerate(_read_limited(path, key), 1)
    head = list(itertools.islice(texts, FIRST_LINES))
    rows = [text for _, text in head if text.strip(_BLANKS) and not text.startswith(DOCUMENT)]
    first = next((text for text in rows if not text.startswith("#")), next(iter(rows), ""))
    tabs = "\t" in first
    if len(rows) > 1 and all(_COMMAS.fullmatch(text.strip(_BLANKS)) for text in rows):
        raise InputError(f"{path} has commas between its columns: replace them by tabs ({key})")
    width = len(_split(first, tabs))
    was_blank = is_start = True
    for number, line in itertools.chain(head, texts):
        where = f"line {number}"
        if not line.strip(_BLANKS):
            if was_blank:
                reading.count(BLANK_LINES, where)
            was_blank = is_start = True
            yield Line(number, [])
            continue
        fields = _split(line, tabs)
        was_blank = fields[0] == DOCUMENT  # usually a blank line follows that of a document
        if was_blank:
            is_start = True
            yield Line(number, [DOCUMENT])
        elif is_start and _is_comment(line, tabs, width):
            reading.count(COMMENTS, where)
        elif tagged and len(fields) < 2:
            problems.add("a line with one column (word and tag are required)", where, line)
        elif len(fields) != width:
            problems.add(f"a line with other than {width} columns, as the first line has", where, line)
        else:
            is_start = False
            yield Line(number, fields)


def _read_limited(path: Path, key: str) -> Iterator[str]:
    for number, text in enumerate(read_lines(path, key), 1):
        if len(text) > MAX_LINE_CHARACTERS:
            raise InputError(
                f"{path}: line {number} has {len(text):,} characters, more than {MAX_LINE_CHARACTERS:,}. "
                f"Each line must be a word with its tag ({key})"
            )
        yield text.rstrip("\r\n")


def _is_comment(line: str, tabs: bool, width: int) -> bool:
    """Return True if a line at the start of a sentence is a comment and cannot be the word #."""
    fields = _split(line, tabs)
    if not line.startswith(("# ", "#\t")):
        return False
    if tabs and len(fields) > 1:
        return len(fields) != width and not looks_like_tag(fields[-1])
    words = line.split()
    is_other = len(words) > 2 and (tabs or (words[2] == "=" and len(words) != width))
    return len(words) > 1 and (is_other or not looks_like_tag(words[-1]))


def _split(line: str, tabs: bool) -> list[str]:
    if tabs:
        return [field.strip(" ") for field in line.split("\t")]
    return re.split(f"[{_BLANKS}]+", line.strip(_BLANKS))


# -------------------------------------------------------------------------------------------- columns


def find_header(fields: Sequence[str], columns: Columns) -> dict[str, int]:
    """Return part -> its column in a header; empty if the fields do not name words and tags."""
    named = find_layout(fields, [columns])
    return {part: fields.index(name) for part, (name, _) in named.items()} if named else {}


def _choose_columns(
    head: Sequence[Line], columns: Columns, source: str, reading: Interpretation, tagged: bool
) -> ConllColumns:
    rows = [line.fields for line in head if line.fields not in ([], [DOCUMENT])]
    if not rows:
        return ConllColumns()
    width = len(rows[0])
    if head[0].fields == rows[0] and (header := find_header(rows[0], columns)):
        if "sentence" in header:
            raise InputError(
                f"{source} is a table with a column of sentences, {rows[0][header['sentence']]!r}. Give it the suffix "
                ".tsv, or remove that column and end sentences with a blank line"
            )
        for part, column in header.items():
            reading.use_column(part, rows[0][column], BY_NAME)
        return ConllColumns(header["tokens"], header["tags"], has_header=True)
    chosen = {part: _parse_number(columns[part], width, source) for part in ("tokens", "tags")}
    sentences = _split_sentences(head)
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
    return ConllColumns(word, width - 1 if tag is None else tag, number, first if number is not None else "")


def _options(column: ColumnSpec, numbers: Sequence[int]) -> str:
    """Return the settings that name one of the columns with these numbers."""
    choices = " or ".join(column.key.replace("NAME", str(number)) for number in numbers)
    return f"Choose with {choices}"


def _parse_number(column: ColumnSpec, width: int, source: str) -> int | None:
    """Return the column that the user has named by its number, from 0."""
    own = column.names[0]
    if not own.isdecimal():
        return None
    if not 1 <= int(own) <= width:
        raise InputError(f"{source} has {width} columns, there is no column {own}. Set {column.key}")
    return int(own) - 1


def _split_sentences(head: Sequence[Line]) -> list[list[list[str]]]:
    groups = itertools.groupby((line.fields for line in head), lambda fields: fields not in ([], [DOCUMENT]))
    return [list(fields) for is_row, fields in groups if is_row]


def _find_first_number(sentences: Sequence[Sequence[Sequence[str]]]) -> str:
    """Return the first number, 0 or 1, if the first column numbers the words of every sentence; else nothing."""
    numbers = [[row[0] for row in rows if not _RANGE.fullmatch(row[0])] for rows in sentences]
    first = next((found[0] for found in numbers if found), "")
    if first not in ("0", "1") or all(number == first for found in numbers for number in found):
        return ""
    for found in numbers:
        after = [first, *(str(int(number) + 1) if number.isdecimal() else "" for number in found)]
        if any(number not in (first, expected) for number, expected in zip(found, after, strict=False)):
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
    tagged = {at: found for at, found in values.items() if all(map(_is_tag, found)) and _types(found)}
    if all(map(_is_tag, last)):
        rivals = [at for at, found in tagged.items() if found != last and _are_alike(found, last)]
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


def _are_alike(one: Sequence[str], other: Sequence[str]) -> bool:
    is_mostly_outside = all(2 * tags.count(OUTSIDE) > len(tags) for tags in (one, other))
    return is_mostly_outside or not _types(one).isdisjoint(_types(other))


def _types(tags: Sequence[str]) -> set[str]:
    return {split_tag(tag)[1] for tag in set(tags)} - {""}
