"""Records for people and programs: JSON lines, CSV, Parquet, or one JSON object of answers; whole or not at all."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from ipu_model.files import new_file
from tasks.pages.markup import csv_text
from tasks.project.errors import InputError

Records = Sequence[Mapping[str, Any]]
Write = Callable[[Records], None]
FORMATS = ("json", "jsonl", "csv", "parquet")


@contextlib.contextmanager
def open_output(path: Path | None) -> Iterator[BinaryIO]:
    """A stream that becomes the file `path` at the end, if nothing went wrong; None: standard output.

    It is opened at once, so that a place that cannot be written to is known before anything is computed.
    """
    if path is None:
        yield sys.stdout.buffer
        return
    if not path.parent.is_dir():
        raise InputError(f"{path.parent} is not there: make that folder first, or name another file")
    with new_file(path) as partial, partial.open("wb") as stream:
        yield stream


@contextlib.contextmanager
def writing(stream: BinaryIO, kind: str, schema: pa.Schema, bare: str) -> Iterator[Write]:
    """What writes some records to a stream.

    Args:
        kind: of FORMATS.
        schema: of a record, its id first.
        bare: the field that stands for a record in one JSON object.
    """
    if kind == "parquet":
        with pq.ParquetWriter(stream, schema) as table:
            yield lambda records: table.write_table(pa.Table.from_pylist(list(records), schema=schema))
        return
    text_of = _Object(schema.names[0], bare) if kind == "json" else _Csv(schema.names) if kind == "csv" else _lines

    def write(records: Records) -> None:
        stream.write(text_of(records).encode())

    yield write
    if isinstance(text_of, _Object):
        stream.write(b"\n}\n")


def _lines(records: Records) -> str:
    return "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)


class _Object:
    """{id: answer}, a line each, as official scripts read it."""

    def __init__(self, name: str, bare: str) -> None:
        self._name, self._bare, self._before = name, bare, "{\n"

    def __call__(self, records: Records) -> str:
        written = ""
        for record in records:
            written += self._before + ": ".join(
                json.dumps(record[key], ensure_ascii=False) for key in (self._name, self._bare)
            )
            self._before = ",\n"
        return written


class _Csv:
    """A header, then a line each; lists and objects stand as JSON in their cells."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names, self._head = names, True

    def __call__(self, records: Records) -> str:
        text = csv_text(self._names, ([_cell(record[name]) for name in self._names] for record in records))
        head, _, rows = text.partition("\n")
        first, self._head = self._head, False
        return text if first else rows


def _cell(value: Any) -> Any:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, list | dict) else value
