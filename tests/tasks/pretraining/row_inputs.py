"""Small tokenizers, corpora and questions for the tests of row making, and rows read back plainly."""

import json
import random

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tokenizers import BertWordPieceTokenizer, Tokenizer

from tasks.downstream.packed_rows import write_rows
from tasks.downstream.squad.params import SquadRowsParams
from tasks.params.sections import Phase2RowsParams, PhaseRowsParams, PretrainRowsParams
from tests.places import SHARED
from tests.tasks.downstream.entries import task_with

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
PAD, UNK, CLS, SEP, MASK = range(5)
WORDS = [f"{first}{second}" for first in "bdfgklmnpr" for second in ("a", "e", "i", "o", "u", "an", "en", "in", "on")]
LETTERS = "abcdefghijklmnopqrstuvwxyz"


def real_data(name):
    """A file of the shared test data; skips the test where it is not at hand."""
    path = SHARED / "data" / name
    if not path.is_file():
        pytest.skip(f"{path} is not here: this test reads real input that is not part of the project")
    return path


def save_tokenizer(folder, vocabulary, lowercase=True):
    """A folder with the tokenizer.json of a WordPiece tokenizer."""
    folder.mkdir(parents=True, exist_ok=True)
    entries = {token: index for index, token in enumerate(vocabulary)}
    BertWordPieceTokenizer(entries, lowercase=lowercase).save(str(folder / "tokenizer.json"))
    return folder


def word_tokenizer(folder):
    """Every word of WORDS and every letter is an entry, special tokens 0..4."""
    pieces = [f"##{sign}" for sign in f"{LETTERS}0123456789"]
    return save_tokenizer(folder, [*SPECIAL, *dict.fromkeys([*".,?!'\"()[]0123456789-", *LETTERS, *pieces, *WORDS])])


def bert_tokenizer(folder):
    return save_tokenizer(folder, real_data("vocab/bert-base-uncased.txt").read_text("utf-8").split("\n")[:-1])


def tokenizer_of(folder):
    return Tokenizer.from_file(str(folder / "tokenizer.json"))


def random_texts(documents, seed=0, sentences=(1, 8)):
    """Documents of sentences of 3 to 12 words and a full stop, some in two paragraphs."""
    draw = random.Random(seed)
    texts = []
    for _ in range(documents):
        made = [
            " ".join(draw.choice(WORDS) for _ in range(draw.randint(3, 12))).capitalize() + "."
            for _ in range(draw.randint(*sentences))
        ]
        middle = draw.randint(0, len(made))
        texts.append("\n".join(filter(None, [" ".join(made[:middle]), " ".join(made[middle:])])))
    return texts


def write_corpus(folder, texts, rows_per_group=1000):
    folder.mkdir(parents=True, exist_ok=True)
    ids = [str(number) for number in range(len(texts))]
    schema = pa.schema([(name, pa.string()) for name in ("document_id", "title", "text")])
    table = pa.table([ids, ids, list(texts)], schema=schema)
    pq.write_table(table, folder / "part-00000.parquet", row_group_size=rows_per_group)
    return folder


def write_questions(path, questions):
    path.parent.mkdir(parents=True, exist_ok=True)
    answer = pa.struct([("text", pa.string()), ("answer_start", pa.int32())])
    texts = [(name, pa.string()) for name in ("id", "title", "context", "question")]
    schema = pa.schema([*texts, ("answers", pa.list_(answer))])
    pq.write_table(pa.Table.from_pylist(list(questions), schema=schema), path)
    return path


def squad_questions(name):
    """The questions of a SQuAD v1.1 file of the shared data, flat."""
    return [
        {"title": "", "context": paragraph["context"], **{key: asked[key] for key in ("id", "question", "answers")}}
        for article in json.loads(real_data(f"squad/{name}").read_text("utf-8"))["data"]
        for paragraph in article["paragraphs"]
        for asked in paragraph["qas"]
    ]


def pretrain_params(row_length=64, **changes):
    """Both phases alike; `changes` to any key of the section or of its phases."""
    phase = {"row_length": row_length, "duplicates": 1}
    section = {"seed": 3, "max_sequences_per_row": 3, "held_out_fraction": 0.0}
    for key, value in changes.items():
        (phase if key in PhaseRowsParams.model_fields else section)[key] = value
    return PretrainRowsParams(**section, phase1=PhaseRowsParams(**phase), phase2=Phase2RowsParams(**phase))


def squad_params(**changes):
    return SquadRowsParams(**{"held_out_fraction": 0.0, **changes})


def write_squad_rows(params, split, source, tokenizer, folder):
    return write_rows(task_with("squad", "encoder", rows=params), split, source, tokenizer, folder)


def read_rows(folder):
    """Every column of a row folder as [rows, width], read with pyarrow alone."""
    tables = [pa.ipc.open_file(pa.memory_map(str(path))).read_all() for path in sorted(folder.glob("rows-*.arrow"))]
    table = pa.concat_tables(tables).combine_chunks()
    return {
        name: np.array(table[name].combine_chunks().flatten()).reshape(len(table), -1) for name in table.column_names
    }


def spread_labels(rows):
    """The label of each token of rows, [rows, row_length]; -100 where it is not masked."""
    labels = np.full(rows["input_ids"].shape, -100)
    row, slot = np.nonzero(rows["masked_labels"] != -100)
    labels[row, rows["masked_positions"][row, slot]] = rows["masked_labels"][row, slot]
    return labels


def unmask(rows):
    """The token ids of rows, [rows, row_length], with the masked ones put back."""
    labels = spread_labels(rows)
    return np.where(labels == -100, rows["input_ids"], labels)


def folder_bytes(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


GOLDEN = bytes.fromhex(
    "cb000000000000008461617b0ac8010a1d0a146e6578745f73656e74656e63655f6c6162656c7312051a030a01010a180a0a696e7075745f6d"
    "61736b120a1a080a060101010101000a190a0b7365676d656e745f696473120a1a080a060000000101000a170a0d6d61736b65645f6c6d5f69"
    "647312061a040a0209000a210a116d61736b65645f6c6d5f77656967687473120c120a0a080000803f000000000a170a09696e7075745f6964"
    "73120a1a080a060207040803000a1d0a136d61736b65645f6c6d5f706f736974696f6e7312061a040a020200e7c951aa"
)
"""One record of the features of create_pretraining_data, written by the package `tfrecord` 1.14.6."""
