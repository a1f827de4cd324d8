"""The corpus stage on the user's own files: what is read, what is dropped, what is refused and how."""

from __future__ import annotations

import html
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.corpus import pieces
from tasks.corpus.corpus import make_corpus
from tasks.records import text_files
from tasks.stage.errors import InputError
from tests.hub_server import HubServer
from tests.places import ROOT
from tests.tasks.corpus.made_corpus import documents, params, read, refusal, write
from tests.tasks.pretraining.row_inputs import random_texts

ARTICLES: list[tuple[str, str, list[tuple[str, str]]]] = [
    (
        "auto",
        " \n = Ant = \n \n It digs . \n = = Nest = = \n \n It is deep . \n = = = Queen = = = \n\n"
        " = Bee = \n\n It hums . \n",
        [("Ant", "It digs .\nIt is deep ."), ("Bee", "It hums .")],
    ),
    ("auto", "= Ant =\n\nIt digs.\n\n== Nest ==\n\nIt is deep.\n", [("Ant", "It digs.\nIt is deep.")]),
    ("auto", "\ufeff = Ant = \n\nIt digs.\n = Bee = \n", [("Ant", "It digs.")]),
    ("wikitext", "Preface.\n\n = Empty = \n\n = Bee = \n\nIt hums.\n", [("", "Preface."), ("Bee", "It hums.")]),
    ("auto", " = Ant = \n\nIt digs.\n", [("", "= Ant ="), ("", "It digs.")]),
    ("auto", "One.\n\n= Ant =\n\n= Bee =\n\nTwo.\n", [("", "One."), ("", "= Ant ="), ("", "= Bee ="), ("", "Two.")]),
    ("wikitext", "= Sum =\n\nx = y = z\n\na == b\n", [("Sum", "x = y = z\na == b")]),
]
"""Layout, text of a file, and titles and texts of its documents."""
PARAGRAPHS: list[tuple[str, str, list[str]]] = [
    (
        "a.txt",
        "\n\nOne line\nand its rest.\n \t \nTwo.\r\n\r\n\r\nThree.",
        ["One line and its rest.", "Two.", "Three."],
    ),
    # zero-width characters make no line
    (
        "a.txt",
        "\ufeffOne\u200b\nline.\n\u200b\nTwo.\n \ufeff\u200b \r\nThree.\n\ufeff",
        ["One\u200b line.", "Two.", "Three."],
    ),
    ("a.jsonl", '{"text": "One.\\n\u200b\\nTwo."}\n\u200b\n{"text": "\u200b"}\n', ["One.\nTwo."]),
    ("a.json", '[{"text": "One."},\n{"text": "Two."}]', ["One.", "Two."]),
    ("a.json", '{"text": "One."}\n{"text": "Two."}\n', ["One.", "Two."]),
]


@pytest.mark.parametrize(("layout", "text", "articles"), ARTICLES)
def test_wikitext_begins_a_document_at_level_one_headings_only(
    tmp_path: Path, layout: str, text: str, articles: list[tuple[str, str]]
) -> None:
    assert [row[1:] for row in read(tmp_path, write(tmp_path / "a.txt", text), layout=layout)] == articles


@pytest.mark.parametrize(("name", "content", "texts"), PARAGRAPHS)
def test_paragraphs_and_records_are_documents_and_wrapped_lines_are_joined(
    tmp_path: Path, name: str, content: str, texts: list[str]
) -> None:
    rows = [(f"{name}:{number}", "", document) for number, document in enumerate(texts)]
    assert read(tmp_path, write(tmp_path / name, content)) == rows


def block(title: str, text: str) -> str:
    return f'<doc id="{title}" url="u" title="{title}">\n{title}\n\n{html.escape(text, quote=False)}\n\n</doc>\n'


FORMATS: dict[str, tuple[str, Callable[[str, str], str], dict[str, str]]] = {
    "wikitext": ("a.txt", lambda title, text: f" = {title} = \n\n{text}\n\n", {}),
    "blocks": ("AA/wiki_00", block, {}),
    "objects": (
        "AA/wiki_00",
        lambda title, text: json.dumps({"id": title, "title": title, "text": html.escape(text, quote=False)}) + "\n",
        {},
    ),
    "jsonl": (
        "a.jsonl",
        lambda title, text: json.dumps({"key": title, "name": title, "body": text}) + "\n",
        {"text_column": "body", "title_column": "name", "id_column": "key"},
    ),
    "csv": ("a.csv", lambda title, text: f'"{title}","{text}"\n', {}),
}
"""Name -> a file of this format, a document in it, and the parameters."""


@pytest.mark.parametrize("name", [*FORMATS, "parquet", "hub"])
def test_text_of_every_format_is_the_same_corpus(tmp_path: Path, name: str) -> None:
    rows = [(f"Title {number}", text) for number, text in enumerate(random_texts(24))]
    folder, values = tmp_path / "in", {}
    if name in FORMATS:
        file, make_text, values = FORMATS[name]
        write(folder / file, "title,text\n" * (name == "csv") + "".join(make_text(*row) for row in rows))
    else:
        folder.mkdir()
        table = pa.Table.from_pylist([{"title": title, "text": text} for title, text in rows])
        pq.write_table(table, folder / "train.parquet", row_group_size=7)
        values = {"source": "hub", "dataset": str(folder)} if name == "hub" else {}
    assert [row[1:] for row in read(tmp_path, folder, **values)] == rows


def test_given_ids_are_kept_and_empty_documents_counted(tmp_path: Path) -> None:
    text = '{"document_id": "x-9", "text": "A."}\n{"text": ""}\n{"document_id": 7, "text": "B."}\n'
    summary = make_corpus(params(path=str(write(tmp_path / "a.jsonl", text))), tmp_path / "out")
    assert [name for name, _, _ in documents(tmp_path / "out")] == ["x-9", "7"]
    assert (summary.documents, summary.reading.counts[pieces.EMPTY]) == (2, 1)


def test_row_groups_and_parts_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "GROUP_DOCUMENTS", 3)
    monkeypatch.setattr(pieces, "PART_CHARACTERS", 1000)  # two groups of three, of some 200 characters each
    summary = make_corpus(params(source="demo"), tmp_path / "out")
    parts = sorted((tmp_path / "out").glob("*.parquet"))
    assert summary.parts == len(parts) == 4
    assert [part.name for part in parts] == [f"part-{number:05d}.parquet" for number in range(4)]
    assert all(pq.ParquetFile(part).metadata.row_group(0).num_rows <= 3 for part in parts)
    assert [name for name, _, _ in documents(tmp_path / "out")] == [f"demo:{number}" for number in range(20)]


def parquet(**columns: list[Any]) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table(columns), sink)
    return bytes(sink.getvalue())


ABSENT = ["'text'; its columns are texts, id", "did you mean texts?", "corpus.text_column"]
REFUSED: list[tuple[str, str | bytes, list[str]]] = [
    ("blank.txt", "\n \n\t\n", ["no text found"]),
    ("binary.txt", b"text\nmore\x00text\n", ["binary", "offset 9 (line 2)"]),  # "text\n" is 0 to 4, "more" 5 to 8
    ("cut.txt", b"ab\xe2\x82", ["offset 2 (line 1)"]),
    ("no-rows.csv", "texts,id\n", ["did you mean texts?"]),
    ("absent.csv", "texts,id\nA.,1\n", ABSENT),
    ("absent.jsonl", '{"texts": "A.", "id": 1}\n', ABSENT),
    ("absent.parquet", parquet(texts=["A."], id=[1]), ABSENT),
    ("latin.txt", b"\xef\xbb\xbfok\ncaf\xe9\n", ["byte 0xe9 at offset 9 (line 2)"]),
    ("number.jsonl", '{"text": "A."}\n{"text": 5}\n', ["line 2: text is not text (found int "]),
    ("half.jsonl", '{"text": "A \\ud800."}\n', ["surrogate"]),
    ("broken.jsonl", '{"text": "A."}\n{"text": \n', ["line 2 is not JSON"]),
    ("list.jsonl", '["text"]\n', ["record 0 is str"]),
    ("ragged.csv", "text,id\nA.,1\nB.\n", ["line 3 has 1 fields"]),
    ("quotes.csv", 'text\n"A" B\n', ["line 2 is not valid CSV"]),
    ("text.parquet", "text", ["cannot be read as Parquet"]),
    ("a.pdf", "text", ["suffix .pdf", ".txt, .jsonl, .csv, .parquet"]),
]


@pytest.mark.parametrize(("name", "content", "words"), REFUSED, ids=[name for name, *_ in REFUSED])
def test_a_file_that_is_no_text_is_refused_with_the_place(
    tmp_path: Path, name: str, content: str | bytes, words: list[str]
) -> None:
    message = refusal(tmp_path, write(tmp_path / name, content))
    assert [word for word in words if word not in message] == [], message


def test_an_endless_line_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_files, "MAX_LINE_BYTES", 100)
    assert "line 2 is longer" in refusal(tmp_path, write(tmp_path / "a.txt", "a\n" + "b" * 101 + "\n"))


def test_a_path_without_a_usable_file_is_refused_with_its_key(tmp_path: Path) -> None:
    assert "corpus.path" in refusal(tmp_path, tmp_path / "absent.txt")
    assert "only README.md" in refusal(tmp_path, write(tmp_path / "in/README.md", "text").parent)


def hub_folder(folder: Path) -> Path:
    """A data set as the Hub stores one: data files in a folder, told apart by split."""
    rows = [{"title": "Ant", "text": "It digs."}, {"title": "", "text": ""}, {"title": "Bee", "text": "It hums."}]
    write(folder / "train.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    write(folder / "validation.jsonl", '{"title": "Cat", "text": "It naps."}\n')
    return folder


def test_a_data_set_is_streamed_through_the_same_code(tmp_path: Path) -> None:
    folder = hub_folder(tmp_path / "animals")
    summary = make_corpus(params(source="hub", dataset=str(folder)), tmp_path / "out")
    assert summary.reading.counts[pieces.EMPTY] == 1
    assert [row[1:] for row in documents(tmp_path / "out")] == [("Ant", "It digs."), ("Bee", "It hums.")]
    make_corpus(params(source="hub", dataset=str(folder), dataset_split="validation"), tmp_path / "out")
    assert [row[1:] for row in documents(tmp_path / "out")] == [("Cat", "It naps.")]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dataset_split": "trian"}, "trian"),
        ({"text_column": "txt"}, "did you mean text?"),
        ({"dataset_config": "large"}, "large"),
        ({"dataset": None}, r"corpus\.dataset is not set"),
    ],
)
def test_a_wrong_split_column_or_configuration_is_refused(tmp_path: Path, change: dict[str, str], message: str) -> None:
    values: dict[str, Any] = {"source": "hub", "dataset": str(hub_folder(tmp_path / "animals")), **change}
    with pytest.raises(InputError, match=message):
        make_corpus(params(**values), tmp_path / "out")


@pytest.mark.soak
def test_a_data_set_is_streamed_from_a_hub_and_nothing_else_is_asked_of_it(tmp_path: Path, hub: HubServer) -> None:
    """In a process of its own: the library reads the Hub's address once, when it is imported."""
    folder = hub_folder(tmp_path / "animals")
    repository = hub.store.create("dataset", "user/animals")
    first = hub.store.add_files(repository, {path.name: path.read_bytes() for path in folder.iterdir()})
    hub.store.add_files(repository, {"train.jsonl": b'{"text": "Newer."}\n'})
    code = (
        "import sys; from pathlib import Path; from tasks.corpus.corpus import make_corpus\n"
        "from tests.tasks.corpus.made_corpus import params\n"
        "make_corpus(params(source='hub', dataset='user/animals', dataset_revision=sys.argv[1]), Path(sys.argv[2]))"
    )
    environment = {**os.environ, "HF_HOME": str(tmp_path / "home")}
    command = [sys.executable, "-c", code, first.oid, str(tmp_path / "out")]
    subprocess.run(command, cwd=ROOT, env=environment, check=True)
    assert [row[1:] for row in documents(tmp_path / "out")] == [("Ant", "It digs."), ("Bee", "It hums.")]
    assert {path.split("/")[1] for _, path, _ in hub.requests} <= {"api", "datasets"}
    assert all("user/animals" in path for _, path, _ in hub.requests)


BLOCKS = """<doc id="12" url="https://en.wikipedia.org/wiki?curid=12" title="AT&T "Long Lines"">
AT&T "Long Lines"

It ran &lt;cables&gt; &amp; relays.
History.
It began in 1885.

</doc>
<doc id="13" url="https://en.wikipedia.org/wiki?curid=13" title="Redirect">
Redirect


</doc>
"""
EXPECTED = [("12", 'AT&T "Long Lines"', "It ran <cables> & relays.\nHistory.\nIt began in 1885.")]


@pytest.mark.parametrize(("name", "text"), [("AA/wiki_00", BLOCKS), ("a.txt", "\ufeff" + BLOCKS)])
def test_blocks_become_documents_their_entities_and_title_lines_taken_back(
    tmp_path: Path, name: str, text: str
) -> None:
    write(tmp_path / "in" / name, text)
    summary = make_corpus(params(path=str(tmp_path / "in")), tmp_path / "out")
    assert documents(tmp_path / "out") == EXPECTED
    assert summary.reading.numbers() == {"files read": 1, "empty documents left out": 1}
    assert summary.reading.formats == {"wikiextractor, UTF-8": 1}


def test_packed_files_are_not_passed_over(tmp_path: Path) -> None:
    write(tmp_path / "in/AA/wiki_00", BLOCKS)
    write(tmp_path / "in/AA/wiki_01.bz2", b"BZh9")
    write(tmp_path / "in/README", "no article")
    assert "Unpack AA/wiki_01.bz2 first" in refusal(tmp_path, tmp_path / "in")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (BLOCKS + '<doc id="14" url="u" title="Cut">\nIt en', "line 14"),
        (BLOCKS + "stray words\n", "line 14 is outside of <doc"),
        ('<doc id="1" url="u" title="A">\n<doc id="2" url="u" title="B">\n', "line 2 begins an article inside"),
        ('{"id": "1", "title": "A"}\n', "no column 'text'"),
    ],
)
def test_damage_is_refused_with_the_line(tmp_path: Path, content: str, message: str) -> None:
    assert message in refusal(tmp_path, write(tmp_path / "wiki_00", content))
