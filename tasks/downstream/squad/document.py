"""The two layouts that a JSON file of questions may have: SQuAD's articles, or one object for each question."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from typing import Any

from ipu_model.files import MAX_JSON_VALUES, parse_json
from tasks.project.errors import InputError

OF_A_RECORD = frozenset({"id", "context", "question", "answers"})
"""Keys of an object for each question."""
Record = tuple[str, dict[str, Any]]
"""Where it is in the file, for messages, and its values."""


def parse_document(text: str, values: int = MAX_JSON_VALUES, **options: Any) -> Any:
    """The value of a JSON text; of JSON lines a list of theirs. Arguments and errors are those of `parse_json`."""
    try:
        return parse_json(text, values, **options)
    except json.JSONDecodeError as error:
        if error.msg != "Extra data" or "\n" not in text[: error.pos]:
            raise
        found = [(at, line) for at, line in _lines_of(text) if line.strip()]
        try:
            parse_json(found[0][1], values)
        except json.JSONDecodeError:  # an object of several lines, and something after it
            raise error from None
    return [_parsed_line(text, at, line, values, options) for at, line in found]


def _lines_of(text: str) -> Iterator[tuple[int, str]]:
    """Every line and where it begins."""
    start = 0
    for line in text.split("\n"):
        yield start, line
        start += len(line) + 1


def _parsed_line(text: str, start: int, line: str, values: int, options: dict[str, Any]) -> Any:
    try:
        return parse_json(line, values, **options)
    except json.JSONDecodeError as error:
        raise json.JSONDecodeError(error.msg, text, start + error.pos) from None


def articles_of(values: Any) -> Any:
    """What a JSON file of questions holds, as {"data": [article, ...]} where it is a list of articles."""
    is_list = isinstance(values, list) and values and isinstance(values[0], dict) and "paragraphs" in values[0]
    return {"data": values} if is_list else values


def flat_records(values: Any, columns: Collection[str] = ()) -> list[Record] | None:
    """The records of a JSON file with one object for each question; None where it holds articles, or something else.

    Args:
        values: what the file holds.
        columns: keys of such objects, besides SQuAD's own.

    Raises:
        InputError: not everything is an object.
    """
    known = OF_A_RECORD.union(columns)
    items, called = values, "item {}"
    if isinstance(values, dict):
        is_record = "data" not in values and not known.isdisjoint(values)  # JSON lines of a single one
        items, called = ([values], "item {}") if is_record else (values.get("data"), "data[{}]")
    first = items[0] if isinstance(items, list) and items else None
    if not isinstance(first, dict) or "paragraphs" in first or known.isdisjoint(first):
        return None
    records = [(called.format(number), one) for number, one in enumerate(items, called != "data[{}]")]
    if other := next((record for record in records if not isinstance(record[1], dict)), None):
        raise InputError(f"{other[0]} must be an object, found {type(other[1]).__name__}")
    return records
