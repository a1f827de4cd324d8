"""Every format of text and of questions, through the stage to rows: the same content, the same rows."""

from __future__ import annotations

import csv
import html
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.corpus.corpus import make_corpus
from tasks.downstream.squad.examples import make_questions
from tasks.pretraining.rows.pretrain_rows import write_pretrain_rows
from tests.tasks.corpus.made_corpus import params as corpus_params
from tests.tasks.downstream.squad.question_files import as_flat, as_json_text, as_struct, write_table
from tests.tasks.downstream.squad.question_files import params as question_params
from tests.tasks.pretraining.row_inputs import (
    pretrain_params,
    random_texts,
    squad_params,
    squad_questions,
    word_tokenizer,
    write_squad_rows,
)

LENGTH = 48
Row = dict[str, str]


def arrow_bytes(rows: Path) -> list[bytes]:
    return [path.read_bytes() for path in sorted(rows.glob("*.arrow"))]


def wikitext(folder: Path, rows: list[Row]) -> dict[str, Any]:
    text = "".join(f" = {row['title']} = \n\n{row['text']}\n\n" for row in rows)
    (folder / "a.txt").write_text(text, encoding="utf-8")
    return {}


def wikiextractor(folder: Path, rows: list[Row]) -> dict[str, Any]:
    for number, row in enumerate(rows):
        body = html.escape(row["text"], quote=False)
        block = f'<doc id="{number}" url="u" title="{row["title"]}">\n{row["title"]}\n\n{body}\n\n</doc>\n'
        part = folder / f"AA/wiki_{number // 20:02d}"
        part.parent.mkdir(exist_ok=True)
        with part.open("a", encoding="utf-8") as stream:
            stream.write(block)
    return {}


def wikiextractor_json(folder: Path, rows: list[Row]) -> dict[str, Any]:
    lines = [
        json.dumps({"id": str(n), "title": row["title"], "text": html.escape(row["text"], quote=False)})
        for n, row in enumerate(rows)
    ]
    (folder / "AA").mkdir()
    (folder / "AA/wiki_00").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return {}


def jsonl(folder: Path, rows: list[Row]) -> dict[str, Any]:
    lines = [json.dumps({"key": n, "name": row["title"], "body": row["text"]}) + "\n" for n, row in enumerate(rows)]
    (folder / "a.jsonl").write_text("".join(lines), encoding="utf-8")
    return {"text_column": "body", "title_column": "name", "id_column": "key"}


def csv_table(folder: Path, rows: list[Row]) -> dict[str, Any]:
    with (folder / "a.csv").open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, ["title", "text"])
        writer.writeheader()
        writer.writerows(rows)
    return {}


def parquet(folder: Path, rows: list[Row]) -> dict[str, Any]:
    pq.write_table(pa.Table.from_pylist(list(rows)), folder / "train.parquet", row_group_size=7)
    return {}


def hub(folder: Path, rows: list[Row]) -> dict[str, Any]:
    parquet(folder, rows)
    return {"source": "hub", "dataset": str(folder)}


TEXT_FORMATS: list[Callable[[Path, list[Row]], dict[str, Any]]] = [
    wikitext,
    wikiextractor,
    wikiextractor_json,
    jsonl,
    csv_table,
    parquet,
    hub,
]


def documents() -> list[Row]:
    return [{"title": f"Title {number}", "text": text} for number, text in enumerate(random_texts(24))]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return word_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(scope="module")
def text_rows() -> dict[str, list[bytes]]:
    return {}


@pytest.mark.parametrize("write", TEXT_FORMATS, ids=lambda write: write.__name__)
def test_text_of_every_format_ends_in_the_same_rows(
    tmp_path: Path, tokenizer: Path, text_rows: dict[str, list[bytes]], write: Callable[..., dict[str, Any]]
) -> None:
    (tmp_path / "in").mkdir()
    values = {"path": str(tmp_path / "in"), **write(tmp_path / "in", documents())}
    make_corpus(corpus_params(**values), tmp_path / "corpus")
    rows = tmp_path / "rows"
    write_pretrain_rows(pretrain_params(LENGTH), "phase1", tmp_path / "corpus", tokenizer, rows, 1)
    text_rows[write.__name__] = arrow_bytes(rows)
    assert text_rows[write.__name__] == next(iter(text_rows.values()))


def squad_json(path: Path, rows: list[dict[str, Any]]) -> Path:
    paragraphs = [
        {"context": row["context"], "qas": [{key: row[key] for key in ("id", "question", "answers")}]} for row in rows
    ]
    path.write_text(json.dumps({"data": [{"title": "", "paragraphs": paragraphs}]}), encoding="utf-8")
    return path


def table_of(ending: str, form: Callable[[dict[str, Any]], dict[str, Any]]) -> Callable[..., Path]:
    def write(path: Path, rows: list[dict[str, Any]]) -> Path:
        return write_table(path.with_suffix(ending), [form(row) for row in rows])

    return write


QUESTION_FORMATS = {
    "squad": squad_json,
    "csv flat": table_of(".csv", as_flat),
    "csv json": table_of(".csv", as_json_text),
    "jsonl list": table_of(".jsonl", dict),
    "jsonl struct": table_of(".jsonl", as_struct),
    "parquet struct": table_of(".parquet", as_struct),
    "parquet flat": table_of(".parquet", as_flat),
    "hub": None,
}


@pytest.fixture(scope="module")
def question_rows() -> dict[str, list[bytes]]:
    return {}


@pytest.mark.parametrize("name", QUESTION_FORMATS)
def test_questions_of_every_format_end_in_the_same_rows(
    tmp_path: Path, tokenizer: Path, question_rows: dict[str, list[bytes]], name: str
) -> None:
    real = [row for row in squad_questions("new-wiki-dev.json") if len(row["context"]) < 700]
    rows = [{**row, "answers": row["answers"][:1]} for row in real[:24]]  # a flat table holds one answer
    write = QUESTION_FORMATS[name] or table_of(".parquet", as_struct)
    splits = {"train": write(tmp_path / "train.json", rows[:18])}
    splits["dev"] = write(tmp_path / "validation.json", rows[18:])
    values: dict[str, Any] = {f"{split}_path": str(path) for split, path in splits.items()}
    if name == "hub":
        values = {"source": "hub", "dataset": str(tmp_path)}
    make_questions(question_params(**values), tmp_path / "questions")
    made = tmp_path / "rows"
    settings = squad_params(row_length=LENGTH, doc_stride=8, max_question_length=16)
    write_squad_rows(settings, "train", tmp_path / "questions/train.parquet", tokenizer, made)
    question_rows[name] = arrow_bytes(made)
    assert question_rows[name] == next(iter(question_rows.values()))
