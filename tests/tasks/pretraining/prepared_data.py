"""Prepared pre-training data in the layouts of others, made from this project's own rows of one sequence each."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import pyarrow as pa

from tasks.pretraining.rows.prepared_files import _example_class
from tasks.pretraining.rows.pretrain_rows import write_pretrain_rows
from tests.tasks.pretraining.row_inputs import pretrain_params, read_rows, write_corpus

Sequences = dict[str, list[Any]]
LENGTH = 48


def own_rows(folder: Path, texts: list[str], tokenizer: Path) -> Path:
    """Rows of LENGTH tokens that hold one sequence each, as this project makes them of `texts`."""
    corpus = write_corpus(folder / "corpus", texts)
    params = pretrain_params(LENGTH, max_sequences_per_row=1)
    write_pretrain_rows(params, "phase1", corpus, tokenizer, folder / "own", 1)
    return folder / "own"


def hub_columns(rows: Path, ignored: int = -100) -> Sequences:
    """The columns of Graphcore/wikipedia-bert-128 from rows of one sequence each."""
    columns = read_rows(rows)
    labels = np.full(columns["input_ids"].shape, ignored, np.int64)
    row, slot = np.nonzero(columns["masked_labels"] != -100)
    labels[row, columns["masked_positions"][row, slot]] = columns["masked_labels"][row, slot]
    return {
        "input_ids": columns["input_ids"].tolist(),
        "token_type_ids": columns["token_type_ids"].tolist(),
        "attention_mask": (columns["sequence_ids"] > 0).astype(int).tolist(),
        "labels": labels.tolist(),
        "next_sentence_label": columns["next_sentence_labels"][:, 0].tolist(),
    }


def google_features(rows: Path) -> list[dict[str, list[float]]]:
    """What create_pretraining_data writes for each of these rows."""
    columns = read_rows(rows)
    used = columns["masked_labels"] != -100
    features = {
        "input_ids": columns["input_ids"],
        "input_mask": (columns["sequence_ids"] > 0).astype(int),
        "segment_ids": columns["token_type_ids"],
        "masked_lm_positions": columns["masked_positions"],
        "masked_lm_ids": np.where(used, columns["masked_labels"], 0),
        "masked_lm_weights": used.astype(float),
        "next_sentence_labels": columns["next_sentence_labels"][:, :1],
    }
    return [{name: values[n].tolist() for name, values in features.items()} for n in range(len(used))]


def tfrecord(examples: list[dict[str, list[float]]]) -> bytes:
    """A file of these examples; floats become a float_list."""
    content = b""
    for features in examples:
        example = _example_class()()
        for name, values in features.items():
            kind = "float_list" if values and isinstance(values[0], float) else "int64_list"
            getattr(example.features.feature[name], kind).value.extend(values)
        record = example.SerializeToString()
        length = struct.pack("<Q", len(record))
        content += length + _crc(length) + record + _crc(record)
    return content


def _crc(content: bytes) -> bytes:
    crc = google_crc32c.value(content)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def table(columns: Sequences, kind: pa.DataType | None = None) -> pa.Table:
    lists = pa.list_(kind or pa.int32())
    return pa.table(
        {name: pa.array(values, lists if isinstance(values[0], list) else None) for name, values in columns.items()}
    )
