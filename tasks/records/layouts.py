"""Layouts of text: recognised where the content rules out every other reading, and refused where it does not.

Lines of a block between blank lines are parts of hard-wrapped paragraphs, paragraphs, or sentences, as in BERT's own
input. Three facts tell them apart: whether stops are at the ends of lines or inside of them, whether lines begin in
lower case in a text that has capitals, and whether a line ends only where its next word did not fit. Where a layout
makes no difference to the sentences, lines are joined.
"""

import collections
import contextlib
import csv
import itertools
import json
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from tasks.records.label_forms import parse_number
from tasks.records.text_files import BLOCK_BYTES, ZERO_WIDTH, peek, read_lines
from tasks.stage.errors import InputError

KEY = "corpus.path"
AUTO, WIKITEXT, PARAGRAPHS, SENTENCES, LINES, WIKIEXTRACTOR, FILE = (
    "auto", "wikitext", "paragraphs", "sentences", "lines", "wikiextractor", "file",
)  # fmt: skip
MORE_DOCUMENTS = (
    "add text (corpus.path, corpus.demo_documents), set corpus.layout to paragraphs, or to lines if each line of a "
    ".txt file is a document, or lower validate.min_documents"
)
JSON_LINES = "JSON lines"
"""Layout of .txt files with objects instead of text; it is only detected."""
TITLE = re.compile(r"^\s*=\s+(?!=)(.*?[^=\s])\s+=\s*$")
HEADING = re.compile(r"^\s*=\s?=.*=\s?=\s*$")
HEAD_BYTES = 4096
_FILE_NAME = re.compile(r"wiki_\d+")
_HTML = re.compile(rb"(<\?xml.*?\?>\s*)?(<!--.*?-->\s*)*<(!doctype\s+html|html)\b", re.IGNORECASE | re.DOTALL)
_OTHER_FORMATS = {"PDF": re.compile(rb"%PDF-"), "RTF": re.compile(rb"\{\\rtf"), "HTML": _HTML}
_OBJECT_BEGINS = re.compile(rb'(\[\s*)?\{\s*"')

_COMMAS = ",;:\u055d\u060c\u061b\u1363\u1364\u3001\uff0c\uff1a\uff1b\u2013\u2014-"
_STOPS = ".!?\u2026" + "".join(
    character
    for character in map(chr, (*range(0x500, 0x2000), *range(0x3000, 0x10000)))
    if unicodedata.category(character) == "Po" and character not in _COMMAS
)
_CLOSING = "\"')\\]}\u201d\u2019\u00bb\u300d\u300f"
_OPENING = "\"'`([{\u201c\u2018\u00ab\u300c\u300e"
_STOP_AT_END = re.compile(rf"[{re.escape(_STOPS)}][{_CLOSING}\s]*$")
_STOP_INSIDE = re.compile(rf"[{re.escape(_STOPS)}][{_CLOSING}]*\s+\S*\w")
FEW_LINES, ENOUGH_LINES = 5, 20
"""Line ends inside of blocks from which stops decide, and from which other facts do."""
MOST_LINES = 1000
"""Lines of a document that decide whether it is hard-wrapped."""
LONGEST_SENTENCE = 300
"""Characters of usual lines from which they are not taken for sentences without stops."""
WRAPPED_WIDTHS = range(30, 200)
HEAD_ROWS = 500
FEWEST_ROWS, MANY_ROWS, MOST_OTHERS = 3, 20, 0.05
"""Lines of equally many tabs that may be rows, fewer are often alike by chance; lines from which on other separators
count as well, and the share of lines that may differ then, such as a broken row."""
SIGNS = {"\t": "tabs", ";": "semicolons", "|": "bars", ",": "commas"}
_MARKUP = re.compile(r"<[a-zA-Z/!?][^>]*>|\{\s*\"")
"""Begin of a line of HTML, XML or JSON."""


class LineEnds:
    """Facts about the line ends inside of blocks of lines."""

    def __init__(self, blocks: Iterable[Sequence[str]]) -> None:
        """Collect the facts; `blocks` have stripped lines that are not blank."""
        several = [block for block in blocks if len(block) > 1]
        pairs = [pair for block in several for pair in itertools.pairwise(block)]
        lines = [line for block in several for line in block]
        self.count = len(pairs)
        most = max(1, self.count)
        self.stops = sum(bool(_STOP_AT_END.search(line)) for line, _ in pairs) / most
        """Share of lines that end with a stop."""
        self.inner_stops = sum(bool(_STOP_INSIDE.search(line)) for line in lines) / max(1, len(lines))
        """Share of lines with a stop before their end."""
        self.commas = sum(line[-1] in _COMMAS for line, _ in pairs) / most
        """Share of lines that end with a comma, a colon or a dash."""
        starts = [line.lstrip(_OPENING)[:1] for _, line in pairs]
        self.lower, self.upper = sum(map(str.islower, starts)) / most, sum(map(str.isupper, starts)) / most
        """Shares of lines whose next line begins in lower case, and with a capital."""
        words = [word[0] for line in lines for word in line.split()[1:] if word[0].isupper() or word[0].islower()]
        self.capitals = sum(map(str.isupper, words)) / max(1, len(words))
        """Share of words inside of lines that begin with a capital."""
        lengths = sorted(len(line) for line, _ in pairs)
        self.median, self.width = (lengths[self.count * share // 20] if lengths else 0 for share in (10, 19))
        """Lengths that half of the lines, and 95 %, do not exceed."""
        self.filled = sum(self._is_filled(*pair) for pair in pairs) / most
        """Share of lines that end where the next word did not fit."""

    def _is_filled(self, line: str, following: str) -> bool:
        word = following.split(None, 1)[0]
        if word == following and not word.isascii():  # a script without blanks, which is wrapped anywhere
            return len(line) >= self.width * 4 / 5
        return len(line) + 1 + len(word) > self.width

    @property
    def is_wrapped(self) -> bool:
        """True if hard wrapping is the only reading: lines are full, and sentences go on in the next line."""
        if self.count < FEW_LINES or self.width not in WRAPPED_WIDTHS or self.filled < 0.8 or self.stops >= 0.5:
            return False
        return self.lower >= 0.3 * (self.lower + self.upper) if self.upper else self.inner_stops > self.stops

    def find_layout(self) -> str:
        """Return `sentences` or `paragraphs`; empty: the content does not tell them apart."""
        if self.count < FEW_LINES or self.inner_stops >= 0.3 or self.inner_stops > max(0.05, self.stops):
            return PARAGRAPHS
        if self.stops >= 0.8:
            same = self.stops == 1 and not self.lower and not self.inner_stops
            return PARAGRAPHS if same else SENTENCES
        if self.count < ENOUGH_LINES or self.commas >= 0.1 or self.median > LONGEST_SENTENCE:
            return PARAGRAPHS
        if self.upper > 0.02 and self.capitals <= 0.5:
            return SENTENCES if self.upper >= 0.95 * (self.lower + self.upper) else PARAGRAPHS
        return PARAGRAPHS if self.filled >= 0.8 else ""


def split_blocks(lines: Iterable[str]) -> Iterator[list[str]]:
    """Yield the stripped lines of each block between blank lines."""
    blocks = itertools.groupby(map(str.strip, lines), lambda line: bool(line.strip(ZERO_WIDTH)))
    return (list(block) for has_text, block in blocks if has_text)


def choose_layout(path: Path, layout: str) -> str:
    """Return `layout`, or detect it if that is `auto` or the file has no suffix.

    `wikiextractor` if it has no suffix or begins with one of its blocks. `wikitext` if it begins with a level-1 heading
    (= Title =) and has another heading: a single line between equals signs may occur in any text.

    Raises:
        InputError: the content is not text but PDF, RTF or HTML, or allows two readings.
    """
    if not path.suffix:
        return WIKIEXTRACTOR
    head = peek(path, HEAD_BYTES)
    _refuse_other_format(path, head, layout)
    if layout != AUTO:
        return layout
    if is_wikiextractor(path):
        return WIKIEXTRACTOR
    if _OBJECT_BEGINS.match(head) and _has_objects(path):
        return JSON_LINES
    _refuse_rows(path)
    lines = (line for line in read_lines(path, KEY) if line.strip())
    if TITLE.match(next(lines, "")) and any(map(is_heading, lines)):
        return WIKITEXT
    return _choose_by_lines(path)


def _refuse_other_format(path: Path, head: bytes, layout: str) -> None:
    for name, begin in _OTHER_FORMATS.items():
        if begin.match(head) and (name != "HTML" or layout == AUTO):
            option = ", or set corpus.layout to paragraphs to read its source as text" if name == "HTML" else ""
            raise InputError(
                f"{path} is {name}, not plain text: it begins with {head[:20].decode(errors='replace')!r}. Convert it "
                f"to text, or remove it{option} ({KEY})"
            )


def _refuse_rows(path: Path) -> None:
    """Refuse lines that may be rows of a table, or that are markup or JSON."""
    lines = (line.strip() for line in read_lines(path, KEY))
    head = list(itertools.islice(filter(None, lines), MOST_LINES))
    if sign := _find_separator(head):
        raise InputError(
            f"{path}: a line may be a row of a table, such as a number and a text, or text with {SIGNS[sign]} (first: "
            f"{head[0][:30]!r}). Add a header and give it the suffix .csv (corpus.text_column names the text, "
            "corpus.separator another separator than comma, semicolon or tab), or set corpus.layout to paragraphs or "
            "sentences"
        )
    marked = [line for line in head if _MARKUP.match(line)]
    if len(marked) >= FEWEST_ROWS and len(marked) > len(head) / 2:
        raise InputError(
            f"{path}: {len(marked):,} of {len(head):,} lines begin with a tag of HTML or XML, or an object of JSON "
            f"(first: {marked[0][:30]!r}), which the model would learn as text. Convert the file to text, give JSON "
            "lines the suffix .jsonl, or set corpus.layout to paragraphs or sentences"
        )


def _find_separator(lines: Sequence[str]) -> str:
    """Return the separator that divides lines into equally many fields; empty if there is none.

    Sentences may all have one comma: commas separate fields only if one of them is a number, or a word that repeats.
    """
    if len(lines) >= FEWEST_ROWS and "\t" in lines[0] and len({line.count("\t") for line in lines}) == 1:
        return "\t"
    for sign in SIGNS if len(lines) >= MANY_ROWS else ():
        try:
            rows = list(csv.reader(lines, delimiter=sign))
        except csv.Error:
            continue
        width, count = collections.Counter(map(len, rows)).most_common(1)[0]
        if width < 2 or count < max(MANY_ROWS, (1 - MOST_OTHERS) * len(rows)):
            continue
        fields = list(zip(*(row for row in rows[1:] if len(row) == width), strict=True))
        if sign != "," or any(map(_is_code, fields)):
            return sign
    return ""


def _is_code(values: Sequence[str]) -> bool:
    """Tell whether the fields of a column are numbers, or a few names."""
    different = set(values)
    few = len(different) <= len(values) / 5 and all(0 < len(value.split()) <= 3 for value in different)
    return few or all(parse_number(value) is not None for value in different)


def _has_objects(path: Path) -> bool:
    """Tell whether the first two lines are objects of JSON, or the file is a list of objects."""
    lines = itertools.islice((line for line in read_lines(path, KEY) if line.strip()), 2)
    first = next(lines, "")
    if first.lstrip("\ufeff \t").startswith("["):
        return True
    with contextlib.suppress(ValueError):
        return all(isinstance(json.loads(line), dict) for line in (first, *lines))
    return False


def _choose_by_lines(path: Path) -> str:
    """Return `sentences` or `paragraphs` by the first BLOCK_BYTES of a file."""
    ends = itertools.accumulate(map(len, read_lines(path, KEY)))
    count = sum(1 for _ in itertools.takewhile(lambda end: end < BLOCK_BYTES, ends)) + 1
    line_ends = LineEnds(split_blocks(itertools.islice(read_lines(path, KEY), count)))
    if layout := line_ends.find_layout():
        return layout
    numbered = ((number, line.strip()) for number, line in enumerate(read_lines(path, KEY), 1))
    (number, line), (_, after) = next(pair for pair in itertools.pairwise(numbered) if pair[0][1] and pair[1][1])
    raise InputError(
        f"{path}: a line may be a sentence, or a part of a paragraph whose lines are to be joined; the content allows "
        f"both (lines {number} and {number + 1}: {line:.30} / {after:.30}). Set corpus.layout to sentences (a line is "
        "a sentence, a blank line ends a document) or to paragraphs (lines are joined). Give a table the suffix .csv"
    )


def is_wikiextractor(path: Path) -> bool:
    """Tell whether a file was written by WikiExtractor, by its name or its beginning."""
    return bool(_FILE_NAME.fullmatch(path.name)) or peek(path, HEAD_BYTES).startswith(b'<doc id="')


def is_heading(line: str) -> bool:
    """Tell whether a line is a heading of WikiText, of any level."""
    return bool(TITLE.match(line) or HEADING.match(line))


def are_wikitext_lines(texts: Sequence[str]) -> bool:
    """Tell whether rows are the lines of WikiText: each is one line, and some are headings and titles."""
    lines = [line for text in texts if (line := text.strip())]
    headings = sum(map(is_heading, lines))
    return (
        headings >= max(2, len(lines) / 20) and any(map(TITLE.match, lines)) and not any("\n" in text for text in lines)
    )
