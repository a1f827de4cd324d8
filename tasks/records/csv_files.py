"""Rows of .csv and .tsv files: detection of the separator, and positions of quotes that are not closed."""

import csv
import itertools
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path

from tasks.records.interpretation import Interpretation
from tasks.records.text_files import MAX_LINE_BYTES, file_suffix, read_lines
from tasks.stage.errors import InputError

SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs"}
"""Possible separators of a .csv file and their names, most preferred first."""
SNIFFED_LINES, SNIFFED_CHARACTERS = 20, 1 << 20
"""Lines used to detect the separator, and the number of characters after which no further line is used."""
QUOTED = 40
"""Characters of a quoted field shown in messages."""


def read_rows(
    path: Path, key: str, separator: str | None, names: Collection[str], reading: Interpretation
) -> Iterator[tuple[int, int, list[str]]]:
    """Yield first line, last line and fields of each row of a file, the header first.

    Lines are counted from 1. Quotes have no special meaning in .tsv files.

    Args:
        separator: field separator or its name; None: a tab in .tsv, else detected from the first lines.
        names: names of the columns to read.
        reading: gets the format.

    Raises:
        InputError: text that is not UTF-8, a row that is too long, or unmatched quotes.
    """
    csv.field_size_limit(MAX_LINE_BYTES)
    is_tsv, lines = file_suffix(path) == ".tsv", read_lines(path, key)
    if separator is not None:
        from tasks.params.sections import SEPARATOR_NAMES  # pydantic, which `podium score` starts without

        separator = SEPARATOR_NAMES.get(separator, separator)
    if separator is None and not is_tsv:
        head: list[str] = []
        while len(head) < SNIFFED_LINES and sum(map(len, head)) <= SNIFFED_CHARACTERS and (line := next(lines, "")):
            head.append(line)
        separator, lines = _find_separator(head, names), itertools.chain(head, lines)
    separator = separator or "\t"
    named = SEPARATORS.get(separator, repr(separator))
    reading.formats[f"{'TSV' if is_tsv else 'CSV'}, UTF-8, fields separated by {named}"] += 1
    held: list[str] = []
    """Lines of the row being read."""
    rows = csv.reader(
        _collect_lines(lines, held, path, key, separator),
        delimiter=separator,
        quoting=csv.QUOTE_NONE if is_tsv else csv.QUOTE_MINIMAL,
        strict=not is_tsv,
    )
    try:
        for fields in rows:
            yield rows.line_num - len(held) + 1, rows.line_num, fields
            held.clear()
    except csv.Error as error:
        opened = _find_quote(held, separator)
        last, first = rows.line_num, rows.line_num - len(held) + 1
        if opened is not None and (first + opened[0] < last or "unexpected end" in str(error)):
            where, text = opened
            raise InputError(
                f"{path}, line {first + where}: the quote before {text!r} is not closed where its field ends "
                f"(line {last}: {error}). Close it, and double quotes inside a quoted field ({key})"
            ) from None
        raise InputError(f"{path}, line {last} is not valid CSV: {error}") from None


def _collect_lines(lines: Iterable[str], held: list[str], path: Path, key: str, separator: str) -> Iterator[str]:
    """Yield `lines` and append each to `held`, which the caller clears once a row is complete."""
    length = 0
    for number, line in enumerate(lines, 1):
        length = len(line) + (length if held else 0)
        held.append(line)
        if length > MAX_LINE_BYTES:
            where, _ = _find_quote(held, separator) or (0, "")
            raise InputError(
                f"{path}, line {number - len(held) + 1 + where}: a quote opens here, and the row is longer than "
                f"{MAX_LINE_BYTES >> 20} MB. Close the quote ({key})"
            )
        yield line


def _find_quote(lines: Sequence[str], separator: str) -> tuple[int, str] | None:
    """Return the line of the first quoted field that does not end properly, and how the field begins."""
    text, start, separator = "".join(lines), 0, re.escape(separator)
    sound = re.compile(rf'(?:"[^"]*(?:""[^"]*)*"|[^"{separator}\n][^{separator}\n]*)?(?:[{separator}\r\n]|\Z)')
    while start < len(text) and (field := sound.match(text, start)):
        start = field.end()
    if start == len(text):
        return None
    return text.count("\n", 0, start), text[start + 1 : start + 1 + QUOTED].partition("\n")[0]


def _find_separator(head: Sequence[str], names: Collection[str]) -> str:
    """Return the first separator that gives header and rows equally many fields, else that with the widest header."""
    widths = dict.fromkeys(SEPARATORS, 0)
    for separator in SEPARATORS:
        try:
            header, *rows = csv.reader(head, delimiter=separator)
        except (csv.Error, ValueError):  # ValueError: there is no header
            continue
        widths[separator] = len(header)
        whole = rows[: SNIFFED_LINES - 2]  # the last row may continue on the next line
        if header[:1] and header[0] in names:
            return separator
        if len(header) > 1 and all(len(row) in (0, len(header)) for row in whole):
            return separator
    return max(SEPARATORS, key=widths.__getitem__)
