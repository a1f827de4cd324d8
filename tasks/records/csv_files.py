"""Rows of .csv and .tsv files: detection of the separator and of quoted cells, and positions of quotes that are not
closed."""

import contextlib
import csv
import itertools
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from tasks.records.interpretation import Interpretation
from tasks.records.text_files import MAX_LINE_BYTES, file_suffix, read_lines
from tasks.stage.errors import InputError

SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs"}
"""Possible separators of a .csv file and their names, most preferred first."""
SNIFFED_LINES, SNIFFED_CHARACTERS = 20, 1 << 20
"""Lines used to detect the separator, and the number of characters after which no further line is used."""
QUOTED = 40
"""Characters of a quoted field shown in messages."""
MAX_DETECTED = 1 << 20
"""Longest row with enclosed cells in a .tsv file whose quotes are not stated."""
SEVERAL_LINES = "rows over several lines, as a quoted cell has line breaks"
_BLANK_QUOTE = re.compile(r' +"[^"]*"')
_STATED = re.compile(r'"?sep=(.)"?[\r\n]*', re.IGNORECASE)
"""First line that Excel reads as the separator."""


class Quoting(NamedTuple):
    """Meaning of the quotes at the ends of cells."""

    encloses: bool
    """They enclose the cells and are not part of them."""
    doubtful: Mapping[int, tuple[int, str]] = {}
    """Number of a column with cells that both readings fit -> line and text of the first one."""


def detect_quoting(path: Path, key: str, separator: str | None) -> Quoting:
    """Tell from all rows of a .tsv file whether quotes enclose its cells. For arguments and errors see `read_rows`.

    They do not if rows with enclosed cells differ in width from the header; nor if a cell has quotes only inside, which
    programs enclose, or would hold the end of one row and the start of the next. They do if single lines differ in
    width from the header, or if quotes inside enclosed cells are doubled, or if all names of the header are enclosed.
    """
    csv.field_size_limit(MAX_LINE_BYTES)
    lines, excel_separator = _open_lines(path, key)
    sign = _resolve_separator(separator) or excel_separator or "\t"
    pattern = re.compile(rf'(?:\A|{re.escape(sign)})("(?:[^"]|"")*"|[^{re.escape(sign)}]*)')
    row_lines: list[str] = []
    rows = csv.reader(_collect_lines(lines, row_lines, path, key, sign, MAX_DETECTED), delimiter=sign, strict=True)
    doubtful: dict[int, tuple[int, str]] = {}
    width, is_doubled, is_literal, are_lines_rows = 0, False, False, True
    try:
        for fields in rows:
            text = "".join(row_lines)
            if fields and len(fields) != (width := width or len(fields)):
                return Quoting(False)
            if '"' in text:
                cells = pattern.findall(text.rstrip("\r\n"))
                enclosed = {number: cell for number, cell in enumerate(cells) if cell.startswith('"')}
                is_doubled |= any('""' in cell[1:-1] for cell in enclosed.values())
                is_doubled |= not doubtful and rows.line_num == len(row_lines) and len(enclosed) == width
                are_alone = all(line.count(sign) + 1 == width for line in row_lines if line.strip())
                is_literal |= any('"' in cell for cell in cells if not cell.startswith('"'))
                is_literal |= are_alone and width > 1 < len(row_lines)
                are_lines_rows &= are_alone
                line = rows.line_num - len(row_lines) + 1 + bool(excel_separator)
                doubtful = {number: (line, cell) for number, cell in enclosed.items()} | doubtful
            row_lines.clear()
    except (csv.Error, InputError):  # `read_rows` reports what is wrong in both readings
        return Quoting(False)
    if not doubtful or (are_lines_rows and is_literal and not is_doubled):
        return Quoting(False)
    is_certain = not are_lines_rows or (is_doubled and not is_literal)
    return Quoting(is_certain, {} if is_certain else doubtful)


def read_rows(
    path: Path, key: str, separator: str | None, names: Collection[str], reading: Interpretation, *, is_quoted: bool
) -> Iterator[tuple[int, int, list[str]]]:
    """Yield first line, last line and fields of each row of a file, the header first. Lines are counted from 1.

    Args:
        separator: field separator or its name; None: that of Excel's first line `sep=;`, else a tab in .tsv, else
            detected from the first lines.
        names: names of the columns to read.
        is_quoted: quotes may enclose a cell; otherwise they are part of it.

    Raises:
        InputError: text that is not UTF-8, a row that is too long, or unmatched quotes.
    """
    csv.field_size_limit(MAX_LINE_BYTES)
    is_tsv, (lines, excel_separator) = file_suffix(path) == ".tsv", _open_lines(path, key)
    separator = _resolve_separator(separator) or excel_separator
    if separator is None and not is_tsv:
        head: list[str] = []
        while len(head) < SNIFFED_LINES and sum(map(len, head)) <= SNIFFED_CHARACTERS and (line := next(lines, "")):
            head.append(line)
        separator, lines = _find_separator(head, names), itertools.chain(head, lines)
    separator = separator or "\t"
    lines, skips = _find_blank_quotes(lines, separator) if is_quoted and not is_tsv else (lines, False)
    cells = "" if is_quoted != is_tsv else " with quoted cells" if is_quoted else " with literal quotes"
    named = SEPARATORS.get(separator, repr(separator)) + (
        f" (first line: sep={excel_separator})" if excel_separator else ""
    )
    reading.formats[f"{'TSV' if is_tsv else 'CSV'}{cells}, UTF-8, fields separated by {named}"] += 1
    row_lines: list[str] = []
    """Lines of the row being read."""
    rows = csv.reader(
        _collect_lines(lines, row_lines, path, key, separator, MAX_LINE_BYTES),
        delimiter=separator,
        quoting=csv.QUOTE_MINIMAL if is_quoted else csv.QUOTE_NONE,
        skipinitialspace=skips,
        strict=is_quoted,
    )
    before = int(bool(excel_separator))
    try:
        for fields in rows:
            first = before + rows.line_num - len(row_lines) + 1
            reading.count(SEVERAL_LINES, f"line {first}", int(len(row_lines) > 1))
            yield first, before + rows.line_num, fields
            row_lines.clear()
    except csv.Error as error:
        opened = _find_quote(row_lines, separator)
        last, first = before + rows.line_num, before + rows.line_num - len(row_lines) + 1
        if opened is not None and (first + opened[0] < last or "unexpected end" in str(error)):
            where, text = opened
            raise InputError(
                f"{path}, line {first + where}: the quote before {text!r} is not closed where its field ends "
                f"(line {last}: {error}). Close it, and double quotes inside a quoted field ({key})"
            ) from None
        raise InputError(f"{path}, line {last} is not valid CSV: {error}") from None


def _find_blank_quotes(lines: Iterator[str], separator: str) -> tuple[Iterator[str], bool]:
    """Return the lines, and whether blanks precede the quotes of cells in the first ones: a, "b"."""
    head = list(itertools.islice(lines, SNIFFED_LINES))
    with contextlib.suppress(csv.Error):
        cells = itertools.chain.from_iterable(csv.reader(head, delimiter=separator))
        return itertools.chain(head, lines), any(_BLANK_QUOTE.fullmatch(cell) for cell in cells)
    return itertools.chain(head, lines), False


def _resolve_separator(separator: str | None) -> str | None:
    """Return a separator that is stated by its name or as a character."""
    if separator is None:
        return None
    from tasks.params.sections import SEPARATOR_NAMES  # pydantic, which `podium evaluate` starts without

    return SEPARATOR_NAMES.get(separator, separator)


def _open_lines(path: Path, key: str) -> tuple[Iterator[str], str | None]:
    """Return the lines of a file, and the separator that Excel's first line states, which is left out."""
    lines = read_lines(path, key)
    first = next(lines, "")
    if match := _STATED.fullmatch(first):
        return lines, match[1]
    return itertools.chain([first] if first else [], lines), None


def _collect_lines(
    lines: Iterable[str], row_lines: list[str], path: Path, key: str, separator: str, most: int
) -> Iterator[str]:
    """Yield `lines` and append each to `held`, which the caller clears once a row is complete."""
    length = 0
    for number, line in enumerate(lines, 1):
        length = len(line) + (length if row_lines else 0)
        row_lines.append(line)
        if length > most:
            where, _ = _find_quote(row_lines, separator) or (0, "")
            raise InputError(
                f"{path}, line {number - len(row_lines) + 1 + where}: a quote opens here, and the row is longer than "
                f"{most >> 20} MB. Close the quote ({key})"
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
