"""Reading of tagged sentences from files or the Hub: CoNLL files (conll.py), tables of sentences, and tables of one
word a row (word_rows.py). Every word and tag is checked, and tags become IOB2.
"""

import functools
import math
import operator
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from ipu_model.core.files import parse_json
from ipu_model.core.units import shorten
from tasks.downstream.ner.conll import MAX_WORDS, read_conll
from tasks.downstream.ner.params import NerColumnParams, NerDataParams
from tasks.downstream.ner.word_rows import ROW, describe_single, group_words
from tasks.records.interpretation import Interpretation
from tasks.records.names import fold_labels
from tasks.records.plausibility import MAX_SHARE, share_of
from tasks.records.splits import fold_texts
from tasks.records.tables import (
    SPLIT,
    SPLIT_COLUMN,
    Columns,
    ColumnSpec,
    Records,
    RecordSpec,
    TableRow,
    column_setting,
    list_empty,
    make_column,
    make_kept,
    name_record,
    open_file,
    open_split,
    read_kept,
    table_form,
)
from tasks.records.tagged_columns import DOCUMENT, find_header
from tasks.records.tags import (
    OUTSIDE,
    convert_bioes,
    convert_to_iob2,
    detect_scheme,
    find_begin_starts,
    find_entities,
    find_inside_starts,
    find_problem,
    split_tag,
    split_tags,
)
from tasks.records.text_files import ProblemList, file_suffix, find_text_problem, peek
from tasks.stage.errors import InputError

NO_JSON = "lists that are not JSON (Python literals are not supported: use json.dumps, JSON or Parquet)"
CONLL = (".conll", ".txt", ".tsv", ".iob", ".iob2", ".bio")
ENDINGS = (*CONLL, ".jsonl", ".parquet", ".json", ".csv")
TEXT = "text"
"""Column of sentences with words separated by white space, instead of lists of words."""
TOKENS, TAGS = ("tokens", "words", "token", "word"), ("ner_tags", "tags", "labels", "ner_tag", "tag", "label")
"""Usual names of the columns."""
SENTENCES = ("sentence_id", "sentence", "sentence_idx", "sentence_number", "sent_id", "sent_idx", "sentence #")
"""Usual names of the column that the rows of a sentence share."""
DOCUMENTS = ("document_id", "document", "doc_id")
FIRST_SENTENCES = 1000
"""Sentences that are checked before a run starts, and the others of the file that CHECK_SECONDS suffice for."""
CHECK_SECONDS = 1.5
HEADER_BYTES = 10_000
SHOWN_TYPES = 8
LONGEST = 200
"""Words of a plausible sentence; a document may have more."""
NUMBERS = tuple(map(str, range(1, MAX_WORDS + 1)))
OPTION = "data.columns.{0} (--column {0}=NAME)"
EMPTY = "empty sentences, skipped"
REPAIRED = "I- tags at the start of an entity, changed to B-"


class Sentence(NamedTuple):
    """Checked sentence with tags in IOB2."""

    document: int
    tokens: list[str]
    tags: list[str]
    id: str
    """Id of its record, or the position of it."""
    kept: Mapping[str, object] = {}
    """Column -> tags, in a file to predict."""


@dataclass
class TagStatistics:
    """Statistics of the words and tags of a source."""

    entities: Counter[str] = field(default_factory=Counter)
    """Number of entities by type."""
    first: dict[str, str] = field(default_factory=dict)
    """Type -> position of its first entity."""
    begun_inside: int = 0
    """I- tags that begin an entity; only in IOB1."""
    begun_apart: int = 0
    """B- tags that do not follow an entity of their type; only in IOB2."""
    sentences: int = 0
    single: int = 0
    """Sentences of one word."""
    words: int = 0
    numbers: int = 0
    """Words that are their own number in the sentence."""
    keys: list[str] = field(default_factory=list)
    """`fold_texts` of the sentences that were checked before a run."""
    spellings: Mapping[str, str] = field(default_factory=dict)
    """Type to be renamed -> its name; set before reading."""
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


def table_columns(names: NerColumnParams, named_by: str) -> dict[str, ColumnSpec]:
    """Return the columns of a table of sentences or words."""

    def make(part: str, column: str | None, usual: Sequence[str], *, required: bool = False) -> ColumnSpec:
        key = named_by.format(part)
        if column and column.isdecimal():  # a column of CoNLL files
            return ColumnSpec((column, *usual), key, required)
        return make_column(column, usual, key, required=required)._replace(required=required)

    return {
        "tokens": make("tokens", names.tokens, TOKENS, required=True),
        "tags": make("tags", names.tags, TAGS, required=True),
        "sentence": make("sentence", None if names.sentence == ROW else names.sentence, SENTENCES),
        "document": make("document", names.document, DOCUMENTS),
    }


def sentence_spec(
    names: NerColumnParams, named_by: str, path: Path | None = None, *, tagged: bool = True
) -> RecordSpec:
    """Return what to read.

    Args:
        named_by: setting that messages suggest for another column name.
        path: the file, if it is one: a .tsv file may be a table.
        tagged: read tags; else all are O, and a table may have texts instead of words, differently in each record.
    """
    columns = table_columns(names, named_by)
    others: Columns = {"id": ColumnSpec(("id",), named_by.format("id"), False)}
    tokens = columns["tokens"]
    of_words = tokens._replace(key=f"{tokens.key} to a column of words; spans of characters are not read: export CoNLL")
    layouts: list[Columns] = [{**columns, "tokens": of_words, SPLIT: SPLIT_COLUMN, **others}]
    if not tagged:
        hint = f"{tokens.key}, or use text in a column {TEXT!r}"
        others = {**others, **make_kept(columns["tags"].names, hint)}
        words = {part: column for part, column in columns.items() if part != "tags"}
        words |= {"tokens": tokens._replace(key=hint), **others}
        layouts = [words, {TEXT: ColumnSpec((TEXT,), hint), **others}, words]
    parsers = dict.fromkeys(CONLL, functools.partial(read_conll, columns=columns, tagged=tagged))
    if path is not None and _is_table(path, layouts[0]):
        del parsers[file_suffix(path)]
    return RecordSpec("tagged words", layouts, ENDINGS, parsers)


def _is_table(path: Path, columns: Columns) -> bool:
    """Return True if a .tsv file has a header with a column of sentences."""
    try:
        lines = peek(path, HEADER_BYTES).decode("utf-8", "replace").splitlines() if file_suffix(path) == ".tsv" else []
    except OSError:
        return False  # reported by the reader
    return "sentence" in find_header(lines[0].split("\t"), columns) if lines else False


def open_sentences(params: NerDataParams, section: str, split: str, reading: Interpretation) -> Records:
    """Open the sentences of a split, see `open_split`."""
    path = params.path_of(split) if params.source == "files" else None
    spec = sentence_spec(params.columns, named_by := column_setting(section), path)
    return _group(open_split(params, section, split, spec, reading), params, named_by, reading)


def open_sentence_file(
    path: Path, key: str, named_by: str, params: NerDataParams, reading: Interpretation, *, tagged: bool
) -> Records:
    """Open the sentences of a file, see `open_file`; for other arguments see `sentence_spec`."""
    spec = sentence_spec(params.columns, named_by, path, tagged=tagged)
    return _group(open_file(path, key, spec, reading, table_form(params)), params, named_by, reading)


def _group(records: Records, params: NerDataParams, named_by: str, reading: Interpretation) -> Records:
    return records._replace(rows=group_words(records, reading, named_by, params.columns.sentence))


def check_sentences(
    params: NerDataParams,
    section: str,
    split: str,
    reading: Interpretation,
    *,
    spellings: Mapping[str, str] | None = None,
    whole: bool = False,
) -> tuple[TagStatistics, bool]:
    """Return tag statistics of the first sentences of a source, all of a small file, and True if there are no others.

    Args:
        spellings: see `TagStatistics`.
        whole: read a large file as well.

    Raises:
        InputError: as `read_sentences`, for these sentences.
    """
    counts = TagStatistics(spellings=spellings or {})
    records = open_sentences(params, section, split, reading)
    until = math.inf if whole else time.monotonic() + CHECK_SECONDS * (params.source == "files")

    def first_rows() -> Iterator[TableRow]:
        for number, row in enumerate(records.rows, 1):
            yield row
            if number >= FIRST_SENTENCES and time.monotonic() > until:
                return

    for sentence in read_sentences(records._replace(rows=first_rows()), params, counts, reading):
        counts.keys.append(fold_texts(*sentence.tokens))
    return counts, next(records.rows, None) is None


def read_sentences(
    records: Records, params: NerDataParams, counts: TagStatistics, reading: Interpretation
) -> Iterator[Sentence]:
    """Yield the sentences of an opened source, in IOB2.

    Args:
        counts: receives statistics of the tags.
        reading: receives counts of what was read and skipped.

    Raises:
        InputError: an unreadable file; at the end, all problems with words and tags, or words that are not sentences.
    """
    is_empty, problems = True, records.problems
    for sentence in parse_sentences(records, params.tag_scheme, counts, reading):
        is_empty = False
        yield sentence
    if is_empty:
        raise InputError(
            f"{problems.source} contains no sentence{list_empty(reading)}. Required is a word with its tag on each "
            "line, or a table of words and tags"
        )
    if counts.sentences == 1 and counts.words > LONGEST:
        raise InputError(
            f"{problems.source} is a single sentence of {counts.words:,} words. End each sentence with a blank line, "
            "or name the column that the rows of a sentence share"
        )
    if counts.words > LONGEST * counts.sentences:
        reading.remark(
            f"sentences have {counts.words / counts.sentences:,.0f} words on average: does a blank line end each?"
        )
    if params.columns.sentence != ROW and share_of(counts.single, counts.sentences) > MAX_SHARE:
        raise InputError(f"{problems.source} {describe_single(OPTION, reading)}")
    if params.columns.tokens is None and share_of(counts.numbers, counts.words, counts.sentences) > MAX_SHARE:
        raise InputError(
            f"{problems.source} has words that are their own number in the sentence. Name the column of the words, or "
            f"this column if numbers are the words: {OPTION.format('tokens')}"
        )
    types = f", types: {shorten(sorted(counts.entities), SHOWN_TYPES)}" if counts.entities else ""
    reading.labels = f"tags in {counts.scheme}{types}"


def refuse_similar(params: NerDataParams, section: str, statistics: Mapping[str, TagStatistics]) -> None:
    """Refuse types that differ only in case, blanks or normal form, unless `similar_labels` says what to do.

    Args:
        statistics: source -> its statistics.
    """
    first = dict[str, str]()
    for source, counts in statistics.items():
        for name, where in counts.first.items():
            first.setdefault(name, f"{source}, {where}")
    if params.similar_labels != "refuse" or not (groups := fold_labels(first)):
        return
    lists = "; ".join(" and ".join(f"{name!r} ({first[name]})" for name in group) for group in groups.values())
    raise InputError(
        f"types that differ only in case, blanks or Unicode's normal form: {lists}. "
        f"--similar-labels fold ({section}.similar_labels=fold) makes them one, the most frequent; keep leaves them "
        "apart"
    )


def parse_sentences(
    records: Records, scheme: str, counts: TagStatistics, reading: Interpretation
) -> Iterator[Sentence]:
    """Yield the sentence of each record; other arguments as for `read_sentences`.

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
        if not words and not is_tagged:
            problems.add("empty sentence", row.where)
        if scheme == "auto" and (other := detect_scheme(tags)):
            counts.other = counts.other if counts.other not in ("", "BIOES") else other
            tags = convert_bioes(tags)
        if counts.spellings:
            tags = _fold_types(tags, row, counts, reading)
        if _is_sound(words, tags, row, scheme, problems):
            inside = find_inside_starts(tags)
            reading.count(EMPTY, row.where, not words)
            if inside:
                reading.count(REPAIRED, _locate(row, inside[0]), len(inside))
            counts.begun_inside += len(inside)
            counts.begun_apart += len(find_begin_starts(tags))
            for entity in find_entities(tags):
                counts.entities[entity.type] += 1
                if entity.type not in counts.first:
                    counts.first[entity.type] = _locate(row, entity.first)
            if words:
                counts.sentences += 1
                counts.words += len(words)
                counts.single += len(words) == 1
                counts.numbers += sum(map(operator.eq, words, NUMBERS))
                yield Sentence(document, words, convert_to_iob2(tags), name_record(row, reading), read_kept(row))
    problems.refuse()


def _fold_types(tags: Sequence[object], row: TableRow, counts: TagStatistics, reading: Interpretation) -> list[object]:
    folded = []
    for at, tag in enumerate(tags):
        prefix, name = split_tag(tag) if isinstance(tag, str) else ("", "")
        if name in counts.spellings:
            tag = f"{prefix}-{counts.spellings[name]}"
            reading.count(f"tags of type {name!r} read as {counts.spellings[name]!r}", _locate(row, at))
        folded.append(tag)
    return folded


def _read_cells(row: TableRow, records: Records) -> tuple[list[Any], list[Any]] | None:
    """Return the words and tags of a record; CSV cells have lists as JSON or as words separated by spaces."""
    (where, values, _), problems = row, records.problems
    words: object = values.get("tokens", values.get(TEXT))
    tags: Any = values.get("tags")
    tagged = "tags" in values
    try:
        if records.is_text and "tokens" in values and isinstance(words, str):
            is_json = tags.lstrip().startswith("[") if tagged else words.startswith(('["', "['"))
            cells = (words, tags if tagged else words)
            words, tags = map(parse_json, cells) if is_json else (cells[0].split(), split_tags(cells[1]))
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


def _is_sound(words: Sequence[object], tags: Sequence[Any], row: TableRow, scheme: str, problems: ProblemList) -> bool:
    """Return True if every word and tag of a sentence is valid; add what is wrong to `problems`."""
    before = problems.count
    if len(words) != len(tags):
        counts = f"{len(words)} words, {len(tags)} tags"
        problems.add("a sentence with different numbers of tags and words", row.where, counts)
        return False
    for number, (word, tag) in enumerate(zip(words, tags, strict=True)):
        for kind, value in ((_find_word_problem(word), word), (find_problem(tag), tag)):
            if kind:
                problems.add(kind, _locate(row, number), value)
    if problems.count == before and scheme == "iob2":
        for number in find_inside_starts(tags):
            kind = "I- after O or another type, which IOB2 does not allow (tag_scheme: auto reads it as conlleval does)"
            problems.add(kind, _locate(row, number), tags[number])
    return problems.count == before


def _locate(row: TableRow, word: int) -> str:
    places = row.values.get("places")
    return places[word] if places else f"{row.where}, word {word}"


def _find_word_problem(word: object) -> str:
    problem = find_text_problem(word)
    return f"a word {problem}" if problem else "an empty word" * (not str(word).strip(" \t\r\n"))
