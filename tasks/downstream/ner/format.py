"""Sentences with tags from files or the Hub: CoNLL files, JSON lines, Parquet; every word and tag is checked."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from pathlib import Path

from tasks.downstream.ner.conll import read_conll
from tasks.downstream.ner.params import SentencesParams
from tasks.downstream.ner.sentences import MAX_WORDS, Found, Raw, Sentence, checked
from tasks.inputs.problems import Problems
from tasks.inputs.tables import Column, Line, read_table, stated_by
from tasks.inputs.tables import checked as with_columns
from tasks.project.errors import InputError
from tasks.project.given import require_readable
from tasks.reading.hub_inputs import open_dataset, stated_classes, with_names
from tasks.reading.packed import ending_of
from tasks.reading.text_files import Reading

MEANT = "tagged words"
CONLL = (".conll", ".txt", ".tsv", ".iob", ".iob2", ".bio")
TABLES = (".jsonl", ".parquet")
FIRST_SENTENCES = 1000
"""Looked at before a run starts."""
HUB_SPLITS = {"train": "train", "dev": "validation"}
Opened = tuple[str, Iterator[Raw], Problems]
"""What is read, its sentences, and where to note what is wrong with them."""
DOCUMENT = ["-DOCSTART-"]
"""The words of a line of CoNLL files that some tables keep as a sentence."""


def read_sentences(
    params: SentencesParams, section: str, split: str, found: Found, reading: Reading
) -> Iterator[Sentence]:
    """The sentences of a split, in IOB2.

    Args:
        section: of params.yaml, for messages.
        found: gets what was seen of the tags, `reading` what was read and passed over.

    Raises:
        InputError: what cannot be read; at the end, all that is wrong with words and tags.
    """
    yield from usable(_opened(params, section, split, reading), params, found, reading)


def usable(opened: Opened, params: SentencesParams, found: Found, reading: Reading) -> Iterator[Sentence]:
    """What `read_sentences` gives, of a source that was opened."""
    source, raws, problems = opened
    count = 0
    for sentence in checked(raws, params.tag_scheme, found, problems, reading):
        count += 1
        yield sentence
    problems.refuse()
    _require_some(count, problems)
    reading.layouts[source] = f"{reading.layouts.get(source, 'table')} of {found.scheme}"


def check_sentences(params: SentencesParams, section: str, split: str) -> None:
    """What can be known of a file at once: how it begins.

    Raises:
        InputError: as `read_sentences`, of the first sentences.
    """
    found, reading = Found(), Reading()
    _, raws, problems = _opened(params, section, split, reading)
    kept = list(itertools.islice(checked(raws, params.tag_scheme, found, problems, reading), FIRST_SENTENCES))
    problems.refuse()
    _require_some(len(kept), problems)


def _require_some(sentences: int, problems: Problems) -> None:
    if not sentences:
        raise InputError(
            f"{problems.source} holds no sentence: a word and its tag in each line are required, or a table of words "
            "and tags"
        )


def known_ending(path: Path, key: str) -> str:
    """The ending of a file of sentences.

    Raises:
        InputError: no such file, a folder, or an ending of none that is read.
    """
    require_readable(path, key)
    ending = ending_of(path)
    if path.is_dir() or ending not in (*CONLL, *TABLES):
        what = "is a folder" if path.is_dir() else f"ends in {ending or 'nothing'!r}"
        raise InputError(
            f"{path} {what}: {key} needs one file of CoNLL's columns ({', '.join(CONLL)}) or a table "
            f"({', '.join(TABLES)})"
        )
    return ending


def _opened(params: SentencesParams, section: str, split: str, reading: Reading) -> Opened:
    if params.source == "hub":
        return _hub_sentences(params, section, split, reading)
    path = Path(params.train_path if split == "train" else str(params.dev_path))
    return opened_file(path, f"{section}.{split}_path", params, reading, stated_by(section))


def opened_file(path: Path, key: str, params: SentencesParams, reading: Reading, named_by: str) -> Opened:
    """A file of sentences with tags.

    Args:
        key: what messages call it.
        named_by: see tables.stated_by.

    Raises:
        InputError: as `known_ending`, and what cannot be read while the sentences are consumed.
    """
    problems = Problems(f"{path} ({key})", MEANT)
    ending = known_ending(path, key)
    reading.files += 1
    if ending in CONLL:
        reading.layouts[str(path)] = "columns"
        return str(path), read_conll(path, key, reading, problems), problems
    names = stated_classes(path, params.columns.tags) if ending == ".parquet" else []
    lines = read_table(path, _wanted(params, named_by), key, reading)
    return str(path), _table_sentences(lines, params, names, problems), problems


def _hub_sentences(
    params: SentencesParams, section: str, split: str, reading: Reading
) -> tuple[str, Iterator[Raw], Problems]:
    name, columns = HUB_SPLITS[split], params.columns
    source = f"data set {params.dataset}, split {name}"
    rows = open_dataset(section, params.dataset, params.dataset_config, name, params.dataset_revision, (columns.tags,))
    lines = (Line(f"row {number}", row) for number, row in enumerate(rows))
    problems = Problems(source, MEANT)
    asked = with_columns(lines, _wanted(params, stated_by(section)), source, reading)
    return source, _table_sentences(asked, params, [], problems), problems


def _wanted(params: SentencesParams, named_by: str) -> list[Column]:
    return [Column(name, named_by.format(part), True) for part, name in params.columns.model_dump().items()]


def _table_sentences(
    lines: Iterable[Line], params: SentencesParams, names: list[str], problems: Problems
) -> Iterator[Raw]:
    """A sentence of each record.

    Args:
        names: of the classes that tags are numbers of; empty where tags are names.
    """
    document, sentences = 0, 0
    for where, values in lines:
        words, tags = values[params.columns.tokens], with_names(values[params.columns.tags], names)
        if words == DOCUMENT:
            document += sentences > 0
            sentences = 0
        elif not isinstance(words, list) or not isinstance(tags, list):
            problems.add("words and tags that are no lists", where, words)
        elif len(words) > MAX_WORDS:
            problems.add(f"a sentence of more than {MAX_WORDS:,} words", where)
        elif names == [] and any(type(tag) is int for tag in tags):
            kind = "tags that are numbers without names (state names, or give Parquet with the features of `datasets`)"
            problems.add(kind, where, next(tag for tag in tags if type(tag) is int))
        else:
            sentences += 1
            yield Raw(document, words, tags, where)
