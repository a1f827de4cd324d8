"""Tables of one word a row: rows become sentences by a column that the rows of a sentence share, or that is filled only
in the first row of each sentence."""

import itertools
from collections.abc import Iterator

from ipu_model.core.units import shorten
from tasks.downstream.ner.conll import MAX_WORDS, NO_WORD
from tasks.records.interpretation import Interpretation
from tasks.records.label_forms import is_empty
from tasks.records.tables import KEPT, Records, TableRow
from tasks.records.tagged_columns import DOCUMENT
from tasks.records.tags import OUTSIDE, split_tags
from tasks.stage.errors import InputError

ROW = "row"
"""Value of the parameter columns.sentence: every row is a sentence."""
FIRST_ROWS = 1_000
"""Rows that decide whether a table has one word a row."""
SHOWN_COLUMNS = 10


def group_words(records: Records, reading: Interpretation, named_by: str, sentence: str | None) -> Iterator[TableRow]:
    """Yield the rows of sentences; those of one word are joined.

    Args:
        records: a table of sentences, or one with one word a row.
        reading: receives the grouping.
        named_by: setting of a column, for messages.
        sentence: parameter columns.sentence.

    Raises:
        InputError: one word a row without a column of sentences.
    """
    head = list(itertools.islice(records.rows, FIRST_ROWS))
    rows = itertools.chain(head, records.rows)
    singles = sum(map(_has_one_word, head)) if any(row.values.get("tokens") for row in head) else 0
    has_words = 0 < singles == len(head)
    column = next((row.names["sentence"] for row in head if "sentence" in row.names), None)
    if column is not None and (has_words or (2 * singles > len(head) and _has_repeats(head))):
        yield from _join_rows(rows, head, records, reading, column, named_by)
        return
    if column is not None and sentence is not None:
        raise InputError(
            f"{records.problems.source} has several words in a row, so that rows are sentences, but "
            f"{named_by.format('sentence')} names {column!r}. Leave it out"
        )
    for part in ("sentence", "document"):
        if reading.columns.pop(part, None) is not None:
            reading.unused_columns.update(row.names[part] for row in head if part in row.names)
    reading.grouping = reading.grouping or "a row is a sentence"
    is_table = any(row.names for row in head)
    if has_words and is_table and not records.is_text and sentence != ROW and "tags" in head[0].values:
        raise InputError(f"{records.problems.source} {describe_single(named_by, reading)}")
    for row in rows:
        cells = {part: [value] for part, value in row.values.items() if part in ("tokens", "tags")}
        yield row._replace(values=row.values | cells) if sentence == ROW and has_words and is_table else row


def describe_single(named_by: str, reading: Interpretation) -> str:
    """Return that there is one word a row, and the option for each reading."""
    others = shorten(sorted(reading.unused_columns), SHOWN_COLUMNS)
    setting = named_by.format("sentence")
    return (
        "has one word in most sentences, as if each word were a sentence"
        + (f"; other columns are {others}" if others else "")
        + f". Name the column that the rows of a sentence share ({setting}), or end sentences with a blank line in a "
        f"file of CoNLL columns. If sentences are single words: {setting.replace('NAME', ROW)}"
    )


def _has_one_word(row: TableRow) -> bool:
    word, tag = row.values.get("tokens"), row.values.get("tags", OUTSIDE)
    if isinstance(word, list) or isinstance(tag, list):
        return False
    if "tags" in row.values:
        return not isinstance(tag, str) or (len(split_tags(tag)) <= 1 and not tag.lstrip().startswith("["))
    return "tokens" in row.values and not (isinstance(word, str) and (len(word.split()) > 1 or word.startswith('["')))


def _has_repeats(head: list[TableRow]) -> bool:
    """Return True if several rows seem to have the same sentence."""
    sentences = [row.values.get("sentence") for row in head]
    return any(is_empty(sentence) or sentence == before for before, sentence in itertools.pairwise(sentences))


def _join_rows(
    rows: Iterator[TableRow],
    head: list[TableRow],
    records: Records,
    reading: Interpretation,
    column: str,
    named_by: str,
) -> Iterator[TableRow]:
    begins_sentence = any(is_empty(row.values.get("sentence")) for row in head)
    rows_of = f"a row with {column!r} begins" if begins_sentence else f"rows of one {column!r} are"
    reading.grouping = f"{rows_of} a sentence"
    apart = (
        f"a sentence that comes back after another one (sort the rows by {column!r}; if it starts again in each "
        f"document, name that column, {named_by.format('document')})"
    )
    mixed = f"a row without {column!r}, although others repeat it (fill all rows, or the first of each sentence)"
    problems, seen = records.problems, set[tuple[object, object]]()
    current: tuple[object, object] | None = None
    words = list[TableRow]()
    empty = repeated = is_mixed = False
    for row in rows:
        sentence, document = (row.values.get(part) for part in ("sentence", "document"))
        if not _has_one_word(row):
            problems.add("several words, where other rows have one word each", row.where, row.values.get("tokens"))
            continue
        if is_empty(document) and current is not None:
            document = current[0]
        if is_empty(sentence):
            empty = True
            if current is None:
                problems.add(f"a row without {column!r} before the first sentence", row.where)
        elif (document, sentence) == current:
            repeated = True
        else:
            yield from _make_sentence(words, current)
            if current is not None and document != current[0]:
                yield TableRow(row.where, {"tokens": [DOCUMENT], "tags": [OUTSIDE]})
            words, current = [], (document, sentence)
            if current in seen:
                problems.add(apart, row.where, sentence)
            seen.add(current)
        if empty and repeated and not is_mixed:
            problems.add(mixed, row.where)
            is_mixed = True
        if not row.values.get("tokens") and row.values.get("tags") == OUTSIDE:
            reading.count(NO_WORD, row.where)
            continue
        words.append(row)
        if len(words) > MAX_WORDS:
            raise InputError(
                f"{problems.source}: the sentence from {words[0].where} has more than {MAX_WORDS:,} words. Check "
                f"{named_by.format('sentence')}"
            )
    yield from _make_sentence(words, current)


def _make_sentence(words: list[TableRow], current: tuple[object, object] | None) -> Iterator[TableRow]:
    if words:
        parts = [part for part in words[0].values if part in ("tokens", "tags") or part.startswith(KEPT)]
        values = {part: [row.values.get(part) for row in words] for part in parts}
        id = {} if current is None else {"id": current[1]}
        places = {"places": [row.where for row in words]}
        yield TableRow(words[0].where, {**values, **places, **id}, words[0].names)
