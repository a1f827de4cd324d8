"""Escaping of untrusted text: one function per format.

File names, questions, answers, model names and reasons come from data and parameters. Cards, artifacts and tables
escape them with these functions (HTML: Jinja, see render.py), so that they never become links, headings or formulas.
"""

import csv
import io
import re
from collections.abc import Iterable, Sequence
from typing import Any

HIDDEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\u202a-\u202e\u2066-\u2069\ufffe\uffff]")
"""Characters that no page may contain: control characters, surrogates, and overrides of the text direction, which
would show another order than the file has."""
REPLACED = "\ufffd"
MARKDOWN = str.maketrans(
    {"\\": "&#92;", "<": "&lt;", ">": "&gt;", "&": "&amp;", **{sign: f"\\{sign}" for sign in "`*[]~$|"}}
)
"""Entities for HTML, which some Markdown readers pass on before they process backslashes; and an entity for the
backslash, because the Hub reads two of them and a bracket as a formula before it parses Markdown."""
BLOCK_START = re.compile(r"^(?:[#=:]|[+-](?=[\s+-]|$)|\d+(?=[.)](?:\s|$)))")
"""Characters that begin a heading, a list or a rule at the start of a line."""
OUTER_UNDERSCORE = re.compile(r"(?<![^\W_])_|_(?![^\W_])")
"""Underscore at the edge of a word; inside a word it needs no escape."""
LINK = re.compile(r"(?<=:)(?=//)|(?<=www)(?=\.)|(?<=@)(?=[\w-]+\.\w)", re.IGNORECASE)
"""Positions where URLs and e-mail addresses are split, because many Markdown readers turn them into links."""
JOINER = "\u2060"
"""Invisible character without a line break. An entity would not work: some readers resolve it before they look for
links, others show it."""
ADDRESS = re.compile(r"https?://[!#$%&*+,./0-9:;=?@A-Z_a-z~-]+")
"""URLs that Podium's own links may have."""
FORMULA = ("=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20")
"""Characters that begin a formula in a spreadsheet, with their full-width forms."""
_SIGNS = re.escape("".join(FORMULA))
NEW_LINE = re.compile(rf"[\t\r\n]+(?=[\s\"]*[{_SIGNS}])")
NEW_CELL = re.compile(rf";[\s\"]*(?=[{_SIGNS}])|;\"*(?=[\t\r\n])")
"""Start of a formula inside a text, for a spreadsheet that separates cells by semicolons and recognizes quotes only
next to them."""


def replace_hidden(text: str) -> str:
    """Return `text` with each forbidden character replaced."""
    return HIDDEN.sub(REPLACED, text)


def markdown_text(value: Any) -> str:
    """Return text escaped for a line of Markdown or a table cell; always one line."""
    escaped = LINK.sub(JOINER, OUTER_UNDERSCORE.sub(r"\\_", _one_line(value).translate(MARKDOWN)))
    return BLOCK_START.sub(lambda start: start[0] + "\\" if start[0][0].isdigit() else "\\" + start[0], escaped)


def markdown_link(text: Any, address: str) -> str:
    """Return a Markdown link; only the text if the address is not allowed."""
    return f"[{markdown_text(text)}](<{address}>)" if ADDRESS.fullmatch(address) else markdown_text(text)


def markdown_code(value: Any) -> str:
    """Return a name or command as inline Markdown code; not for tables, whose cells end at a bar."""
    line = _one_line(value) or " "
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", line)), default=0))
    room = " " if "`" in (line[0], line[-1]) else ""
    return f"{fence}{room}{line}{room}{fence}"


def csv_text(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Return a CSV table with a header; texts that a spreadsheet would compute get an apostrophe, as OWASP advises.

    The same applies to parts of a text that become cells if a semicolon separates cells; a line end or tab before such
    a part becomes a space.
    """
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow([_cell(name) for name in columns])
    writer.writerows([_cell(value) for value in row] for row in rows)
    return stream.getvalue()


def _one_line(value: Any) -> str:
    return replace_hidden(" ".join(str(value).split()))


def _cell(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    text = NEW_CELL.sub(r"\g<0>'", NEW_LINE.sub(" ", replace_hidden(value)))
    return f"'{text}" if text.lstrip().startswith(FORMULA) or text[:1] in ("\t", "\r", "\n") else text
