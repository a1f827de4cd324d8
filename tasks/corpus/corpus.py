"""Stage `corpus`: the pre-training text as Parquet files of (document_id, title, text).

    python -m tasks.corpus.corpus

`demo` generates an invented world, `files` reads the user's files, `hub` streams a data set with the `datasets`
library; `none` is for pre-training data that were prepared elsewhere (pretrain_rows.source). Documents are streamed:
memory grows by eight bytes per document only. corpus.quality removes documents by their text (quality.py) and those
that repeat an earlier one (duplicates.py). Documents left out or changed are counted in reading.json.
"""

import array
import contextlib
import logging
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from ipu_model.files import new_folder
from tasks.corpus import world
from tasks.corpus.documents import Document, add_ids, document_columns, make_documents, read_files
from tasks.corpus.duplicates import RULES, DuplicateFinder, make_keys
from tasks.corpus.quality import quote, remove_documents
from tasks.params.schema import CorpusParams, load_sections
from tasks.params.sections import QualityParams
from tasks.plan.main import run_main
from tasks.records.parquet import read_batches, split_into_groups, write_records
from tasks.records.tables import RecordSpec, list_empty, open_hub_split
from tasks.records.text_files import SHOWN_NAMES, ReadLog, count_repetitions, write_reading
from tasks.stage import artifacts, streams
from tasks.stage.errors import InputError
from tasks.stage.parallel import StageProgress
from tasks.stage.process import parse_no_arguments

SCHEMA = pa.schema([pa.field(name, pa.string(), nullable=False) for name in ("document_id", "title", "text")])
GROUP_DOCUMENTS, GROUP_CHARACTERS = 8192, 8 << 20
"""Limits of a row group; it closes at the first one reached."""
PART_CHARACTERS = 512 << 20
"""Approximate text per file."""
READ_AT_ONCE = 256
"""Documents decoded from Parquet at a time."""
EMPTY = "empty documents left out"
REPEATED = "duplicate documents, kept"


@dataclass
class CorpusSummary:
    """Size of a written corpus, and the report of its reading."""

    reading: ReadLog
    documents: int = 0
    characters: int = 0
    parts: int = 0


def make_corpus(params: CorpusParams, output: Path) -> CorpusSummary:
    """Write the corpus described by `params` to the folder `output`, atomically.

    Raises:
        InputError: the source cannot be used, or no document has text.
    """
    summary = CorpusSummary(reading := ReadLog())
    with new_folder(output) as folder:
        documents = remove_documents(_skip_empty(read_documents(params, reading), reading), params.quality, reading)
        if params.quality.removes_duplicates:
            documents = _remove_duplicates(documents, params.quality, folder, reading)
        _write(_count_repeated(documents, reading), folder, summary)
        if not summary.documents:
            if reading.examples:
                removed = ", ".join(f"{reading.counts[what]:,} {what}" for what in sorted(reading.examples))
                raise InputError(f"the rules of corpus.quality leave no document ({removed}). Relax them")
            raise InputError(
                f"no text found ({reading.counts[EMPTY]} empty documents){list_empty(reading)}. Check corpus.path, "
                "corpus.text_column and corpus.layout"
            )
        write_reading(folder, params.source, reading)
    return summary


def read_documents(params: CorpusParams, reading: ReadLog) -> Iterator[Document]:
    """Yield the documents of the corpus described by `params`, including those without text; fill `reading`."""
    columns = document_columns(params.text_column, params.title_column, params.id_column)
    if params.source == "demo":
        for number, made in enumerate(world.make_documents(params.seed, "corpus", params.demo_documents)):
            yield Document(f"demo:{number}", made.title, made.text)
    elif params.source == "files":
        yield from read_files(Path(params.path), columns, params.layout, reading, params.separator)
    elif params.source == "hub":
        address = (params.dataset, params.dataset_config, params.dataset_split, params.dataset_revision)
        spec = RecordSpec("documents", [columns], (), class_names=False)
        rows, problems, _ = open_hub_split("corpus", address, spec, reading)
        yield from add_ids(make_documents(rows, problems.source, reading), str(params.dataset))


def _write(documents: Iterable[Document], folder: Path, summary: CorpusSummary) -> None:
    progress, writer, in_part = StageProgress("corpus", "documents"), None, 0
    with contextlib.ExitStack() as part:
        for group in split_into_groups(documents, _length, GROUP_DOCUMENTS, GROUP_CHARACTERS):
            if writer is None or in_part >= PART_CHARACTERS:
                part.close()
                path = folder / f"part-{summary.parts:05d}.parquet"
                writer = part.enter_context(pq.ParquetWriter(path, SCHEMA, compression="zstd"))
                summary.parts, in_part = summary.parts + 1, 0
            table = pa.table([pa.array(values, pa.string()) for values in zip(*group, strict=True)], schema=SCHEMA)
            writer.write_table(table, row_group_size=len(group))
            characters = sum(len(document.text) for document in group)
            in_part += characters
            summary.characters += characters
            summary.documents += len(group)
            progress.update(summary.documents)


def _length(document: Document) -> int:
    return len(document.text)


def _skip_empty(documents: Iterable[Document], reading: ReadLog) -> Iterator[Document]:
    for document in documents:
        if document.text.strip():
            yield document
        else:
            reading.counts[EMPTY] += 1


def _count_repeated(documents: Iterable[Document], reading: ReadLog) -> Iterator[Document]:
    seen = array.array("q")
    for document in documents:
        seen.append(hash(document.text))
        yield document
    reading.counts[REPEATED] += count_repetitions(seen)


def _remove_duplicates(
    documents: Iterable[Document], params: QualityParams, folder: Path, reading: ReadLog
) -> Iterator[Document]:
    """Yield the documents that repeat no earlier one; all of them are in a file in `folder` before the first one."""
    with tempfile.TemporaryDirectory(dir=folder) as work:
        path, finder = Path(work) / "documents.parquet", DuplicateFinder(params, Path(work))

        def add_keys() -> Iterator[Document]:
            for group in split_into_groups(documents, _length, GROUP_DOCUMENTS, GROUP_CHARACTERS):
                finder.add(make_keys([document.text for document in group], params.near_duplicates))
                yield from group

        write_records(add_keys(), path, SCHEMA, GROUP_DOCUMENTS, _length, GROUP_CHARACTERS)
        removed, examples = finder.find()
        earlier: dict[int, str] = {}
        batches = read_batches(path, SCHEMA.names, READ_AT_ONCE, "corpus")
        rows = (row for batch in batches for row in zip(*(column.to_pylist() for column in batch.columns), strict=True))
        for number, document in enumerate(map(Document._make, rows)):
            for rule, (first, later) in examples.items():
                if number == first:
                    earlier[first] = quote(document)
                elif number == later:
                    reading.add_example(f"removed, {rule}", f"{quote(document)} repeats {earlier[first]}", 0)
            if removed[number]:
                reading.counts[f"removed, {RULES[removed[number]]}"] += 1
            else:
                yield document


def main() -> None:
    parse_no_arguments("Read, fetch or generate the corpus.")
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    params: CorpusParams = load_sections("corpus").corpus
    started_at = time.perf_counter()
    summary = make_corpus(params, artifacts.CORPUS)
    print(
        f"corpus ({params.source}): {summary.documents:,} documents, {summary.characters / 1e6:.1f} M characters, "
        f"{summary.parts} files{''.join(f', {part}' for part in summary.reading.summary())}, "
        f"{time.perf_counter() - started_at:.1f} s"
    )
    for text in summary.reading.remarks[:SHOWN_NAMES]:
        streams.note(text)  # even where the stage's output is hidden


if __name__ == "__main__":
    run_main(main)
