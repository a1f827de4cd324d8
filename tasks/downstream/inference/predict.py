"""The answers of a finished model to the examples of a file, which may be of any length: memory stays flat.

The examples are kept as the stage examples keeps them, become rows, and one device job computes their logits, all of it
in files. Then answers follow, some examples at a time, and each time as the stage evaluate finds them.
"""

from __future__ import annotations

import array
import contextlib
import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ipu_model.files import new_file
from tasks.downstream.inference.job import How, compute, scratch_checkout
from tasks.downstream.inference.model import FoundModel
from tasks.downstream.inference.task import ID, INPUT, ApplyTask
from tasks.downstream.rows import numbered
from tasks.jobs.device_job import JobResult
from tasks.pages.markup import csv_text
from tasks.params.entries import Entry
from tasks.plan.kinds import part_of
from tasks.records.parquet import group_batches, row_groups
from tasks.records.tables import require_file, without_rows
from tasks.records.text_files import NUMBERS, Reading, repetitions
from tasks.stage import artifacts
from tasks.stage.errors import InputError, ParamsError

Task = ApplyTask[Any, Any, Any]
Record = Mapping[str, Any]
KEPT_AT_ONCE, ANSWERED_AT_ONCE = 1024, 4096
"""Examples in memory."""
KEPT_CHARACTERS = 8 << 20
"""Characters of their texts from which on fewer are kept at once."""


@dataclass(frozen=True)
class Output:
    """Where answers go, and how."""

    path: Path | None
    """None: standard output."""
    kind: str
    """One of FORMATS."""
    n_best: int = 0
    """Best answers in each record; 0: only the best, and no list."""


@dataclass(frozen=True)
class Predicted:
    """What was done."""

    examples: int
    result: JobResult
    reading: Reading


def predict(entry: Entry, model: FoundModel, path: Path, output: Output, how: How) -> Predicted:
    """Write the answers of `model` to the examples of the file `path`.

    Raises:
        InputError: examples that cannot be used, or a place that cannot be written to.
        ParamsError: an output that this kind of task does not have.
        DeviceJobFailed: the model cannot be used on this device.
    """
    task: Task = part_of(entry, "apply")
    require_file(path, INPUT, task.endings, f"{task.record}s")
    if output.kind == "json" and not task.bare:
        raise ParamsError(f"answers to {task.record}s are no JSON object: name a .jsonl, .csv or .parquet file")
    if output.n_best and not task.ranked:
        raise ParamsError(f"--n-best {output.n_best}: there is one answer to each {task.record} here")
    model = model.resolved()
    with open_output(output.path) as stream, scratch_checkout(task, model):
        split, reading = task.development[0], Reading()
        examples = task.examples_file(split)
        count = _keep(task, path, examples, reading, unique=output.kind == "json")
        result = compute(task, model, split, how)
        schema = pa.schema([pa.field(ID, pa.string()), *task.record_schema(model.labels, output.n_best)])
        with writing(stream, output.kind, schema, task.bare) as write:
            for ids, part in _parts(task, split):
                found = task.read_examples(part / examples.name)
                logits = task.read_logits(found, part, part / "logits.arrow")
                answers = task.records(found, task.answer(found, logits), output.n_best)
                write([{ID: name, **record} for name, record in zip(ids, answers, strict=True)])
    return Predicted(count, result, reading)


@contextlib.contextmanager
def spooled(path: Path | None, kind: str) -> Iterator[Path]:
    """The file `path`; None: one of standard input, which is kept while it is used.

    Args:
        kind: of what standard input holds, one of FORMATS.
    """
    if path is not None:
        yield path
        return
    with tempfile.TemporaryDirectory(prefix="podium-") as folder:
        kept = Path(folder) / f"standard-input.{kind}"
        with kept.open("wb") as stream:
            shutil.copyfileobj(sys.stdin.buffer, stream)
        yield kept


def _keep(task: Task, path: Path, target: Path, reading: Reading, *, unique: bool) -> int:
    """Write the examples of a file to Parquet, with ids; how many there are.

    Args:
        unique: refuse ids that stand more than once.
    """
    schema = task.examples_schema
    if ID not in schema.names:
        schema = pa.schema([pa.field(ID, pa.string()), *schema])
    hashes, count = array.array("q"), 0
    found = task.unlabelled(path, reading)
    with pq.ParquetWriter(target, schema, compression="zstd") as writer:
        for some in row_groups(found, _characters, KEPT_AT_ONCE, KEPT_CHARACTERS):
            for number, one in enumerate(some, count + 1):
                reading.counts[NUMBERS] += type(one[ID]) is int
                one[ID] = str(number if one[ID] in (None, "") else one[ID])
                hashes.append(hash(one[ID]))
            writer.write_table(pa.Table.from_pylist(some, schema=schema))
            count += len(some)
    if not count:
        raise InputError(f"{path} holds no {task.record}{without_rows(reading)}: there is nothing to answer")
    if unique and (twice := repetitions(hashes)):
        raise InputError(
            f"{path}: {twice:,} id(s) stand more than once, an object of answers has each once: name a .jsonl, "
            ".csv or .parquet file for the answers"
        )
    return count


def _characters(example: Record) -> int:
    return sum(len(value) for value in example.values() if isinstance(value, str))


def _parts(task: Task, split: str) -> Iterator[tuple[list[str], Path]]:
    """The ids of some examples at a time, and a folder with these examples, their features and their logits, counted
    from 0, as if there were no others."""
    part = Path("part")
    part.mkdir()
    rows, first, sequence = task.rows_folder(split) / artifacts.FEATURES, 0, 0
    with pa.OSFile(str(artifacts.logits_file(task.entry.name, split))) as source:  # a map would count as memory
        logits = pa.ipc.open_file(source)
        with pq.ParquetFile(task.examples_file(split)) as file:
            for batch in group_batches(file, file.schema_arrow.names, ANSWERED_AT_ONCE):
                pq.write_table(pa.Table.from_batches([batch]), part / task.examples_file(split).name)
                count = len(batch)
                if rows.is_file():
                    count = _features(rows, part / artifacts.FEATURES, first, first + len(batch), sequence)
                _logits(logits, part / "logits.arrow", sequence, count)
                first, sequence = first + len(batch), sequence + count
                yield batch.column(ID).to_pylist(), part


def _features(source: Path, target: Path, first: int, stop: int, sequence: int) -> int:
    """Write those of the examples first to stop - 1, the first of which is number `sequence`; how many there are."""
    wanted = (pc.field("example_index") >= first) & (pc.field("example_index") < stop)
    schema = pq.read_schema(source)
    table = pq.read_table(source, filters=wanted, use_threads=False, schema=schema)
    pq.write_table(numbered(table, -sequence, -first).replace_schema_metadata(schema.metadata), target)
    return table.num_rows


def _logits(source: pa.ipc.RecordBatchFileReader, target: Path, first: int, count: int) -> None:
    """Write those of `count` sequences from number `first` on; all batches of the source but the last are equally
    long."""
    size = source.get_batch(0).num_rows
    begin = first // size
    batches = [source.get_batch(number) for number in range(begin, -(-(first + count) // size))]
    table = pa.Table.from_batches(batches).slice(first - begin * size, count)
    ids = pa.array(np.arange(count, dtype=np.int32))
    table = table.set_column(0, table.schema.field(0), ids)
    with pa.ipc.new_file(str(target), table.schema) as file:
        file.write_table(table)


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
def writing(stream: BinaryIO, kind: str, schema: pa.Schema, bare: str) -> Iterator[Callable[[Sequence[Record]], None]]:
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
    written = 0

    def write(records: Sequence[Record]) -> None:
        nonlocal written
        if kind == "json":  # {id: answer}, a line each, as official scripts read it
            lines = (f"{_json(record[ID])}: {_json(record[bare])}" for record in records)
            text = (",\n" if written else "{\n") + ",\n".join(lines)
        elif kind == "csv":  # a header, then a line each; lists and objects stand as JSON in their cells
            text = csv_text(schema.names, ([_cell(record[name]) for name in schema.names] for record in records))
            text = text.partition("\n")[2] if written else text
        else:
            text = "".join(_json(record) + "\n" for record in records)
        stream.write(text.encode())
        written += len(records)

    yield write
    if kind == "json":
        stream.write(b"\n}\n")


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _cell(value: Any) -> Any:
    return _json(value) if isinstance(value, list | dict) else value
