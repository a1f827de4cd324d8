"""Text from outside in what people open: one function for each format, so that text stays text.

File names, questions, answers, names of models and reasons come from data and parameters. Whatever a card, an artifact
or a table shows of them goes through here (HTML: through Jinja, see render.py); it never becomes a link, a heading or a
formula.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Sequence
from typing import Any

HIDDEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\u202a-\u202e\u2066-\u2069\ufffe\uffff]")
"""What no page may hold: control characters, halves of a character, and what turns the direction of the text around it,
so that a reader sees another order than the file has."""
REPLACED = "\ufffd"
MARKDOWN = {
    "\\": "&#92;",
    "`": "\\`",
    "*": "\\*",
    "[": "\\[",
    "]": "\\]",
    "~": "\\~",
    "$": "\\$",
    "|": "\\|",
    "<": "&lt;",
    ">": "&gt;",
    "&": "&amp;",
}
"""HTML by entities, as some readers of Markdown pass it on before they look at backslashes; and a backslash by one, as
the Hub takes two of them and a bracket for a formula, before it reads Markdown at all."""
BLOCK_START = re.compile(r"^(?:[#=:]|[+-](?=[\s+-]|$)|\d+(?=[.)](?:\s|$)))")
"""What begins a heading, a list or a rule at the start of a line."""
OUTER_UNDERSCORE = re.compile(r"(?<![^\W_])_|_(?![^\W_])")
"""Inside of a word an underscore is one."""
LINK = re.compile(r"(?<=:)(?=//)|(?<=www)(?=\.)|(?<=@)(?=[\w-]+\.\w)", re.IGNORECASE)
"""Where what many readers of Markdown make a link of by itself is broken up: addresses of pages and of people."""
JOINER = "\u2060"
"""A sign that is not seen and ends no line. An entity would not do: some readers resolve it before they look for links,
others show it."""
ADDRESS = re.compile(r"https?://[!#$%&*+,./0-9:;=?@A-Z_a-z~-]+")
"""What a link of ours may lead to."""
FORMULA = ("=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20")
"""What begins a formula in a spreadsheet, in full width, too."""
_SIGNS = re.escape("".join(FORMULA))
NEW_LINE = re.compile(rf"[\t\r\n]+(?=[\s\"]*[{_SIGNS}])")
NEW_CELL = re.compile(rf";[\s\"]*(?=[{_SIGNS}])|;\"*(?=[\t\r\n])")
"""Where a formula begins inside of a text for a spreadsheet that separates cells by semicolons: it sees no quote that
does not stand beside one."""


def readable(text: str) -> str:
    """`text` with a replacement character for each that no page may hold."""
    return HIDDEN.sub(REPLACED, text)


def markdown_text(value: Any) -> str:
    """Text in a line of Markdown, or in a cell of a table: one line, whatever it held."""
    line = _one_line(value)
    found = "".join(MARKDOWN.get(letter, letter) for letter in line)
    found = LINK.sub(JOINER, OUTER_UNDERSCORE.sub(r"\\_", found))
    return BLOCK_START.sub(lambda start: start[0] + "\\" if start[0][0].isdigit() else "\\" + start[0], found)


def markdown_link(text: Any, address: str) -> str:
    """A link to a page; what is no address of one becomes the text alone."""
    return f"[{markdown_text(text)}](<{address}>)" if ADDRESS.fullmatch(address) else markdown_text(text)


def markdown_code(value: Any) -> str:
    """A name or a command within a line of Markdown, as code; not for tables, whose cells end at a bar."""
    line = _one_line(value) or " "
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", line)), default=0))
    room = " " if "`" in (line[0], line[-1]) else ""
    return f"{fence}{room}{line}{room}{fence}"


def csv_text(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A table with a head; a text that a spreadsheet would compute gets an apostrophe before it, as OWASP advises.

    So does a part of a text that is a cell of its own where cells are separated by semicolons; a line end or tab before
    such a part becomes a blank.
    """
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow([_cell(name) for name in columns])
    writer.writerows([_cell(value) for value in row] for row in rows)
    return stream.getvalue()


def _one_line(value: Any) -> str:
    return readable(" ".join(str(value).split()))


def _cell(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    text = NEW_CELL.sub(r"\g<0>'", NEW_LINE.sub(" ", readable(value)))
    return f"'{text}" if text.lstrip().startswith(FORMULA) or text[:1] in ("\t", "\r", "\n") else text
