"""Small data sets that are valid, to be damaged one thing at a time, and what is judged of them."""

import functools

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ipu_model.core.files import sha256_of
from tasks.downstream.squad.checks import AnswerRows
from tasks.downstream.squad.schemas import FEATURES_SCHEMA
from tasks.params.schema import load_params
from tasks.rows.row_files import row_schema
from tasks.stage.row_folders import Manifest
from tasks.validation.pretraining_checks import SCHEMA, PretrainRows
from tasks.validation.row_checks import RowSource
from tasks.validation.validate import validate_data
from tasks.validation.validators import GxValidator
from tests.places import ROOT
from tests.tasks.pretraining.row_inputs import SPECIAL, save_tokenizer

CLS, SEP, VOCABULARY = 2, 3, 40
ROW_LENGTH, MAX_SEQUENCES, MAX_PREDICTIONS, MAX_POSITIONS = 16, 2, 3, 8
LIMITS = load_params(ROOT / "params.yaml").validate_.model_copy(
    update={"min_documents": 12, "max_control_share": 0.01, "max_document_characters": 1000}
)


def corpus_columns():
    return {
        "document_id": [f"doc-{i}" for i in range(12)],
        "title": [f"Town {i}" for i in range(12)],
        "text": [f"The town number {i} lies by a river. It was founded in {1200 + i}." for i in range(12)],
    }


def write_corpus(folder, columns, schema=SCHEMA):
    """Two files, seven documents in the first."""
    folder.mkdir(parents=True, exist_ok=True)
    table = pa.table(columns, schema=schema)
    pq.write_table(table.slice(0, 7), folder / "part-00000.parquet")
    pq.write_table(table.slice(7), folder / "part-00001.parquet")
    return folder


def write_tokenizer(folder):
    return save_tokenizer(folder, [*SPECIAL, *(f"word{i}" for i in range(VOCABULARY - len(SPECIAL)))])


ABSENT = {
    **dict.fromkeys(("cls_positions", "feature_ids"), -1),
    **dict.fromkeys(("masked_labels", "next_sentence_labels", "start_positions", "end_positions"), -100),
}


def row_columns(kind, rows=4):
    """Rows of a sequence of 8 tokens, [CLS] a a a [SEP] b b [SEP], and one of 6, [CLS] a a [SEP] b [SEP]; the last row
    has only the first."""
    pad = [0] * (ROW_LENGTH - 14)
    row = {
        "input_ids": [CLS, 10, 11, 12, SEP, 13, 14, SEP, CLS, 20, 21, SEP, 22, SEP, *pad],
        "token_type_ids": [0] * 5 + [1] * 3 + [0] * 4 + [1] * 2 + pad,
        "position_ids": [*range(8), *range(6), *pad],
        "sequence_ids": [1] * 8 + [2] * 6 + pad,
        "cls_positions": [0, 8],
    }
    if kind == "pretrain":
        row |= {"masked_positions": [2, 9, 0], "masked_labels": [15, 25, -100], "next_sentence_labels": [0, 1]}
    else:
        row |= {"start_positions": [5, 12], "end_positions": [6, 12]}
    columns = {name: np.tile(np.array(values), (rows, 1)) for name, values in row.items()}
    if kind != "pretrain":
        columns["feature_ids"] = np.arange(2 * rows).reshape(rows, 2)
    for name, values in columns.items():
        if values.shape[1] == ROW_LENGTH:
            values[-1, 8:] = 0
        else:
            values[-1, 1] = ABSENT.get(name, 0)
    return columns


def window_columns(rows=4):
    """The windows of `row_columns`, in order."""
    numbers = range(2 * rows - 1)
    return {
        "feature_id": [*numbers],
        "example_id": [f"train-{i}" for i in numbers],
        "example_index": [*numbers],
        "n_tokens": [6 if i % 2 else 8 for i in numbers],
        "context_start": [4 if i % 2 else 5 for i in numbers],
        "offsets": [[0, 1] * (1 if i % 2 else 2) for i in numbers],
    }


def write_rows(folder, kind, columns, tokenizer, windows=None, **manifest):
    """Rows in two files, the last row in the second, with a manifest counted from the undamaged rows; `manifest`
    replaces entries of it."""
    folder.mkdir(parents=True, exist_ok=True)
    predictions = MAX_PREDICTIONS if kind == "pretrain" else 0
    shape = (kind, ROW_LENGTH, MAX_SEQUENCES, predictions, VOCABULARY)
    schema, n = row_schema(*shape), len(columns["input_ids"])
    files = {"rows-00000.arrow": n - 1, "rows-00001.arrow": 1} if n > 1 else {"rows-00000.arrow": n}
    for (name, count), first in zip(files.items(), (0, n - 1), strict=False):
        arrays = [
            pa.FixedSizeListArray.from_arrays(
                pa.array(columns[field.name][first : first + count].reshape(-1), field.type.value_type),
                type=field.type,
            )
            for field in schema
        ]
        with pa.ipc.new_file(str(folder / name), schema) as writer:
            writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=schema))
    counted = {"rows": n, "sequences": 2 * n - 1 if n else 0, "real_tokens": 14 * n - 6 if n else 0, "files": files}
    names = ("kind", "row_length", "max_sequences", "max_predictions", "vocab_size")
    values = {**dict(zip(names, shape, strict=True)), "seed": 1, **counted, **manifest}
    made = Manifest(**{"tokenizer_sha256": sha256_of(tokenizer / "tokenizer.json"), **values})
    (folder / "manifest.json").write_text(made.to_json(), encoding="utf-8")
    if windows is not None:
        pq.write_table(pa.table(windows, schema=FEATURES_SCHEMA), folder / "features.parquet")
    return folder


def failed_checks(verdict):
    assert verdict["valid"] == all(check["ok"] for check in verdict["checks"])
    return [check["name"] for check in verdict["checks"] if not check["ok"]]


@functools.cache
def gx():
    return GxValidator()


def validate(data, judge=None):
    return validate_data(data, judge or gx()).verdict


def judged_rows(folder, tokenizer, name="phase1", columns=None, windows=None, masked=0.15, **manifest):
    """The verdict on sound rows, or on `columns`, `windows` and entries of the manifest in their place."""
    kind = "question_answering" if name.startswith("squad") else "pretrain"
    columns = row_columns(kind) if columns is None else columns
    if kind == "question_answering" and windows is None:
        windows = window_columns(len(columns["input_ids"]))
    write_rows(folder / name, kind, columns, tokenizer, windows, **manifest)
    if kind == "pretrain":
        return validate(pretrain_data(folder / name, tokenizer, masked=masked))
    return validate(AnswerRows(source_of(folder / name, tokenizer, "squad_rows", training=name == "squad-train")))


def source_of(folder, tokenizer, section="rows", max_positions=MAX_POSITIONS, **more):
    return RowSource(folder.name, folder, tokenizer, section, max_positions, **more)


def pretrain_data(folder, tokenizer, max_positions=MAX_POSITIONS, masked=0.15, **more):
    return PretrainRows(source_of(folder, tokenizer, f"pretrain_rows.{folder.name}", max_positions, **more), masked)
