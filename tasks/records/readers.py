"""Streaming parsers for .json files with a list of objects, and for rows of .csv and .tsv files.

The separator of a .csv file is detected from its first lines. A quote that is never closed is reported with the line
where it opens.
"""

from __future__ import annotations

import codecs
import csv
import itertools
import json
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ipu_model.files import reject_duplicate_keys
from tasks.records.text_files import BLOCK_BYTES, MAX_LINE_BYTES, ReadLog, file_suffix, open_unpacked, peek, read_lines
from tasks.stage.errors import InputError

_BEGIN, _NEXT = re.compile(r"\s*\[\s*"), re.compile(r"\s*,\s*")
"""Text before the first record, and before the others."""
_EMPTY, _END = re.compile(r"\s*\[\s*\]\s*"), re.compile(r"\s*\]\s*")
_PARSER = json.JSONDecoder(object_pairs_hook=reject_duplicate_keys)
SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs"}
"""Possible separators of a .csv file and their names, most preferred first."""
SNIFFED_LINES, SNIFFED_CHARACTERS = 20, 1 << 20
"""Lines used to detect the separator, and the number of characters after which no further line is used."""
QUOTED = 40
"""Characters of a quoted field shown in messages."""


def is_json_array(path: Path, key: str) -> bool:
    """Tell whether a file contains a JSON list, by its first character that is not white space.

    Raises:
        InputError: the file cannot be read.
    """
    try:
        return peek(path, BLOCK_BYTES).startswith(b"[")
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror or error}) ({key})") from None


def read_array(path: Path, key: str) -> Iterator[dict[str, Any]]:
    """Yield the objects of a list, in order.

    Raises:
        InputError: not UTF-8, not JSON, something other than objects, or an object that is too long; the message has
            the record and the line in which it begins.
    """
    text, number, line = "", 0, 1
    for block, is_last in _read_blocks(path, key):
        text, at = text + block, 0
        while True:
            joint = (_NEXT if number else _BEGIN).match(text, at)
            start = joint.end() if joint else at
            where = f"{path}, record {number} (line {line + text.count(chr(10), at, start)})"
            try:
                if joint is None:
                    raise json.JSONDecodeError("expecting ',' or ']'", text, at)
                values, end = _PARSER.raw_decode(text, start)
            except json.JSONDecodeError as error:
                if not is_last and len(text) - at <= MAX_LINE_BYTES:
                    break  # the record may continue in the next block
                if (_END if number else _EMPTY).fullmatch(text, at):
                    return
                raise InputError(f"{where} is not JSON ({error.msg}); a list of objects is required ({key})") from None
            except (ValueError, RecursionError) as error:
                raise InputError(f"{where} cannot be read ({error}) ({key})") from None
            if not isinstance(values, dict):
                raise InputError(f"{where} is {type(values).__name__}; a list of objects is required ({key})")
            yield values
            line += text.count("\n", at, end)
            number, at = number + 1, end
        text = text[at:]


def _read_blocks(path: Path, key: str) -> Iterator[tuple[str, bool]]:
    """Yield the text of a file in blocks, each with whether it is the last one, which is empty."""
    decoder, offset = codecs.getincrementaldecoder("utf-8-sig")(), 0
    try:
        with open_unpacked(path) as stream:
            while block := stream.read(BLOCK_BYTES):
                yield decoder.decode(block), False
                offset += len(block)
        yield decoder.decode(b"", final=True), True
    except UnicodeDecodeError as error:
        raise InputError(
            f"{path} is not UTF-8: found byte 0x{error.object[error.start]:02x} near offset {offset + error.start}. "
            f"Convert the file, e.g. iconv -f LATIN1 -t UTF-8 ({key})"
        ) from None
    except OSError as error:
        raise InputError(f"{path} cannot be read at offset {offset} ({error.strerror or error}) ({key})") from None


class CsvRow(NamedTuple):
    """Fields of a row and its lines."""

    first: int
    """First line, counted from 1."""
    last: int
    fields: list[str]


def read_rows(
    path: Path, key: str, separator: str | None, names: Collection[str], reading: ReadLog
) -> Iterator[CsvRow]:
    """Yield the rows of a file, the header first. Quotes have no special meaning in .tsv files.

    Args:
        path: the file.
        key: params key that named it, for messages.
        separator: field separator; None: a tab in .tsv, else detected from the first lines.
        names: names of the columns to read.
        reading: gets a remark if the separator of a .csv file is not a comma.

    Raises:
        InputError: text that is not UTF-8, a row that is too long, or unmatched quotes.
    """
    csv.field_size_limit(MAX_LINE_BYTES)
    is_tsv, lines = file_suffix(path) == ".tsv", read_lines(path, key)
    if separator is None and not is_tsv:
        head = _read_head(lines)
        separator, lines = _find_separator(head, names), itertools.chain(head, lines)
        if separator != ",":
            reading.remark(f"{path.name}: fields are separated by {SEPARATORS[separator]}")
    separator = separator or "\t"
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
            yield CsvRow(rows.line_num - len(held) + 1, rows.line_num, fields)
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


def _read_head(lines: Iterator[str]) -> list[str]:
    head, length = [], 0
    for line in itertools.islice(lines, SNIFFED_LINES):
        head.append(line)
        length += len(line)
        if length > SNIFFED_CHARACTERS:
            break
    return head


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
