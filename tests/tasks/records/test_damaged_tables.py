"""Tables and records with damaged bytes: a reader ends well, or with an error of our tree."""

from __future__ import annotations

import gzip
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.pretraining.rows import prepared_files
from tasks.pretraining.rows.prepared_files import read_prepared_batches
from tasks.pretraining.rows.prepared_sequences import RowLimits, validate_and_unpad
from tasks.records.interpretation import Interpretation
from tasks.stage.errors import PodiumError
from tests.fuzzing import damaged_bytes, require_clean
from tests.tasks.corpus.made_corpus import read_all
from tests.tasks.pretraining.row_inputs import GOLDEN, pretrain_params, word_tokenizer

COUNT = 60
TEXTS = pa.table({"title": ["Ada", None, "é"] * 9, "text": ["She came.", "", "Then\nwent."] * 9})
SEQUENCES = pa.table(
    {
        "input_ids": [[2, 7, 4, 8, 3, 0]] * 9,
        "token_type_ids": [[0, 0, 0, 1, 1, 0]] * 9,
        "attention_mask": [[1, 1, 1, 1, 1, 0]] * 9,
        "labels": [[-100, -100, 9, -100, -100, -100]] * 9,
        "next_sentence_label": [1] * 9,
    }
)


def parquet(table: pa.Table) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink)
    return sink.getvalue()


def arrow(table: pa.Table, new: Any) -> bytes:
    sink = io.BytesIO()
    with new(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


def as_documents(path: Path) -> Any:
    return read_all(path)


def as_sequences(path: Path) -> Any:
    from tasks.vocabulary.encoding import load_tokenizer, read_tokenizer_info

    limits = RowLimits(read_tokenizer_info(load_tokenizer(path.parent / "tokenizer")), 16, 4, "pretrain_rows.phase1")
    found = read_prepared_batches(
        pretrain_params(path=str(path)).phase1, "files", "pretrain_rows.phase1", Interpretation()
    )
    return [validate_and_unpad(one, limits) for one in found]


GOOD: dict[str, tuple[bytes, Callable[[Path], Any]]] = {
    "text.parquet": (parquet(TEXTS), as_documents),
    "text.csv": (b'id,title,text\n1,Ada,"She came,\nand went."\n2,Bo,Then.\n', as_documents),
    "rows.parquet": (parquet(SEQUENCES), as_sequences),
    "stream.arrow": (arrow(SEQUENCES, pa.ipc.new_stream), as_sequences),
    "file.arrow": (arrow(SEQUENCES, pa.ipc.new_file), as_sequences),
    "rows.tfrecord": (GOLDEN, as_sequences),
    "rows.tfrecord.gz": (gzip.compress(GOLDEN, mtime=0), as_sequences),
}


@pytest.mark.parametrize("name", GOOD)
def test_damaged_bytes(tmp_path: Path, name: str) -> None:
    content, read = GOOD[name]
    word_tokenizer(tmp_path / "tokenizer")
    path = tmp_path / name
    path.write_bytes(content)
    assert read(path)
    for what, damaged in damaged_bytes(content, COUNT):
        path.write_bytes(damaged)
        require_clean(lambda: read(path), what, PodiumError)


def test_an_example_of_text_is_refused(tmp_path: Path) -> None:
    example = prepared_files._example_class()()
    example.features.feature["input_ids"].bytes_list.value.append(b"x")
    with pytest.raises(PodiumError, match="must be whole numbers, found bytes_list"):
        prepared_files._read_integers(example.features.feature["input_ids"], "a.tfrecord, record 0, input_ids")
