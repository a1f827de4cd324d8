"""Layouts that content decides, and what of a folder is read: each case of corpora as people have them."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flows.checks.input_checks import make_corpus_check
from tasks.corpus import documents
from tasks.corpus.corpus import make_corpus
from tasks.corpus.documents import FilePiece, divide_file, read_piece
from tasks.params.schema import ValidateParams
from tasks.pretraining.rows.pair_rows import split_sentences, tokenize_documents
from tasks.records.interpretation import Interpretation
from tasks.records.layouts import PARAGRAPHS, SENTENCES, LineEnds, choose_layout
from tasks.records.shards import SentenceLines, plan_shards, read_texts
from tasks.vocabulary.encoding import load_tokenizer
from tests.places import SHARED
from tests.tasks.corpus.made_corpus import documents as corpus_documents
from tests.tasks.corpus.made_corpus import params, read, refusal, write
from tests.tasks.pretraining.row_inputs import real_data, word_tokenizer

CASES = SHARED / "data/cases/corpora"
needs_cases = pytest.mark.skipif(not CASES.exists(), reason="real input is not part of the project")


def make(folder: Path, path: Path, **values: Any) -> list[str]:
    make_corpus(params(path=str(path), **values), folder / "out")
    return [text for shard in plan_shards(sorted((folder / "out").glob("*.parquet"))) for text in read_texts(shard)]


def tell(path: Path, **values: Any) -> str:
    """What a run says of its corpus before the first stage."""
    check = make_corpus_check()
    asked = SimpleNamespace(corpus=params(path=str(path), **values), validate_=ValidateParams(min_documents=1))
    check.check(asked)  # type: ignore[arg-type]
    return "\n".join(check.tell())


def split(text: str) -> list[str]:
    return text.split("\n") if isinstance(text, SentenceLines) else split_sentences(text)


@needs_cases
@pytest.mark.parametrize(
    ("case", "count", "sentences", "line"),
    [
        ("folder-with-json.gz-*", 60, 480, "not read (first: LICENSE.txt)"),
        ("folder-with-jsonlines-named-json", 40, 320, "not read (first: README.txt)"),
        ("google-bert-format-lowercase.txt", 40, 320, "sentences, UTF-8\n"),
        ("google-bert-format-without-full-stops.txt", 40, 320, "sentences, UTF-8\n"),
        ("gutenberg-hard-wrapped.jsonl", 3, None, "3 documents of hard-wrapped lines"),
        ("hub-layout-train-and-test-read", 20, 160, "2 files of other splits"),
        ("hub-wikitext-row-is-a-line", 60, None, "a row is a line"),
        ("jsonl-shards-named-txt", 360, 2160, "JSON lines, UTF-8, in .txt"),
        ("numeric-title-unused-column", 21, 168, "1 value of the unnamed column 'title'"),
    ],
)
def test_corpora_as_people_have_them_are_read_and_told(
    case: str, count: int, sentences: int | None, line: str, tmp_path: Path
) -> None:
    path = next(CASES.glob(case))
    texts = make(tmp_path, path)
    assert len(texts) == count
    assert sentences in (None, sum(map(len, map(split, texts))))
    assert line in tell(path)


@needs_cases
def test_wikitext_of_the_hub_gives_the_articles_of_its_text_file(tmp_path: Path) -> None:
    folder = CASES / "hub-wikitext-row-is-a-line"
    of_text = [(title, text) for _, title, text in read(tmp_path, real_data("wikitext/wikitext-2-valid.txt"))]
    assert [(title, text) for _, title, text in read(tmp_path, folder)] == of_text
    rows = params(source="hub", dataset=str(folder / "wikitext-2-raw-v1"))
    make_corpus(rows, tmp_path / "hub")
    assert [(title, text) for _, title, text in corpus_documents(tmp_path / "hub")] == of_text
    assert len(make(tmp_path, folder, layout="paragraphs")) == 2461, "a row is a document"


@pytest.mark.parametrize("name", ["rows.parquet", "rows.jsonl", "rows.txt"])
def test_a_table_of_wikitext_lines_is_not_divided(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [" = A = \n", "", " It digs . \n", " = = B = = \n", " Deep . \n", " = C = \n", " It hums . \n"] * 9
    path = tmp_path / name
    if name == "rows.parquet":
        pq.write_table(pa.table({"text": lines}), path, row_group_size=4)
    else:
        write(path, "".join(json.dumps({"text": line}) + "\n" for line in lines))
    file = FilePiece(path, str(path), name, "auto")
    monkeypatch.setattr(documents, "PIECE_BYTES", 100)
    parts = divide_file(file)
    columns = documents.document_columns("text")
    pieces = [document for part in parts for document in read_piece(part, columns, Interpretation())]
    assert [(document.title, document.text) for document in pieces] == [
        ("A", "It digs .\nDeep ."),
        ("C", "It hums ."),
    ] * 9


@needs_cases
def test_hard_wrapped_lines_of_a_table_are_joined_as_those_of_a_text_file(tmp_path: Path) -> None:
    path = CASES / "gutenberg-hard-wrapped.jsonl"
    values = [json.loads(line)["text"] for line in path.read_text(encoding="utf-8").splitlines()]
    joined = make(tmp_path, path)
    for text, value in zip(joined, values, strict=True):
        blocks = make(tmp_path, write(tmp_path / "book.txt", value))
        assert text == "\n".join(blocks)
        assert make(tmp_path, write(tmp_path / "book.txt", value), layout="file") == [text]
    assert all(len(text) < len(value) for text, value in zip(joined, values, strict=True))
    assert make(tmp_path, path, layout="paragraphs")[0].count("\n") > joined[0].count("\n")


def test_a_line_is_a_sentence_up_to_the_tokens(tmp_path: Path) -> None:
    lines = "he met dr . who . it rained\nMr. Ay said so. He did\n\nyes\n"
    text = write(tmp_path / "a.txt", lines)
    texts = make(tmp_path, text, layout="sentences")
    tokenized = tokenize_documents(load_tokenizer(word_tokenizer(tmp_path / "words")), texts, 60, 2, "int64")
    assert (tokenized.document_starts, len(tokenized.sentence_starts) - 1) == ([0, 2, 3], 3)
    table = write(tmp_path / "a.jsonl", json.dumps({"text": "One. Two.\nThree."}) + "\n")
    assert [split(text) for text in make(tmp_path, table, layout="sentences")] == [["One. Two.", "Three."]]
    assert [split(text) for text in make(tmp_path, table)] == [["One.", "Two.", "Three."]]


def test_files_of_sentences_and_of_prose_stay_apart_and_duplicates_are_removed(tmp_path: Path) -> None:
    sentences = "\n\n".join("\n".join(f"line {n} of {d} ." for n in range(9)) for d in (1, 2, 1))
    write(tmp_path / "in/b.txt", sentences)
    for name in ("a.txt", "c.txt"):
        write(tmp_path / f"in/{name}", f"Prose of {name}. It is short.\n")
    texts = make(tmp_path, tmp_path / "in", quality={"exact_duplicates": True})
    assert [isinstance(text, SentenceLines) for text in texts] == [False, True, True, False]


PROSE = [
    "The settlers of the valley, who had come by the northern road in the spring of that year, built their houses by "
    "the river. They left it later. The mill was built later, by Thomas Reed and his sons; it burned twice.",
    "In winter the road was closed for weeks at a time. Letters came with the doctor, if they came at all, and the "
    "school had no teacher until March. People read what they had.",
] * 12
BLOCKS: dict[str, Callable[[list[str]], list[list[str]]]] = {
    "wrapped": lambda texts: [textwrap.wrap(text, 72) for text in texts],
    "narrow": lambda texts: [textwrap.wrap(text, 40) for text in texts],
    "paragraph a line": lambda texts: [texts],
    "heading before a paragraph": lambda texts: [[text[:20], text] for text in texts],
    "sentences": lambda texts: [split_sentences(text) for text in texts],
}
CASED: dict[str, Callable[[str], str]] = {
    "cased": str,
    "lower": str.lower,
    "without stops": lambda text: re.sub(r"[.]", "", text),
    "lower without stops": lambda text: re.sub(r"[^a-z ]", "", text.lower()),
}


@pytest.mark.parametrize(
    ("form", "case", "layout"),
    [
        *((form, case, PARAGRAPHS) for form in BLOCKS if form != "sentences" for case in ("cased", "lower")),
        *(("wrapped", case, PARAGRAPHS) for case in CASED),
        ("sentences", "cased", PARAGRAPHS),  # either reading gives these sentences
        ("sentences", "lower", SENTENCES),
        ("sentences", "without stops", SENTENCES),
        ("sentences", "lower without stops", ""),
    ],
)
def test_the_ends_of_lines_tell_sentences_from_prose(form: str, case: str, layout: str) -> None:
    blocks = [[CASED[case](line) for line in block] for block in BLOCKS[form](PROSE)]
    assert LineEnds(blocks).find_layout() == layout
    verse = [
        "Rough winds do shake the buds of May,",
        "And summer's lease has all too short a date;",
        "So long it lives",
    ]
    assert LineEnds([verse] * 20).find_layout() == PARAGRAPHS


def test_what_content_does_not_tell_apart_is_refused_with_both_options(tmp_path: Path) -> None:
    lines = [CASED["lower without stops"](line) for text in PROSE for line in split_sentences(text)]
    path = write(tmp_path / "a.txt", "\n".join(lines[:70]) + "\n\n" + "\n".join(lines[70:]))
    assert "Set corpus.layout to sentences" in refusal(tmp_path, path)
    assert len(split(make(tmp_path, path, layout="sentences")[0])) == 70
    assert len(split(make(tmp_path, path, layout="paragraphs")[0])) == 1


ROWS = "id{0}text{0}label\n" + "".join(f'{n}{{0}}"A text, with number {n}."{{0}}{n % 2}\n' for n in range(30))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (ROWS.format(";"), "or text with semicolons"),
        (ROWS.format("|"), "or text with bars"),
        (ROWS.format("\t") + "a broken row\n", "or text with tabs"),
        (ROWS.format(","), "or text with commas"),
        ("".join(f"<p>Text {n}.</p>\n\n" for n in range(30)), "30 of 30 lines begin"),
        ("# made today\n" + "".join(f'{{"text": "Text {n}."}}\n' for n in range(30)), "30 of 31 lines begin"),
        ("".join(f"Word{n}, here it is {n}.\n" for n in range(30)), ""),
        ("Rough winds do shake the buds of May,\n" * 30, ""),
        ('{"text": "A."}\nis JSON.\n\nMore.\n', ""),
    ],
)
def test_tables_and_markup_named_txt_are_told_their_suffix(tmp_path: Path, text: str, message: str) -> None:
    path = write(tmp_path / "a.txt", text)
    if message:
        assert message in refusal(tmp_path, path)
    else:
        assert choose_layout(path, "auto") == PARAGRAPHS


def test_lines_that_may_be_rows_are_refused_and_each_option_reads_them(tmp_path: Path) -> None:
    rows = "".join(f"{number}\tText {number}. It is short.\n" for number in range(4))
    path = write(tmp_path / "a.txt", rows)
    message = refusal(tmp_path, path)
    assert "a header and give it the suffix .csv" in message
    table = write(tmp_path / "a.csv", "id\ttext\n" + rows)
    assert make(tmp_path, table) == [f"Text {number}. It is short." for number in range(4)]
    assert "corpus.layout to paragraphs" in message
    assert make(tmp_path, path, layout="paragraphs")[0].startswith("0\tText 0. It is short. 1\tText")
    assert len(make(tmp_path, write(tmp_path / "a.txt", rows + "A line without tabs.\n"))) == 1


@pytest.mark.parametrize(
    ("name", "begin"),
    [
        ("PDF", b"%PDF-1.7\n%"),
        ("RTF", b"{\\rtf1\\ansi Text}"),
        ("HTML", b"\n<!-- x -->\n<!DOCTYPE html>\n<p>Text.</p>"),
    ],
)
def test_another_format_named_txt_is_refused_by_its_name(name: str, begin: bytes, tmp_path: Path) -> None:
    write(tmp_path / "in/a.txt", "Text.\n")
    assert f"b.txt is {name}, not plain text" in refusal(tmp_path, write(tmp_path / "in/b.txt", begin).parent)
    if name == "HTML":
        assert make(tmp_path, tmp_path / "in", layout="paragraphs")[-1].endswith("<p>Text.</p>")


def test_settings_in_a_folder_are_not_read_and_most_of_the_bytes_must_be(tmp_path: Path) -> None:
    write(tmp_path / "in/a.txt", "Some words of text.\n")
    write(tmp_path / "in/dataset_info.json", json.dumps({"features": {"text": "x" * 500}}))
    write(tmp_path / "in/README.md", "x" * 500)
    assert make(tmp_path, tmp_path / "in") == ["Some words of text."]
    assert "2 files not read (README.md, dataset_info.json)" in tell(tmp_path / "in")
    write(tmp_path / "in/b.docx", "x" * 500)
    assert "b.docx (500 B), next to 20 B" in refusal(tmp_path, tmp_path / "in")
    assert make(tmp_path, tmp_path / "in/a.txt") == ["Some words of text."]


@pytest.mark.parametrize(
    ("names", "left_out"),
    [
        (["train.txt", "test.txt", "valid.txt"], ["test.txt", "valid.txt"]),
        (["data/train-0-of-2.txt", "data/train-1-of-2.txt", "data/test-0-of-1.txt"], ["data/test-0-of-1.txt"]),
        (["train/0.txt", "validation/0.txt", "unsupervised/0.txt"], ["validation/0.txt"]),
        (["the-train.txt", "eye-test.txt", "trainspotting.txt"], []),
        (["test.txt", "dev.txt"], []),
    ],
)
def test_the_train_split_is_read_alone(names: list[str], left_out: list[str], tmp_path: Path) -> None:
    for name in names:
        write(tmp_path / "in" / name, f"Text of {name}.\n")
    expected = [f"Text of {name}." for name in sorted(names) if name not in left_out]
    assert sorted(make(tmp_path, tmp_path / "in")) == sorted(expected)
    if left_out:
        assert f"{len(left_out)} file{'s' * (len(left_out) > 1)} of other splits" in tell(tmp_path / "in")


def test_a_file_or_a_line_is_a_document(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "in/a.txt", "One.\n\nTwo.\n")
    write(tmp_path / "in/b.txt", "Three.\n")
    monkeypatch.setattr(documents, "PIECE_BYTES", 4)
    monkeypatch.setenv("PODIUM_WORKERS", "1")
    assert make(tmp_path, tmp_path / "in", layout="file") == ["One.\nTwo.", "Three."]
    assert make(tmp_path, tmp_path / "in", layout="lines") == ["One.", "Two.", "Three."]
    monkeypatch.setattr(documents, "MAX_LINE_BYTES", 8)
    assert "a.txt is longer than 0 MB" in refusal(tmp_path, tmp_path / "in", layout="file")
