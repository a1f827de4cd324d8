"""Pieces of a corpus: the units in which documents are read, cleaned, removed by their text and written.

Any process may make any piece. Afterwards the pieces are joined (corpus.py), and the duplicates among all documents
removed from their files.
"""

import contextlib
import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from ipu_model.core.files import new_file, new_folder
from tasks.corpus import world
from tasks.corpus.documents import (
    Document,
    FilePiece,
    add_ids,
    document_columns,
    make_documents,
    plan_pieces,
    read_piece,
)
from tasks.corpus.duplicates import add_keys, make_keys
from tasks.corpus.quality import remove_documents
from tasks.params.schema import CorpusParams
from tasks.records.interpretation import Interpretation
from tasks.records.parquet import split_into_groups
from tasks.records.shards import mark_lines
from tasks.records.tables import Columns, RecordSpec, open_hub_split
from tasks.stage.parallel import StageProgress

SCHEMA = pa.schema([pa.field(name, pa.string(), nullable=False) for name in ("document_id", "title", "text")])
GROUP_DOCUMENTS, GROUP_CHARACTERS = 8192, 8 << 20
"""Limits of a row group; it closes at the first one reached."""
PART_CHARACTERS = 512 << 20
"""Approximate text per file; a piece is larger only if its source cannot be divided."""
DEMO_DOCUMENTS = 1 << 18
"""Generated documents of a piece, about 60 MB."""
EMPTY = "empty documents left out"
Piece = range | tuple[FilePiece, ...] | None
"""Numbers of generated documents, or files; None: a Hub data set, which is streamed by one process."""


class CorpusFile(NamedTuple):
    """A Parquet file of the corpus."""

    path: Path
    documents: int
    characters: int


class MadePiece(NamedTuple):
    """Result of a piece: a folder with its files and the keys of its documents."""

    folder: Path
    files: list[CorpusFile]
    reading: Interpretation


def list_pieces(params: CorpusParams, reading: Interpretation) -> Iterator[Piece]:
    """Yield the pieces of a corpus, which depend on the data only; `reading` gets the files that are ignored."""
    if params.source == "demo":
        starts = range(0, params.demo_documents, DEMO_DOCUMENTS)
        yield from (range(start, min(start + DEMO_DOCUMENTS, params.demo_documents)) for start in starts)
    elif params.source == "files":
        yield from plan_pieces(Path(params.path), params.layout, reading, choose_columns(params))
    elif params.source == "hub":
        yield None


def choose_columns(params: CorpusParams) -> Columns:
    """Return the columns of documents that the parameters state."""
    return document_columns(params.text_column, params.title_column, params.id_column)


@dataclass(frozen=True)
class PieceMaker:
    """Maker of the pieces of one corpus, in any process."""

    params: CorpusParams
    work: Path
    """Folder for the folders of the pieces; absolute."""
    progress: StageProgress

    def make(self, item: tuple[int, Piece]) -> MadePiece:
        """Make a piece, given its number.

        Raises:
            InputError: the source cannot be used.
        """
        number, piece = item
        folder, reading = self.work / f"{number:05d}", Interpretation()
        documents = _skip_empty(self._read(piece, reading), reading)
        with new_folder(folder, replace=False) as partial:
            files = self._write(remove_documents(documents, self.params.quality, reading), partial)
        return MadePiece(folder, [file._replace(path=folder / file.path.name) for file in files], reading)

    def _read(self, piece: Piece, reading: Interpretation) -> Iterator[Document]:
        params = self.params
        columns = choose_columns(params)
        if isinstance(piece, range):
            demo_documents = world.make_documents(params.seed, "corpus", len(piece), piece.start)
            yield from (
                Document(f"demo:{number}", document.title, document.text)
                for number, document in enumerate(demo_documents, piece.start)
            )
        elif piece is None:
            address = (params.dataset, params.dataset_config, params.dataset_split, params.dataset_revision)
            spec = RecordSpec("documents", [columns], (), class_names=False)
            rows, problems, _ = open_hub_split("corpus", address, spec, reading)
            documents = make_documents(rows, problems.source, columns, params.layout, reading)
            yield from add_ids(documents, str(params.dataset))
        else:
            for file in piece:
                yield from read_piece(file, columns, reading, params.separator)

    def _write(self, documents: Iterable[Document], folder: Path) -> list[CorpusFile]:
        files: list[CorpusFile] = []
        for has_sentences, group in itertools.groupby(documents, lambda document: document.has_sentences):
            files += self._write_alike(group, folder, len(files), SCHEMA.with_metadata(mark_lines(has_sentences)))
        return files

    def _write_alike(
        self, documents: Iterable[Document], folder: Path, first: int, schema: pa.Schema
    ) -> list[CorpusFile]:
        """Write documents whose lines have the same meaning; the number of their first file is `first`."""
        files: list[CorpusFile] = []
        with contextlib.ExitStack() as file:
            for group in split_into_groups(
                documents, lambda document: len(document.text), GROUP_DOCUMENTS, GROUP_CHARACTERS
            ):
                if not files or files[-1].characters >= PART_CHARACTERS:
                    file.close()
                    path = folder / f"{first + len(files):05d}.parquet"
                    writer = file.enter_context(pq.ParquetWriter(path, schema, compression="zstd"))
                    files.append(CorpusFile(path, 0, 0))
                columns = list(zip(*group, strict=True))[: len(schema)]
                table = pa.table([pa.array(values, pa.string()) for values in columns], schema=schema)
                writer.write_table(table, row_group_size=len(group))
                texts = [document.text for document in group]
                add_keys(folder, make_keys(texts, self.params.quality.near_duplicates))
                path, count, characters = files[-1]
                files[-1] = CorpusFile(path, count + len(group), characters + sum(map(len, texts)))
                self.progress.add(len(group))
        return files


def _skip_empty(documents: Iterable[Document], reading: Interpretation) -> Iterator[Document]:
    for document in documents:
        if document.text.strip():
            yield document
        else:
            reading.counts[EMPTY] += 1


def remove_rows(removed: Path, item: tuple[CorpusFile, int, Path]) -> CorpusFile:
    """Write the rest of a file of the corpus to another file.

    The file `removed` has a byte for each document of the corpus, not 0 for those to remove. `item` is the file, the
    number of its first document, and the file to write.
    """
    (path, documents, _), first, target = item
    keeps, characters, at = np.fromfile(removed, np.uint8, documents, offset=first) == 0, 0, 0
    with (
        new_file(target) as partial,
        pq.ParquetFile(path) as source,
        pq.ParquetWriter(partial, SCHEMA.with_metadata(source.schema_arrow.metadata), compression="zstd") as writer,
    ):
        for number in range(source.num_row_groups):
            group = source.read_row_group(number, use_threads=False)
            at, group = at + len(group), group.filter(pa.array(keeps[at : at + len(group)]))
            if len(group):
                writer.write_table(group, row_group_size=len(group))
                characters += pc.sum(pc.utf8_length(group["text"])).as_py()
    return CorpusFile(target, int(np.count_nonzero(keeps)), characters)


def read_document(files: Iterable[CorpusFile], number: int) -> Document:
    """Return a document of the corpus by its number."""
    for file in files:
        if number < file.documents:
            break
        number -= file.documents
    with pq.ParquetFile(file.path) as source:
        for group in range(source.num_row_groups):
            if number < (rows := source.metadata.row_group(group).num_rows):
                break
            number -= rows
        return Document(**source.read_row_group(group, use_threads=False).slice(number, 1).to_pylist()[0])
