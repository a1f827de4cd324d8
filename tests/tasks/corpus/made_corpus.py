"""Corpora made of files of a test, and what is in them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.corpus import pieces
from tasks.corpus.corpus import make_corpus
from tasks.corpus.documents import Document, document_columns, name_files, read_piece
from tasks.params.schema import CorpusParams
from tasks.records.interpretation import Interpretation
from tasks.stage.errors import InputError


def params(**values: Any) -> CorpusParams:
    return CorpusParams(**{"source": "files", "path": "nowhere", "seed": 1, "demo_documents": 20, **values})


def documents(folder: Path) -> list[tuple[str, str, str]]:
    """(id, title, text) of every document of a corpus folder."""
    table = pa.concat_tables([pq.read_table(part) for part in sorted(folder.glob("part-*.parquet"))])
    assert table.schema.equals(pieces.SCHEMA)
    return [tuple(row.values()) for row in table.to_pylist()]


def read(tmp_path: Path, path: Path, **values: Any) -> list[tuple[str, str, str]]:
    make_corpus(params(path=str(path), **values), tmp_path / "out")
    return documents(tmp_path / "out")


def documents_of(path: Path) -> list[tuple[str, str, str]]:
    return read(path.parent / "made", path)


def refusal(tmp_path: Path, path: Path, **values: Any) -> str:
    """The message of the refusal, after checking that nothing was left behind."""
    with pytest.raises(InputError) as caught:
        make_corpus(params(path=str(path), **values), tmp_path / "made" / "out")
    assert not list(tmp_path.glob("made/*")), "nothing half-written"
    return str(caught.value)


def write(path: Path, content: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def read_all(path: Path) -> list[Document]:
    """Return the documents of a file, or of the usable files of a folder."""
    columns, reading = document_columns("text"), Interpretation()
    files = name_files(path, "auto", reading, columns)
    return [document for file in files for document in read_piece(file, columns, reading)]
