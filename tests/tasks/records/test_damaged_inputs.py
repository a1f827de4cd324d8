"""Whatever a file of the user or of the Hub holds, a reader ends well or with an error of ours."""

import gzip
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.downstream.squad.ask import find_model
from tasks.downstream.squad.params import SquadDataParams
from tasks.downstream.squad.questions import read_question_file
from tasks.downstream.squad.score_files import read_predictions
from tasks.params.overlays import resolve
from tasks.params.schema import load_params
from tasks.params.strict_yaml import read_yaml
from tasks.pretraining.rows.prepared_files import read_prepared_batches
from tasks.pretraining.rows.prepared_sequences import RowLimits, validate_and_unpad
from tasks.records.interpretation import Interpretation
from tasks.release.provenance import read_json
from tasks.stage.errors import ParamsError, PodiumError
from tasks.vocabulary.encoding import load_tokenizer, read_tokenizer_info
from tasks.vocabulary.hub_tokenizer import read_vocabulary
from tests.fuzzing import damaged_bytes, damaged_json, require_clean
from tests.places import ROOT as PROJECT
from tests.tasks.corpus.made_corpus import read_all
from tests.tasks.downstream.squad.question_files import qa, squad
from tests.tasks.pretraining.row_inputs import GOLDEN, pretrain_params, word_tokenizer
from tests.tasks.tiny_model import write_tiny_model

COUNT, TABLE_COUNT = 90, 60
QUESTION = {"id": "1", "context": "Ada came.", "question": "Who?", "answers": {"text": ["Ada"], "answer_start": [0]}}
TRAIN_PATH = "downstream.squad.data.train_path"


def read_questions(path: Path) -> Any:
    return read_question_file(path, TRAIN_PATH, SquadDataParams(), Interpretation())


GATE = {"accepted": True, "reasons": ["none"], "metrics": {"f1": 90.0}}
READERS: dict[str, tuple[Any, int, Callable[[Path], Any]]] = {
    "questions.json": (squad(qa(answers=[("Ants", 0)])), COUNT, read_questions),
    "predictions.json": ({"1": "Ada", "2": ""}, COUNT, read_predictions),
    "metrics.json": (GATE, COUNT, lambda path: read_json(path, "dvc repro")),
    "questions.jsonl": (QUESTION, COUNT, read_questions),
    "wiki_00": ({"id": "1", "title": "Ada", "text": "Ada\n\nShe came."}, COUNT, read_all),
    "text.jsonl": ({"text": "Ada came.", "title": "t"}, COUNT, read_all),
    "params.yaml": (read_yaml(PROJECT / "params.yaml"), COUNT // 9, load_params),  # JSON is YAML
}
"""File -> values in it, how often they are damaged, and who reads it."""
VOCABULARY = b"[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nada\n##s\n"
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


def read_sequences(path: Path) -> Any:
    limits = RowLimits(read_tokenizer_info(load_tokenizer(path.parent / "tokenizer")), 16, 4, "pretrain_rows.phase1")
    phase = pretrain_params(path=str(path)).phase1
    batches = read_prepared_batches(phase, "files", "pretrain_rows.phase1", Interpretation())
    return [validate_and_unpad(batch, limits) for batch in batches]


TABLES: dict[str, tuple[bytes, Callable[[Path], Any]]] = {
    "text.parquet": (parquet(TEXTS), read_all),
    "vocab.txt": (VOCABULARY, lambda path: read_vocabulary(path, "tokenizer.path")),
    "text.csv": (b'id,title,text\n1,Ada,"She came,\nand went."\n2,Bo,Then.\n', read_all),
    "rows.parquet": (parquet(SEQUENCES), read_sequences),
    "stream.arrow": (arrow(SEQUENCES, pa.ipc.new_stream), read_sequences),
    "file.arrow": (arrow(SEQUENCES, pa.ipc.new_file), read_sequences),
    "rows.tfrecord": (GOLDEN, read_sequences),
    "rows.tfrecord.gz": (gzip.compress(GOLDEN, mtime=0), read_sequences),
}


@pytest.mark.parametrize("name", READERS)
def test_json_from_outside(tmp_path: Path, name: str) -> None:
    good, count, read = READERS[name]
    path = tmp_path / name
    for what, content in damaged_json(good, count):
        path.write_bytes(content)
        require_clean(lambda: read(path), what, PodiumError)


@pytest.mark.parametrize("name", TABLES)
def test_tables(tmp_path: Path, name: str) -> None:
    content, read = TABLES[name]
    word_tokenizer(tmp_path / "tokenizer")
    path = tmp_path / name
    path.write_bytes(content)
    assert read(path)
    for what, damaged in damaged_bytes(content, TABLE_COUNT):
        path.write_bytes(damaged)
        require_clean(lambda: read(path), what, PodiumError)


@pytest.mark.parametrize("name", ["../params", "../../etc/x", "/etc/passwd", "", ".", "a/b", "..", "x" * 5000, "a\0b"])
def test_a_preset_is_one_of_the_folder_and_no_path(name: str) -> None:
    with pytest.raises(ParamsError, match="is not known"):
        resolve({}, name, [], PROJECT / "presets")


def test_the_folder_of_a_published_model(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path / "model", ["a", "b"], 0)
    for name in ("config.json", "tokenizer_config.json"):
        good = (folder / name).read_bytes()
        for what, content in damaged_json(json.loads(good), COUNT // 3):
            (folder / name).write_bytes(content)
            require_clean(lambda: find_model(str(folder)), f"{name}, {what}", PodiumError)
        (folder / name).write_bytes(good)
