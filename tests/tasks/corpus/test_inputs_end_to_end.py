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
from tests.tasks.corpus.made_corpus import documents
from tests.tasks.corpus.made_corpus import params as corpus_params
from tests.tasks.pretraining.row_inputs import random_texts

Row = dict[str, str]


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


@pytest.mark.parametrize("write", TEXT_FORMATS, ids=lambda write: write.__name__)
def test_text_of_every_format_is_the_same_corpus(tmp_path: Path, write: Callable[..., dict[str, Any]]) -> None:
    rows = [{"title": f"Title {number}", "text": text} for number, text in enumerate(random_texts(24))]
    (tmp_path / "in").mkdir()
    make_corpus(corpus_params(**{"path": str(tmp_path / "in"), **write(tmp_path / "in", rows)}), tmp_path / "corpus")
    found = [{"title": title, "text": text} for _, title, text in documents(tmp_path / "corpus")]
    assert found == rows
