"""Sentences of CoNLL files: a word a line, its tag last, other columns between, and a blank line after a sentence.

A line whose word is empty and tagged O is dropped and counted: some public corpora have such lines.

Columns are apart by tabs where the first line has one, else by blanks. A line that begins with -DOCSTART- begins a
document. A line that begins with "# " at the start of a sentence and does not end in what may be a tag is a comment;
"#" is a word everywhere else.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from tasks.downstream.ner.sentences import MAX_WORDS, Raw
from tasks.downstream.ner.tags import OUTSIDE, looks_like_tag
from tasks.inputs.tables import BLANK_LINES
from tasks.project.errors import InputError
from tasks.reading.text_files import Problems, Reading, refuse_empty, text_lines

DOCUMENT = "-DOCSTART-"
COMMENTS = "comment lines passed over"
NO_WORD = "lines with an empty word tagged O, dropped"
MAX_LINE_CHARACTERS = 100_000
"""Of a word with its columns; a longer line is something else."""
_BLANKS = " \t"


def read_conll(path: Path, key: str, reading: Reading, problems: Problems, *, tagged: bool = True) -> Iterator[Raw]:
    """The sentences of a file, in order.

    Args:
        key: the params key that named the file, for messages.
        reading: gets what was passed over, and how the columns are apart.
        problems: gets the lines that cannot be read.
        tagged: the last column is the tag; else the first column alone is read, and all tags are O.

    Raises:
        InputError: text that is not UTF-8, a line or a sentence that is far too long; see `text_lines`.
    """
    refuse_empty(path, key)
    return _Conll(path, key, reading, problems, tagged).sentences()


class _Conll:
    """The lines of one file."""

    def __init__(self, path: Path, key: str, reading: Reading, problems: Problems, tagged: bool) -> None:
        self._path, self._key, self._reading, self._problems = path, key, reading, problems
        self._tagged = tagged
        self._tabs = False
        self._columns = 0
        """0: not known yet."""
        self._document, self._in_document = 0, False
        self._words: list[str] = []
        self._tags: list[str] = []
        self._lines: list[int] = []

    def sentences(self) -> Iterator[Raw]:
        blank = True
        for number, text in enumerate(text_lines(self._path, self._key), 1):
            if len(text) > MAX_LINE_CHARACTERS:
                raise InputError(
                    f"{self._path}: line {number} has {len(text):,} characters, a word and its tag are required, up to "
                    f"{MAX_LINE_CHARACTERS:,} ({self._key})"
                )
            line = text.rstrip("\r\n")
            if not line.strip(_BLANKS):
                yield from self._end()
                self._reading.counts[BLANK_LINES] += blank
                blank = True
                continue
            blank = self._fields(line)[0] == DOCUMENT  # as a rule a blank line follows
            if blank:
                yield from self._end()
                self._document += self._in_document
                self._in_document = False
            elif self._is_comment(line):
                self._reading.counts[COMMENTS] += 1
            else:
                self._take(line, number)
        yield from self._end()

    def _end(self) -> Iterator[Raw]:
        if self._words:
            self._in_document = True
            yield Raw(self._document, self._words, self._tags, f"line {self._lines[0]}", self._lines)
        self._words, self._tags, self._lines = [], [], []

    def _is_comment(self, line: str) -> bool:
        if self._words or not line.startswith("# "):
            return False
        words = line.split()
        if self._tabs:
            return "\t" not in line and len(words) > 1 and not (len(words) == 2 and looks_like_tag(words[1]))
        return len(words) > 1 and not looks_like_tag(words[-1])

    def _fields(self, line: str) -> list[str]:
        if self._tabs or (not self._columns and "\t" in line):
            return [field.strip(" ") for field in line.split("\t")]
        return re.split(f"[{_BLANKS}]+", line.strip(_BLANKS))

    def _take(self, line: str, number: int) -> None:
        fields = self._fields(line)
        if self._tagged and len(fields) < 2:
            self._problems.add("a line with one column (a word and its tag are required)", f"line {number}", line)
            return
        if not self._columns:
            self._columns, self._tabs = len(fields), "\t" in line
        if len(fields) != self._columns:
            kind = f"a line with another number of columns than {self._columns}, which the first one has"
            self._problems.add(kind, f"line {number}", line)
            return
        tag = fields[-1] if self._tagged else OUTSIDE
        if not fields[0] and tag == OUTSIDE:
            self._reading.counts[NO_WORD] += 1
            return
        if len(self._words) == MAX_WORDS:
            raise InputError(
                f"{self._path}: the sentence from line {self._lines[0]} on has more than {MAX_WORDS:,} words: end "
                f"sentences with a blank line ({self._key})"
            )
        self._words.append(fields[0])
        self._tags.append(tag)
        self._lines.append(number)
