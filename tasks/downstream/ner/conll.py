"""CoNLL files: one word per line, its tag in a column, and a blank line after a sentence.

Columns are separated by tabs if the first row has one, else by spaces. A line that begins with -DOCSTART- begins a
document. A line with an empty word and tag O is dropped and counted, because some public corpora have such lines.
"""

import itertools
import re
from collections.abc import Iterator
from pathlib import Path

from tasks.records.interpretation import BLANK_LINES, Interpretation
from tasks.records.tables import Columns, TableRow
from tasks.records.tagged_columns import DOCUMENT, choose_columns, is_word
from tasks.records.tags import OUTSIDE, looks_like_tag
from tasks.records.text_files import ProblemList, read_lines
from tasks.stage.errors import InputError

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
_BLANKS = " \t"
_COMMAS = re.compile(r"\S+,\s+\S+(?:,\s+\S+)*")


def read_conll(
    path: Path, key: str, reading: Interpretation, problems: ProblemList, *, columns: Columns, tagged: bool = True
) -> Iterator[TableRow]:
    """Yield the sentences of a CoNLL file, in order, and the lines that begin a document.

    Args:
        key: parameter with the path, for messages.
        reading: receives counts of skipped lines and the columns.
        columns: columns of tables; their names are those of a header, or numbers from 1 if the user names them.
        tagged: read tags; else all are O.

    Raises:
        InputError: text that is not UTF-8, a line or sentence that is too long, or columns with two readings.
    """
    reading.formats["CoNLL columns, UTF-8"] += 1
    reading.grouping = "a blank line ends a sentence"
    lines = _read_fields(path, key, reading, problems, tagged)
    head = list(itertools.islice(lines, FIRST_LINES))
    chosen = choose_columns([fields for _, fields in head], columns, f"{path} ({key})", reading, tagged)
    words: list[tuple[str, str, str]] = []
    for number, fields in itertools.chain(head, lines):
        where = f"line {number}"
        if len(fields) < 2 and fields in ([], [DOCUMENT]):
            yield from _make_row(words)
            words = []
            if fields:
                yield TableRow(where, {"tokens": fields, "tags": [OUTSIDE]})
            continue
        if chosen.has_header and number == head[0][0]:
            reading.count(HEADER, where)
            continue
        word, tag = fields[chosen.word], fields[chosen.tag] if tagged else OUTSIDE
        if chosen.number is not None and not is_word(fields[chosen.number], tag, bool(words), chosen, where, problems):
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


def _read_fields(
    path: Path, key: str, reading: Interpretation, problems: ProblemList, tagged: bool
) -> Iterator[tuple[int, list[str]]]:
    """Yield number and columns of each line, without comments and invalid lines: no columns for a blank line, DOCUMENT
    alone for one that begins a document. The first row decides the separator and the number of columns.
    """
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
            yield number, []
            continue
        fields = _split(line, tabs)
        was_blank = fields[0] == DOCUMENT  # usually a blank line follows that of a document
        if was_blank:
            is_start = True
            yield number, [DOCUMENT]
        elif is_start and _is_comment(line, tabs, width):
            reading.count(COMMENTS, where)
        elif tagged and len(fields) < 2:
            problems.add("a line with one column (word and tag are required)", where, line)
        elif len(fields) != width:
            problems.add(f"a line with other than {width} columns, as the first line has", where, line)
        else:
            is_start = False
            yield number, fields


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
