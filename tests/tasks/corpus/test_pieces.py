"""Pieces of a corpus: the same documents for every size, and the same bytes for every number of processes."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ipu_model.core.files import read_json
from tasks.corpus import corpus, documents, duplicates, pieces
from tasks.corpus.corpus import make_corpus
from tasks.corpus.documents import FilePiece, divide_file, document_columns, read_piece
from tasks.corpus.world import make_documents
from tasks.params.sections import QualityParams
from tasks.records.interpretation import Interpretation
from tasks.stage import cluster, exchange
from tasks.stage.errors import InputError
from tests.places import ROOT
from tests.tasks.corpus.made_corpus import documents as documents_of
from tests.tasks.corpus.made_corpus import params, write

COLUMNS = document_columns("text")
TEXTS = {
    "paragraphs.txt": (
        "\ufeff\n\nOne\nline.\n \t\nTwo\u200b\r\n\r\n\r\nä ö\n\u200b\nThree\n\ufeff \n\u3000\nfour\x0b\n\x0b\n"
        "\n= A =\n\nEnd"
    ),
    "sentences.txt": "".join(f"it digs in {n} .\nit is {n}\u200b deep .\nso .\n\n" for n in range(9)),
    "objects.txt": "".join(f'{{"text": "One.\\nTwo {n}."}}\n' for n in range(9)),
    "no-end.txt": "a\n\nb\n\n\n\n",
    "mac.txt": "One\rline.\r\rTwo.\r\r\rThree\r",
    "wikitext.txt": (
        "\n\n= Ant =\n\nIt digs.\n= = Nest = =\r\nDeep.\n = Bée =\r\n\n= =\n= \u00a0 =\n =\u00a0Cat\u3000= \n= a =\n"
        "x = y\n= Empty =\n= Empty too =\n\n= = =\n= Last ="
    ),
    "blocks.txt": (
        '\n<doc id="1" url="u" title="Ant">\nAnt\n\nIt digs &lt;.\n</doc>\n\n<doc id="2" revid="9" url="u" title="B">\n'
        '</doc>\n<doc id="" url="" title="">\n{x}\n{y}\n <doc >\n</doc>\n'
    ),
    "wiki_00": (
        '\ufeff\n{"id": 1, "title": "Ant", "text": "Ant\\n\\nIt digs &lt;."}\n\n{"id": "", "title": "", "text": ""}\r\n'
        '{"id": "", "title": "", "text": "a"}\n{"id": "3", "text": "b", "title": "B"}\n'
    ),
    "lines.jsonl": (
        '\ufeff\n{"text": "One.\\n\\nTwo }\\n{ \u200b", "title": "é"}\n\n\n \n{"Text": "Two.", "x": {"a": {}}}\u200b\n'
        '{"text":\n"Three",\n"b": [\n{"c": {}\n},\n{}\n]\n}\n{"text": "4", "document_id": 7}{"text": "5"}\r\n'
        '{"text": "6", "document_id": " "}\n\u200b\n  {"text": null}\n{"text": "8"}\n\n\n'
    ),
    "one-line.jsonl": '{"text": "One."}',
    "list.jsonl": '[{"text": "One."},\n{"text": "Two."}\n,{"text": "Three."}]\n',
    "rows.parquet": "",
}


def write_input(folder: Path, name: str) -> FilePiece:
    path = write(folder / name, TEXTS[name])
    if name == "rows.parquet":
        table = pa.table({"text": ["One.", None, "", "Two\n\nlines", "3", "4", "5"], "n": range(7)})
        with pq.ParquetWriter(path, table.schema) as writer:
            for start, stop in ((0, 2), (2, 2), (2, 3), (3, 7), (7, 7)):
                writer.write_table(table.slice(start, stop - start), row_group_size=2)
    return FilePiece(path, str(path), name, "auto")


def read(parts: list[FilePiece]) -> tuple[list[tuple[str, str, bool]], dict[str, Any]]:
    """Title and text of each document, whether its lines are sentences, and the report."""
    reading, rows = Interpretation(), []
    for part in parts:
        report = Interpretation()
        pieces_of_part = read_piece(part, COLUMNS, report)
        rows += [(document.title, document.text, document.has_sentences) for document in pieces_of_part]
        reading.merge(report)
    return rows, asdict(reading)


@pytest.mark.parametrize("name", TEXTS)
def test_parts_of_any_size_have_the_documents_of_the_whole_file(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write_input(tmp_path, name)
    whole, most = read([file]), 0
    assert len(whole[0]) > 0
    for size in (*range(1, 60), *range(60, 400, 7)):
        monkeypatch.setattr(documents, "PIECE_BYTES", size)
        parts = divide_file(file)
        assert read(parts) == whole, f"{size}: {parts}"
        most = max(most, len(parts))
    assert (most > 1) == (name not in ("mac.txt", "one-line.jsonl", "list.jsonl")), "divided where that is possible"


def test_ids_of_divided_files_have_the_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / "a.txt", "One.\n\nTwo.\n\nThree.\n\nFour.\n")
    monkeypatch.setattr(documents, "PIECE_BYTES", 12)
    make_corpus(params(path=str(path)), tmp_path / "out")
    names = {text: name for name, _, text in documents_of(tmp_path / "out")}
    assert names == {"One.": "a.txt:0:0", "Two.": "a.txt:0:1", "Three.": "a.txt:0:2", "Four.": "a.txt:1:0"}


@pytest.mark.parametrize(
    ("name", "good", "bad", "message"),
    [
        ("a.jsonl", '{"text": "ä"}\n', '{"text": 5}\n', "line 41: text is not text"),
        ("a.jsonl", '{"text": "ä"}\n', '{"text": \n', "line 41 is not JSON"),
        ("a.txt", "ä.\n\n", b"b\xff\n", "offset 201 (line 81)"),
        ("a.txt", "ä.\n\n", b"b\0\n", "NUL byte at offset 201"),
        ("a.txt", '<doc id="1" url="" title="">\n</doc>\n', "x\n", "line 81 is outside of <doc"),
    ],
)
def test_errors_have_the_position_in_the_whole_file(
    name: str, good: str, bad: str | bytes, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = (good * 40).encode() + (bad.encode() if isinstance(bad, str) else bad) + good.encode()
    file = FilePiece(write(tmp_path / name, content), f"in/{name}", name, "auto")
    for size in (1 << 20, 150, 40):
        monkeypatch.setattr(documents, "PIECE_BYTES", size)
        with pytest.raises(InputError) as caught:
            read(divide_file(file))
        assert f"in/{name}" in str(caught.value)
        assert message in str(caught.value)
        assert str(tmp_path) not in str(caught.value)


def test_a_generated_corpus_is_the_same_documents_in_any_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_corpus(params(source="demo"), tmp_path / "one")
    monkeypatch.setattr(pieces, "DEMO_DOCUMENTS", 7)
    make_corpus(params(source="demo"), tmp_path / "out")
    assert documents_of(tmp_path / "out") == documents_of(tmp_path / "one")


def write_folder(folder: Path) -> Path:
    """Files of all kinds, with copies, near copies and documents without text."""
    texts = [document.text for document in make_documents(5, "corpus", 120)]
    texts += [texts[3], texts[70], texts[9].replace(".", " !"), "", texts[3]]
    write(folder / "a/lines.jsonl", "".join(json.dumps({"text": text, "n": 1}) + "\n" for text in texts))
    write(folder / "b.txt", "\n\n".join(texts[100:] + [document.text for document in make_documents(6, "corpus", 90)]))
    write(folder / "c.txt", "".join(f"= T{number} =\n\n{text}\n" for number, text in enumerate(texts[:30])))
    for number in range(3):
        write(folder / f"d-{number}.txt", f"Small {number}.\n\n{texts[number].upper()}")
    pq.write_table(pa.table({"text": [*texts[50:90], "Once more."]}), folder / "e.parquet", row_group_size=9)
    pq.write_table(pa.table({"text": texts[20:40]}), folder / "f.parquet", row_group_size=5)  # nothing of it stays
    write(folder / "g.csv", "text,title\nLast.,T\n")
    write(folder / "README.md", "ignored")
    return folder


def make_all(folder: Path, **rules: Any) -> dict[str, bytes]:
    made = folder / "out"
    make_corpus(params(path=str(folder / "in"), quality=QualityParams(**rules)), made)
    assert sorted(path.name for path in folder.iterdir()) == ["in", "out"], "nothing half-written"
    return {path.name: path.read_bytes() for path in made.iterdir()}


@pytest.mark.soak
def test_the_corpus_is_the_same_bytes_with_any_number_of_processes_and_on_a_cluster(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    distributed = pytest.importorskip("distributed", reason="needs the extra cluster")
    write_folder(tmp_path / "in")
    monkeypatch.setattr(documents, "PIECE_BYTES", 6000)
    monkeypatch.setattr(documents, "LEAST_FILE_BYTES", 1000)
    monkeypatch.setattr(corpus, "DOCUMENTS_FOR_PROCESSES", 1)
    rules = {"exact_duplicates": True, "near_duplicates": 0.8}
    made = []
    for workers in ("1", "2", "3"):
        monkeypatch.setenv("PODIUM_WORKERS", workers)
        made.append(make_all(tmp_path, **rules))
    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as local:
        monkeypatch.setenv(cluster.CLUSTER, local.scheduler_address)
        made.append(make_all(tmp_path, **rules))
        monkeypatch.setenv(exchange.FOLDER, tmp_path_factory.mktemp("url").as_uri())
        made.append(make_all(tmp_path, **rules))
    assert made[1:] == [made[0]] * 4
    names = sorted(made[0])
    assert names == [*(f"part-{number:05d}.parquet" for number in range(len(names) - 1)), "reading.json"]
    reading = read_json(tmp_path / "out/reading.json")
    assert reading["numbers"]["files read"] == 9
    assert reading["numbers"]["removed, duplicates: exact"] > 100
    assert reading["numbers"]["removed, duplicates: near"] >= 4
    assert " repeats " in reading["examples"]["removed, duplicates: near"]


def test_pieces_change_names_of_documents_and_files_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_folder(tmp_path / "in")
    monkeypatch.setenv("PODIUM_WORKERS", "1")
    for rules in ({}, {"exact_duplicates": True}, {"near_duplicates": 0.8}):
        results = []
        for size, most in ((64 << 20, 1 << 20), (2000, 1)):
            monkeypatch.setattr(documents, "PIECE_BYTES", size)
            monkeypatch.setattr(duplicates, "MAX_SORTED", 50 * most)
            monkeypatch.setattr(duplicates, "MAX_COMPARED", most)
            parts = len(make_all(tmp_path, **rules)) - 1
            reading = read_json(tmp_path / "out/reading.json")
            reading.pop("examples", None)  # with ids
            reading["inputs"]["corpus"].pop("examples", None)
            results.append((reading, [row[1:] for row in documents_of(tmp_path / "out")]))
        assert results[0] == results[1]
        assert parts > 9


@pytest.mark.parametrize("workers", ["1", "2"])
def test_an_error_is_reported_once_with_the_path_as_given_and_leaves_nothing(
    workers: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "in/a.jsonl", '{"text": "One."}\n' * 30 + '{"text": 5}\n' + '{"text": "One."}\n' * 30)
    monkeypatch.setattr(documents, "PIECE_BYTES", 200)
    monkeypatch.setenv("PODIUM_WORKERS", workers)
    monkeypatch.chdir(tmp_path)
    make_corpus(params(source="demo"), Path("data/corpus"))
    before = Path("data/corpus/part-00000.parquet").read_bytes()
    with pytest.raises(InputError) as caught:
        make_corpus(params(path="in"), Path("data/corpus"))
    assert str(caught.value).startswith("in/a.jsonl, line 31: ")
    assert {path.name for path in Path("data").rglob("*")} == {"corpus", "part-00000.parquet", "reading.json"}
    assert Path("data/corpus/part-00000.parquet").read_bytes() == before


RUN = (
    "import resource, sys; from pathlib import Path; from ipu_model.core.memory import read_memory\n"
    "from tasks.corpus import documents; documents.PIECE_BYTES = 4 << 20\n"
    "from tests.tasks.corpus.made_corpus import params; from tasks.corpus.corpus import make_corpus\n"
    "if __name__ == '__main__':\n"
    "    make_corpus(params(path=sys.argv[1]), Path(sys.argv[2]))\n"
    "    print(*read_memory(Path('/proc/self/status'), 'VmHWM'))\n"
    "    print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss << 10)"
)
"""A process that makes a corpus in small pieces, and prints the largest memory of itself and of its workers."""
ENVIRONMENT = {"PYTHONPATH": str(ROOT), "PODIUM_WORKERS": "2"}


@pytest.mark.soak
def test_memory_of_driver_and_workers_does_not_grow_with_the_text(tmp_path: Path) -> None:
    """Four times the pieces, the same peaks."""
    write(tmp_path / "run.py", RUN)
    text = "".join(one.text + "\n\n" for one in make_documents(1, "corpus", 40_000))
    peaks = []
    for times in (1, 4):
        path = write(tmp_path / f"{times}.txt", text * times)
        command = [sys.executable, str(tmp_path / "run.py"), str(path), str(tmp_path / f"out-{times}")]
        ended = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=True)
        peaks.append([int(number) for number in ended.stdout.split()])
        assert len(list((tmp_path / f"out-{times}").glob("*.parquet"))) >= 2 * times
    for less, more in zip(*peaks, strict=True):
        assert more - less < 24 << 20, peaks
