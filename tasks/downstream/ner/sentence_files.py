"""Reading of tagged sentences from files or the Hub: CoNLL files, JSON, CSV, Parquet; every word and tag is checked.

CoNLL files have one word per line, its tag in the last column, optional columns between, and a blank line after a
sentence. A line with an empty word and tag O is dropped and counted, because some public corpora have such lines.

Columns are separated by tabs if the first line has one, else by spaces. A line that begins with -DOCSTART- begins a
document. A line that begins with "# " at the start of a sentence and does not end in a possible tag is a comment; "#"
is a word everywhere else.
"""

import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from ipu_model.files import parse_json
from tasks.downstream.ner.params import NerColumnParams, NerDataParams
from tasks.downstream.ner.sentences import MAX_WORDS, RawSentence, Sentence, TagStatistics, validate_sentences
from tasks.downstream.ner.tags import OUTSIDE, looks_like_tag
from tasks.records.tables import (
    BLANK_LINES,
    Columns,
    ColumnSpec,
    Selector,
    TableRow,
    column_setting,
    convert_id,
    hub_split_name,
    list_empty,
    pick_usual_name,
    read_hub_rows,
    read_table,
    require_file,
)
from tasks.records.text_files import ProblemList, ReadLog, read_lines, refuse_empty
from tasks.stage.errors import InputError

MEANT = "tagged words"
NO_JSON = "lists that are not JSON (Python literals are not supported: use json.dumps, JSON or Parquet)"
CONLL = (".conll", ".txt", ".tsv", ".iob", ".iob2", ".bio")
ENDINGS = (*CONLL, ".jsonl", ".parquet", ".json", ".csv")
TEXT = "text"
"""Column of sentences with words separated by white space, instead of lists of words."""
TOKENS, TAGS = ("tokens", "words"), ("ner_tags", "tags", "labels")
"""Usual names of the columns."""
FIRST_SENTENCES = 1000
"""Sentences checked before a run starts."""
DOCUMENT = "-DOCSTART-"
COMMENTS = "comment lines skipped"
NO_WORD = "lines with an empty word tagged O, dropped"
MAX_LINE_CHARACTERS = 100_000
"""Maximum length of a line in a CoNLL file."""
_BLANKS = " \t"


def read_sentences(
    params: NerDataParams, section: str, split: str, found: TagStatistics, reading: ReadLog
) -> Iterator[Sentence]:
    """Yield the sentences of a split, in IOB2.

    Args:
        section: section of params.yaml, for messages.
        found: receives statistics of the tags.
        reading: receives counts of what was read and skipped.

    Raises:
        InputError: an unreadable file; at the end, all problems with words and tags.
    """
    return read_valid(*_opened(params, section, split, reading), params, found, reading)


def read_valid(
    raws: Iterable[RawSentence], problems: ProblemList, params: NerDataParams, found: TagStatistics, reading: ReadLog
) -> Iterator[Sentence]:
    """Yield the sentences of an opened source; see `read_sentences`."""
    count = 0
    for sentence in validate_sentences(raws, params.tag_scheme, found, problems, reading):
        count += 1
        yield sentence
    problems.refuse()
    if not count:
        raise InputError(
            f"{problems.source} contains no sentence{list_empty(reading)}. Required is a word with its tag on each "
            "line, or a table of words and tags"
        )
    reading.layouts[problems.source] = f"{reading.layouts.get(problems.source, 'table')} of {found.scheme}"


def check_sentences(params: NerDataParams, section: str, split: str) -> tuple[TagStatistics, bool]:
    """Return tag statistics of the first sentences of a file, and True if there are no others.

    Raises:
        InputError: as `read_sentences`, for the first sentences.
    """
    found, reading = TagStatistics(), ReadLog()
    raws, problems = _opened(params, section, split, reading)
    for _ in read_valid(itertools.islice(raws, FIRST_SENTENCES), problems, params, found, reading):
        pass  # fills `found`
    return found, next(raws, None) is None


def _opened(
    params: NerDataParams, section: str, split: str, reading: ReadLog
) -> tuple[Iterator[RawSentence], ProblemList]:
    if params.source == "hub":
        problems = ProblemList(hub_split_name(params, split), MEANT)
        lines = read_hub_rows(params, section, split, column_chooser(params.columns, column_setting(section)), reading)
        return _table_sentences(lines, problems, reading), problems
    return open_sentences(params.path_of(split), f"{section}.{split}_path", params, reading, column_setting(section))


def open_sentences(
    path: Path, key: str, params: NerDataParams, reading: ReadLog, named_by: str, *, tagged: bool = True
) -> tuple[Iterator[RawSentence], ProblemList]:
    """Open a file; return an iterator of its sentences, and the collected problems.

    Args:
        key: name of the file in messages.
        tagged: read tags; else all are O, and a table may have texts instead of words.

    Raises:
        InputError: as `require_file`; unreadable content while the sentences are consumed.
    """
    problems = ProblemList(f"{path} ({key})", MEANT)
    ending = require_file(path, key, ENDINGS, "tagged words in CoNLL format or a table")
    reading.files += 1
    if ending in CONLL:
        reading.layouts[problems.source] = "columns"
        return read_conll(path, key, reading, problems, tagged=tagged), problems
    columns = column_chooser(params.columns, named_by) if tagged else _columns_without_tags(params.columns, named_by)
    lines = read_table(path, columns, key, reading, params.separator)
    return _table_sentences(lines, problems, reading, is_csv=ending == ".csv"), problems


def column_chooser(names: NerColumnParams, named_by: str) -> Selector:
    """Return a function that chooses columns: those set in the parameters, else those with usual names."""

    def choose(present: Sequence[str]) -> Columns:
        parts = {
            "tokens": names.tokens or pick_usual_name(present, TOKENS),
            "tags": names.tags or pick_usual_name(present, TAGS),
        }
        return {part: ColumnSpec(name, named_by.format(part), True) for part, name in parts.items()}

    return choose


def _columns_without_tags(names: NerColumnParams, named_by: str) -> Selector:
    """Return a function as `column_chooser`; a text may replace the list of words, differently in each record."""

    def choose(present: Sequence[str]) -> Columns:
        tokens = column_chooser(names, f"{named_by}, or use text in a column {TEXT!r}")(present)["tokens"]
        is_there = not {tokens.name, TEXT}.isdisjoint(present)
        optional = {part: ColumnSpec(part, named_by.format(part), False) for part in ("id", TEXT)}
        return {"tokens": tokens._replace(required=not is_there), **optional}

    return choose


def _table_sentences(
    lines: Iterable[TableRow], problems: ProblemList, reading: ReadLog, *, is_csv: bool = False
) -> Iterator[RawSentence]:
    """Yield a sentence for each record; CSV cells have lists as JSON or as words separated by spaces."""
    document, sentences = 0, 0
    for where, values, columns in lines:
        words: Any = values.get("tokens", values.get(TEXT))
        tags: Any = values.get("tags")
        tagged = "tags" in columns
        try:
            if is_csv and "tokens" in values:
                is_json = tags.lstrip().startswith("[") if tagged else words.startswith(('["', "['"))
                cells = (words, tags if tagged else words)
                words, tags = (parse_json(cell) if is_json else cell.split() for cell in cells)
            elif isinstance(words, str) and not tagged:
                words = words.split()
        except ValueError:
            problems.add(NO_JSON, where, tags or words)
            continue
        if not tagged:
            tags = [OUTSIDE] * len(words) if isinstance(words, list) else None
        if words == [DOCUMENT] and tagged:  # some tables have this line of CoNLL files as a sentence
            document += sentences > 0
            sentences = 0
        elif not isinstance(words, list) or not isinstance(tags, list):
            kind = "words and tags that are not lists" if tagged else f"neither a list of words nor a text in {TEXT!r}"
            problems.add(kind, where, words)
        elif len(words) > MAX_WORDS:
            problems.add(f"a sentence of more than {MAX_WORDS:,} words", where)
        elif any(type(tag) is int for tag in tags):
            kind = "tags that are numbers without names (use names, or Parquet with the features of `datasets`)"
            problems.add(kind, where, next(tag for tag in tags if type(tag) is int))
        else:
            sentences += 1
            yield RawSentence(document, words, tags, where, id=convert_id(values.get("id"), reading))


# ---------------------------------------------------------------------------------------------- CoNLL


def read_conll(
    path: Path, key: str, reading: ReadLog, problems: ProblemList, *, tagged: bool = True
) -> Iterator[RawSentence]:
    """Yield the sentences of a CoNLL file, in order.

    Args:
        key: parameter with the path, for messages.
        reading: receives counts of skipped lines and the column separator.
        problems: receives invalid lines.
        tagged: the last column is the tag; else only the first column is read, and all tags are O.

    Raises:
        InputError: text that is not UTF-8, or a line or sentence that is too long; see `read_lines`.
    """
    refuse_empty(path, key)
    return _Conll(path, key, reading, problems, tagged).sentences()


class _Conll:
    """Parser of one CoNLL file."""

    def __init__(self, path: Path, key: str, reading: ReadLog, problems: ProblemList, tagged: bool) -> None:
        self._path, self._key, self._reading, self._problems = path, key, reading, problems
        self._tagged = tagged
        self._tabs = False
        self._columns = 0
        """0 until the first line."""
        self._document, self._in_document = 0, False
        self._words: list[str] = []
        self._tags: list[str] = []
        self._lines: list[int] = []

    def sentences(self) -> Iterator[RawSentence]:
        blank = True
        for number, text in enumerate(read_lines(self._path, self._key), 1):
            if len(text) > MAX_LINE_CHARACTERS:
                raise InputError(
                    f"{self._path}: line {number} has {len(text):,} characters, more than {MAX_LINE_CHARACTERS:,}. "
                    f"Each line must be a word with its tag ({self._key})"
                )
            line = text.rstrip("\r\n")
            if not line.strip(_BLANKS):
                yield from self._end()
                self._reading.counts[BLANK_LINES] += blank
                blank = True
                continue
            blank = self._fields(line)[0] == DOCUMENT  # usually a blank line follows
            if blank:
                yield from self._end()
                self._document += self._in_document
                self._in_document = False
            elif self._is_comment(line):
                self._reading.counts[COMMENTS] += 1
            else:
                self._take(line, number)
        yield from self._end()

    def _end(self) -> Iterator[RawSentence]:
        if self._words:
            self._in_document = True
            yield RawSentence(self._document, self._words, self._tags, f"line {self._lines[0]}", self._lines)
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
            self._problems.add("a line with one column (word and tag are required)", f"line {number}", line)
            return
        if not self._columns:
            self._columns, self._tabs = len(fields), "\t" in line
        if len(fields) != self._columns:
            kind = f"a line with other than {self._columns} columns, as the first line has"
            self._problems.add(kind, f"line {number}", line)
            return
        tag = fields[-1] if self._tagged else OUTSIDE
        if not fields[0] and tag == OUTSIDE:
            self._reading.counts[NO_WORD] += 1
            return
        if len(self._words) == MAX_WORDS:
            raise InputError(
                f"{self._path}: the sentence from line {self._lines[0]} has more than {MAX_WORDS:,} words. End "
                f"sentences with a blank line ({self._key})"
            )
        self._words.append(fields[0])
        self._tags.append(tag)
        self._lines.append(number)
