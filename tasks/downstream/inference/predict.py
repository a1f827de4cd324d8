"""Predictions of a fine-tuned model for a file of any length, in constant memory, and its evaluation on one.

The examples are stored as Parquet like those of stage `examples`, packed into rows, and one device job computes their
logits, all in files. Predictions are then decoded in batches, as stage `evaluate` does.
"""

import array
import contextlib
import itertools
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ipu_model.core.files import new_file, new_folder, write_json, write_text
from ipu_model.core.units import format_count
from tasks.downstream.evaluate import format_scores, score_logits, write_evaluation
from tasks.downstream.gate.released_scores import SCORES, scores_json
from tasks.downstream.inference.job import (
    ID,
    Inference,
    InferenceOptions,
    read_training_columns,
    run_inference,
    scratch_checkout,
)
from tasks.downstream.inference.model import InferenceModel
from tasks.downstream.jobs.entry_jobs import prediction_figures, prediction_measurements
from tasks.downstream.kind import kind_of
from tasks.downstream.reading import WHOLE_BYTES
from tasks.downstream.scoring.scores import Scores
from tasks.jobs.device_job import JobResult
from tasks.pages.markup import csv_text, replace_hidden
from tasks.params.entries import TRAIN, Entry
from tasks.plan.named_files import escape_name
from tasks.records.interpretation import Interpretation, describe_inputs
from tasks.records.parquet import read_group_batches, split_into_groups
from tasks.records.tables import list_empty
from tasks.records.text_files import count_repetitions
from tasks.stage import artifacts
from tasks.stage.errors import InputError, ParamsError

Record = Mapping[str, Any]
KEPT_AT_ONCE, ANSWERED_AT_ONCE = 1024, 4096
"""Examples in memory at a time."""
KEPT_CHARACTERS = 8 << 20
"""Characters of text above which fewer examples are stored at a time."""
METRICS, KEPT = "metrics.json", "kept"
SHOWN_CHARACTERS = 80
"""Characters of a text in a line for people."""


@dataclass(frozen=True)
class PredictionOutput:
    """Destination and format of predictions."""

    path: Path | None
    """None for standard output."""
    kind: str
    """json, jsonl, csv, parquet, npy, or text for people."""
    n_best: int = 0
    """Number of best answers in each record; 0: only the best, without a list."""
    with_text: bool = False
    """Repeat the texts of the examples in the records."""


def predict(
    entry: Entry,
    model: InferenceModel,
    path: Path,
    output: PredictionOutput,
    how: InferenceOptions,
    first: Path | None = None,
    *,
    says_reading: bool = True,
) -> tuple[int, JobResult]:
    """Write the predictions of `model` for the examples of the file `path`.

    Args:
        first: file whose examples come before.
        says_reading: say how the file was read.

    Returns:
        The number of examples, and the result of the job.

    Raises:
        InputError: unusable examples, or an output that cannot be written.
        ParamsError: an output format that this kind does not support.
        DeviceJobFailed: the model cannot run on this device.
    """
    kind = kind_of(entry)
    task = kind.inference(entry)
    if output.kind == "json" and not task.answer_field:
        raise ParamsError(f"a .json file cannot hold predictions for {entry.record}s. Use .jsonl, .csv or .parquet")
    if output.n_best and not task.has_n_best:
        raise ParamsError(f"--n-best {output.n_best} is not supported: each {entry.record} has one answer")
    record = task.record_schema(model.labels, output.n_best)
    if output.kind == "npy" and find_vector(record) is None:
        raise ParamsError("a .npy file holds embeddings, which this model does not have. Use .jsonl, .csv or .parquet")
    model = model.with_absolute_paths()
    with open_output(output.path) as stream, scratch_checkout(entry, model):
        split, reading = entry.development[0], Interpretation(trained=read_training_columns(model.folder))
        examples = entry.examples_file(split)
        before = () if first is None else task.read_unlabelled(first, Interpretation())
        records = itertools.chain(before, task.read_unlabelled(path, reading))
        count, kept = _keep(task, records, path, examples, reading, unique=output.kind == "json")
        for line in describe_inputs({path.name: reading}) if says_reading else ():
            how.say(line)
        result = run_inference(kind.encoder(entry), model, split, how)
        names = {ID: ID, **(_list_texts(task, examples) if output.with_text else {})}
        labels = {name: f"input_{name}" if name in (*names.values(), *record.names) else name for name in kept}
        fields = [pa.field(name, pa.string()) for name in (*names.values(), *labels.values())]
        schema = pa.schema([*fields, *record])
        with open_writer(stream, output.kind, schema, task.answer_field, partial(_format_line, task), count) as write:
            for batch, part in _parts(entry, split):
                input_rows = batch.select(names).rename_columns(list(names.values())).to_pylist()
                for input_row, pairs in zip(input_rows, batch.column(KEPT).to_pylist(), strict=True):
                    input_row |= {labels[name]: None for name in labels} | {
                        labels[name]: value for name, value in pairs
                    }
                part_examples = task.scores.read_examples(part / examples.name)
                logits = task.scores.read_logits(part_examples, part, part / "logits.arrow")
                answers = task.records(part_examples, task.scores.answer(part_examples, logits), output.n_best)
                write([{**row, **record} for row, record in zip(input_rows, answers, strict=True)])
    return count, result


def _list_texts(task: Inference, examples: Path) -> dict[str, str]:
    """Return column -> field of the texts of a file, without a column that has no text, such as that of the second."""
    metadata = pq.read_metadata(examples)
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    columns = [group.column(index) for group in groups for index in range(group.num_columns)]
    filled = {column.path_in_schema for column in columns if column.statistics.null_count < column.num_values}
    return {name: field for name, field in task.text_fields.items() if name in filled}


def _keep(
    task: Inference, rows: Iterable[dict[str, Any]], path: Path, target: Path, reading: Interpretation, *, unique: bool
) -> tuple[int, list[str]]:
    """Write the `rows` of a file to Parquet, with ids, none of them twice if `unique`; return their number,
    and the columns of labels that the records repeat.
    """
    schema = pa.schema([*task.examples_schema, pa.field(KEPT, pa.map_(pa.string(), pa.string()))])
    schema = schema.with_metadata(task.examples_schema.metadata)
    hashes, count, kept = array.array("q"), 0, dict[str, None]()
    with pq.ParquetWriter(target, schema, compression="zstd") as writer:
        for group in split_into_groups(rows, _characters, KEPT_AT_ONCE, KEPT_CHARACTERS):
            for row in group:
                cells = row.get(KEPT, {}).items()
                row[KEPT] = [(name, value if isinstance(value, str | None) else _json(value)) for name, value in cells]
                kept |= dict.fromkeys(name for name, _ in row[KEPT])
                hashes.append(hash(row[ID]))
            writer.write_table(pa.Table.from_pylist(group, schema=schema))
            count += len(group)
    if not count:
        raise InputError(f"{path} contains no {task.scores.record}{list_empty(reading)}")
    if unique and (twice := count_repetitions(hashes)):
        raise InputError(
            f"{path}: {twice:,} duplicate id(s). A .json file needs unique ids: write predictions to a .jsonl, .csv or "
            ".parquet file"
        )
    return count, list(kept)


def _characters(example: Record) -> int:
    return sum(len(value) for value in example.values() if isinstance(value, str))


def _parts(entry: Entry, split: str) -> Iterator[tuple[pa.RecordBatch, Path]]:
    """Yield batches of examples, each with a folder of their examples, features and logits, numbered from 0."""
    part = Path("part")
    part.mkdir()
    rows, first, sequence = entry.rows_folder(split) / artifacts.FEATURES, 0, 0
    with pa.OSFile(str(artifacts.logits_file(entry.name, split))) as source:  # a memory map would count as memory
        logits = pa.ipc.open_file(source)
        with pq.ParquetFile(entry.examples_file(split)) as file:
            for batch in read_group_batches(file, file.schema_arrow.names, ANSWERED_AT_ONCE):
                pq.write_table(pa.Table.from_batches([batch]), part / entry.examples_file(split).name)
                count = len(batch)
                if rows.is_file():
                    count = _features(rows, part / artifacts.FEATURES, first, first + len(batch), sequence)
                _logits(logits, part / "logits.arrow", sequence, count)
                first, sequence = first + len(batch), sequence + count
                yield batch, part


def _features(source: Path, target: Path, first: int, stop: int, sequence: int) -> int:
    wanted = (pc.field("example_index") >= first) & (pc.field("example_index") < stop)
    schema = pq.read_schema(source)
    table = pq.read_table(source, filters=wanted, use_threads=False, schema=schema)
    for name, before in (("feature_id", sequence), ("example_index", first)):
        index = schema.get_field_index(name)
        table = table.set_column(index, schema.field(index), pc.subtract(table[name], pa.scalar(before, pa.int32())))
    pq.write_table(table.replace_schema_metadata(schema.metadata), target)
    return table.num_rows


def _logits(source: pa.ipc.RecordBatchFileReader, target: Path, first: int, count: int) -> None:
    """Write the logits of `count` sequences from number `first`; all batches of the source but the last have one
    size."""
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
    """Yield a stream that becomes the file `path` on success, or standard output for None.

    It is opened first, so that an unwritable path is refused before anything is computed.
    """
    if path is None:
        yield sys.stdout.buffer
        return
    if not path.parent.is_dir():
        raise InputError(f"{path.parent} not found. Create the folder, or name another file")
    with new_file(path) as partial, partial.open("wb") as stream:
        yield stream


def find_vector(record: pa.Schema) -> str | None:
    """Return the field of a record that is nothing but a list of numbers; None if it has others."""
    is_vector = len(record) == 1 and pa.types.is_list(record.field(0).type)
    return record.field(0).name if is_vector else None


@contextlib.contextmanager
def open_writer(
    stream: BinaryIO, kind: str, schema: pa.Schema, bare: str, describe: Callable[[Record], str] = str, count: int = 0
) -> Iterator[Callable[[Sequence[Record]], None]]:
    """Yield a function that writes records to a stream.

    Args:
        schema: schema of a record, its id first.
        bare: field that is the value of a record in a JSON object.
        describe: makes the line of a record for people.
        count: number of records, for .npy.
    """
    if kind == "parquet":
        with pq.ParquetWriter(stream, schema) as table:
            yield lambda records: table.write_table(pa.Table.from_pylist(list(records), schema=schema))
        return
    written = 0

    def write(records: Sequence[Record]) -> None:
        nonlocal written
        if kind == "npy":  # the vectors alone, one row each; the vector is the last field
            vectors = np.array([record[schema.names[-1]] for record in records], np.float32)
            if not written:
                shape = {"descr": "<f4", "fortran_order": False, "shape": (count, vectors.shape[1])}
                np.lib.format.write_array_header_1_0(stream, shape)
            stream.write(vectors.tobytes())
            written += len(records)
            return
        if kind == "json":  # {id: answer}, one line each, as official scripts read it
            lines = (f"{_json(record[ID])}: {_json(record[bare])}" for record in records)
            text = (",\n" if written else "{\n") + ",\n".join(lines)
        elif kind == "csv":  # a header, then one line each; lists and objects are JSON in their cells
            text = csv_text(schema.names, ([_cell(record[name]) for name in schema.names] for record in records))
            text = text.partition("\n")[2] if written else text
        elif kind == "text":
            text = "".join(map(describe, records))
        else:
            text = "".join(_json(record) + "\n" for record in records)
        stream.write(text.encode())
        written += len(records)

    yield write
    if kind == "json":
        stream.write(b"\n}\n")


def _format_line(task: Inference, record: Record) -> str:
    texts = [" ".join(record[name].split()) for name in task.text_fields.values() if name in record]
    cut = [text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}…" for text in texts]
    return f"{replace_hidden('   '.join([task.describe(record), *cut]))}\n"


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _cell(value: object) -> object:
    return _json(value) if isinstance(value, list | dict) else value


def evaluate(
    entry: Entry, model: InferenceModel, path: Path, folder: Path, how: InferenceOptions, name: str = ""
) -> tuple[dict[str, Any], str]:
    """Evaluate `model` on the examples of the file `path` and write `folder`, completely or not at all.

    The folder contains report.html, metrics.json, predictions.json, scores.json (keyed by example hashes, for
    comparisons) and the additional files of this kind.

    Args:
        name: name of the model on the page; default: that of its folder.

    Returns:
        The content of metrics.json, and its official metrics as text for the terminal.

    Raises:
        InputError: unusable examples, or the folder exists.
        DeviceJobFailed: the model cannot run on this device.
    """
    kind = kind_of(entry)
    page = kind.report(entry)
    if folder.exists():
        raise InputError(f"{folder} already exists. Move it away, or pass another folder with --output")
    model, split = model.with_absolute_paths(), entry.development[0]
    reading = Interpretation(trained=read_training_columns(model.folder))
    with new_folder(folder) as made, scratch_checkout(entry, model):
        kind.inference(entry).write_labelled(path, entry.examples_file(split), reading)
        for line in describe_inputs({path.name: reading}):
            how.say(line)
        result = run_inference(kind.encoder(entry), model, split, how)
        about = {"Model": name or model.folder.name, "File": path.name, "Date": f"{date.today():%-d %B %Y}"}
        page = page.prepare(Path())
        view = replace(score_logits(page, development=[split]), about=about)
        predictions = artifacts.predictions_file(entry.name).name
        judged = {file.name: file for file in (*model.weights, path)} | {predictions: made / predictions}
        write_evaluation(page, view, made, {Path(name): file for name, file in judged.items()})
        write_text(made / SCORES, scores_json(page.scores, view.examples, view.predictions))
        metrics = {**view.metrics, "predict": {**prediction_figures(result), **prediction_measurements(result)}}
        write_json(made / METRICS, metrics)
    count = f"{format_count(metrics[page.scores.counted], f'{entry.record}s')} of {escape_name(path.name)}"
    trained = _count_trained(page.scores, model.folder, page.scores.keys(view.examples[split]))
    warning = f"{trained:,} of these are training examples of the model, and do not tell how it does on others"
    lines = [count, *format_scores(page.scores, metrics, view.baseline, split), *([warning] if trained else [])]
    return metrics, "\n".join(lines)


def _count_trained(scores: Scores, model: Path, keys: Sequence[str]) -> int:
    """Return how many examples the model of a run was trained on; 0 for other models, which do not record them, and if
    the training examples take more than WHOLE_BYTES."""
    folder = model.resolve()
    train = folder.parent.parent / artifacts.examples_file(folder.name, TRAIN)
    if not train.is_file() or train.stat().st_size > WHOLE_BYTES:
        return 0
    known = set(scores.keys(scores.read_examples(train)))
    return sum(key in known for key in keys)
