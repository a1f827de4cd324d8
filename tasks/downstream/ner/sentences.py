"""Reading of tagged sentences from files or the Hub: CoNLL files, JSON, CSV, Parquet; every word and tag is checked,
and tags become IOB2.

CoNLL files have one word per line, its tag in the last column, optional columns between, and a blank line after a
sentence. A line with an empty word and tag O is dropped and counted, because some public corpora have such lines.

Columns are separated by tabs if the first line has one, else by spaces. A line that begins with -DOCSTART- begins a
document. A line that begins with "# " at the start of a sentence and does not end in a possible tag is a comment; "#"
is a word everywhere else.
"""

import functools
import itertools
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from ipu_model.files import parse_json
from tasks.downstream.ner.params import NerColumnParams, NerDataParams
from tasks.downstream.ner.tags import (
    OUTSIDE,
    convert_bioes,
    convert_to_iob2,
    detect_scheme,
    find_begin_starts,
    find_entities,
    find_inside_starts,
    find_problem,
    looks_like_tag,
)
from tasks.records.interpretation import BLANK_LINES, Interpretation
from tasks.records.tables import (
    ColumnSpec,
    Records,
    RecordSpec,
    TableRow,
    column_setting,
    convert_id,
    list_empty,
    make_column,
    open_split,
)
from tasks.records.text_files import ProblemList, find_text_problem, read_lines
from tasks.stage.errors import InputError

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
MAX_WORDS = 50_000
"""Maximum words of a sentence; longer ones usually lack blank lines between sentences."""
EMPTY = "empty sentences, skipped"
REPAIRED = "I- tags at the start of an entity, changed to B-"


class Sentence(NamedTuple):
    """Checked sentence with tags in IOB2."""

    document: int
    tokens: list[str]
    tags: list[str]


@dataclass
class TagStatistics:
    """Statistics of the tags of a source."""

    entities: Counter[str] = field(default_factory=Counter)
    """Number of entities by type."""
    begun_inside: int = 0
    """I- tags that begin an entity; only in IOB1."""
    begun_apart: int = 0
    """B- tags that do not follow an entity of their type; only in IOB2."""
    sentences: int = 0
    """Number of sentences, of those that check_sentences reads."""
    other: str = ""
    """BIOES, BILOU or BMES if the tags have that scheme, else empty."""

    @property
    def scheme(self) -> str:
        """Name of the tagging scheme."""
        if self.other:
            return self.other
        if self.begun_inside and self.begun_apart:
            return "IOB1 and IOB2 mixed"
        return "IOB1" if self.begun_inside else "IOB2"


def sentence_spec(names: NerColumnParams, named_by: str, *, tagged: bool = True) -> RecordSpec:
    """Return what to read.

    Args:
        names: column names that the parameters set.
        named_by: setting that messages suggest for another column name.
        tagged: read tags; else all are O, and a table may have texts instead of words, differently in each record.
    """
    tokens = make_column(names.tokens, TOKENS, named_by.format("tokens"))
    layouts = [{"tokens": tokens, "tags": make_column(names.tags, TAGS, named_by.format("tags"))}]
    if not tagged:
        hint = f"{tokens.key}, or use text in a column {TEXT!r}"
        id = {"id": ColumnSpec(("id",), named_by.format("id"), False)}
        words = {"tokens": tokens._replace(key=hint), **id}
        layouts = [words, {TEXT: ColumnSpec((TEXT,), hint), **id}, words]
    parse = functools.partial(read_conll, tagged=tagged)
    return RecordSpec("tagged words", layouts, ENDINGS, dict.fromkeys(CONLL, parse))


def open_sentences(params: NerDataParams, section: str, split: str, reading: Interpretation) -> Records:
    """Open the sentences of a split, see `open_split`.

    Args:
        section: section of params.yaml, for messages.
    """
    return open_split(params, section, split, sentence_spec(params.columns, column_setting(section)), reading)


def check_sentences(
    params: NerDataParams, section: str, split: str, reading: Interpretation
) -> tuple[TagStatistics, bool]:
    """Return tag statistics of the first sentences of a file, and True if there are no others.

    Raises:
        InputError: as `read_sentences`, for the first sentences.
    """
    found = TagStatistics()
    records = open_sentences(params, section, split, reading)
    first = records._replace(rows=itertools.islice(records.rows, FIRST_SENTENCES))
    found.sentences = sum(1 for _ in read_sentences(first, params, found, reading))
    return found, next(records.rows, None) is None


def read_sentences(
    records: Records, params: NerDataParams, found: TagStatistics, reading: Interpretation
) -> Iterator[Sentence]:
    """Yield the sentences of an opened source, in IOB2.

    Args:
        found: receives statistics of the tags.
        reading: receives counts of what was read and skipped.

    Raises:
        InputError: an unreadable file; at the end, all problems with words and tags.
    """
    is_empty, problems = True, records.problems
    for _, sentence in parse_sentences(records, params.tag_scheme, found, reading):
        is_empty = False
        yield sentence
    if is_empty:
        raise InputError(
            f"{problems.source} contains no sentence{list_empty(reading)}. Required is a word with its tag on each "
            "line, or a table of words and tags"
        )
    reading.labels = f"tags in {found.scheme}"


def parse_sentences(
    records: Records, scheme: str, found: TagStatistics, reading: Interpretation
) -> Iterator[tuple[Any, Sentence]]:
    """Yield the id, if there is one, and the sentence of each record; other arguments as for `read_sentences`.

    Args:
        scheme: auto, iob1 or iob2 (parameter tag_scheme).

    Raises:
        InputError: all problems with words and tags, at the end.
    """
    document, sentences, problems = 0, 0, records.problems
    for row in records.rows:
        if (cells := _read_cells(row, records)) is None:
            continue
        words, tags = cells
        is_tagged = "tags" in row.values
        if words == [DOCUMENT] and is_tagged:  # some tables have this line of CoNLL files as a sentence
            document += sentences > 0
            sentences = 0
            continue
        sentences += 1
        id = convert_id(row.values.get("id"), reading)
        if not words and not is_tagged:
            problems.add("empty sentence", row.where)
        if scheme == "auto" and (other := detect_scheme(tags)):
            found.other = found.other if found.other not in ("", "BIOES") else other
            tags = convert_bioes(tags)
        if _is_sound(words, tags, row, scheme, problems):
            inside = find_inside_starts(tags)
            reading.counts[EMPTY] += not words
            reading.counts[REPAIRED] += len(inside)
            found.begun_inside += len(inside)
            found.begun_apart += len(find_begin_starts(tags))
            found.entities.update(one.type for one in find_entities(tags))
            if words:
                yield id, Sentence(document, words, convert_to_iob2(tags))
    problems.refuse()


def _read_cells(row: TableRow, records: Records) -> tuple[list[Any], list[Any]] | None:
    """Return the words and tags of a record; CSV cells have lists as JSON or as words separated by spaces."""
    (where, values, _), problems = row, records.problems
    words: Any = values.get("tokens", values.get(TEXT))
    tags: Any = values.get("tags")
    tagged = "tags" in values
    try:
        if records.is_text and "tokens" in values:
            is_json = tags.lstrip().startswith("[") if tagged else words.startswith(('["', "['"))
            cells = (words, tags if tagged else words)
            words, tags = (parse_json(cell) if is_json else cell.split() for cell in cells)
        elif isinstance(words, str) and not tagged:
            words = words.split()
    except ValueError:
        problems.add(NO_JSON, where, tags or words)
        return None
    if not tagged:
        tags = [OUTSIDE] * len(words) if isinstance(words, list) else None
    if not isinstance(words, list) or not isinstance(tags, list):
        kind = "words and tags that are not lists" if tagged else f"neither a list of words nor a text in {TEXT!r}"
        problems.add(kind, where, words)
    elif len(words) > MAX_WORDS:
        problems.add(f"a sentence of more than {MAX_WORDS:,} words", where)
    elif numbers := [tag for tag in tags if type(tag) is int]:
        kind = "tags that are numbers without names (use names, or Parquet with the features of `datasets`)"
        problems.add(kind, where, numbers[0])
    else:
        return words, tags
    return None


def _is_sound(words: Sequence[Any], tags: Sequence[Any], row: TableRow, scheme: str, problems: ProblemList) -> bool:
    """Return True if every word and tag of a sentence is valid; add what is wrong to `problems`."""
    before, lines = problems.count, row.values.get("lines")

    def locate(word: int) -> str:
        return f"line {lines[word]}" if lines else f"{row.where}, word {word}"

    if len(words) != len(tags):
        counts = f"{len(words)} words, {len(tags)} tags"
        problems.add("a sentence with different numbers of tags and words", row.where, counts)
        return False
    for number, (word, tag) in enumerate(zip(words, tags, strict=True)):
        for kind, value in ((_find_word_problem(word), word), (find_problem(tag), tag)):
            if kind:
                problems.add(kind, locate(number), value)
    if problems.count == before and scheme == "iob2":
        for number in find_inside_starts(tags):
            kind = "I- after O or another type, which IOB2 does not allow (tag_scheme: auto reads it as conlleval does)"
            problems.add(kind, locate(number), tags[number])
    return problems.count == before


def _find_word_problem(word: Any) -> str:
    problem = find_text_problem(word)
    return f"a word {problem}" if problem else "an empty word" * (not word.strip(" \t\r\n"))


# ---------------------------------------------------------------------------------------------- CoNLL


def read_conll(
    path: Path, key: str, reading: Interpretation, problems: ProblemList, *, tagged: bool = True
) -> Iterator[TableRow]:
    """Yield the sentences of a CoNLL file, in order, and the lines that begin a document.

    Args:
        path: the file.
        key: parameter with the path, for messages.
        reading: receives counts of skipped lines and the layout.
        problems: receives invalid lines.
        tagged: the last column is the tag; else only the first column is read, and all tags are O.

    Raises:
        InputError: text that is not UTF-8, or a line or sentence that is too long; see `read_lines`.
    """
    reading.formats["CoNLL columns, UTF-8"] += 1
    reading.grouping = "a blank line ends a sentence"
    width, tabs, was_blank = 0, False, True
    words: list[tuple[str, str, int]] = []
    for number, text in enumerate(read_lines(path, key), 1):
        if len(text) > MAX_LINE_CHARACTERS:
            raise InputError(
                f"{path}: line {number} has {len(text):,} characters, more than {MAX_LINE_CHARACTERS:,}. "
                f"Each line must be a word with its tag ({key})"
            )
        line, where = text.rstrip("\r\n"), f"line {number}"
        is_blank = not line.strip(_BLANKS)
        fields = _split(line, tabs or (not width and "\t" in line))
        if is_blank or fields[0] == DOCUMENT:
            yield from _make_row(words)
            words = []
            if not is_blank:
                yield TableRow(where, {"tokens": [DOCUMENT], "tags": [OUTSIDE]})
            reading.counts[BLANK_LINES] += is_blank and was_blank
            was_blank = True  # usually a blank line follows that of a document
            continue
        was_blank = False
        if not words and _is_comment(line, tabs):
            reading.counts[COMMENTS] += 1
        elif tagged and len(fields) < 2:
            problems.add("a line with one column (word and tag are required)", where, line)
        elif width and len(fields) != width:
            problems.add(f"a line with other than {width} columns, as the first line has", where, line)
        else:
            if not width:
                width, tabs = len(fields), "\t" in line
            tag = fields[-1] if tagged else OUTSIDE
            if not fields[0] and tag == OUTSIDE:
                reading.counts[NO_WORD] += 1
                continue
            words.append((fields[0], tag, number))
            if len(words) > MAX_WORDS:
                raise InputError(
                    f"{path}: the sentence from line {words[0][2]} has more than {MAX_WORDS:,} words. End sentences "
                    f"with a blank line ({key})"
                )
    yield from _make_row(words)


def _make_row(words: list[tuple[str, str, int]]) -> Iterator[TableRow]:
    if words:
        tokens, tags, lines = map(list, zip(*words, strict=True))
        yield TableRow(f"line {lines[0]}", {"tokens": tokens, "tags": tags, "lines": lines})


def _is_comment(line: str, tabs: bool) -> bool:
    words = line.split()
    if not line.startswith("# ") or len(words) < 2 or (tabs and "\t" in line):
        return False
    return not looks_like_tag(words[-1]) or (tabs and len(words) > 2)


def _split(line: str, tabs: bool) -> list[str]:
    if tabs:
        return [field.strip(" ") for field in line.split("\t")]
    return re.split(f"[{_BLANKS}]+", line.strip(_BLANKS))
