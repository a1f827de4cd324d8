"""Files as other systems write them, empty, packed or damaged: read, or refused in one sentence with the parameter."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.downstream.squad.examples import make_questions
from tasks.records import text_files
from tasks.records.parquet import read_group_batches
from tasks.records.text_files import file_suffix, open_unpacked, read_lines
from tasks.stage.errors import InputError
from tasks.vocabulary.hub_tokenizer import read_vocabulary
from tests.tasks.corpus.made_corpus import documents_of
from tests.tasks.downstream.squad.question_files import params as question_params
from tests.tasks.downstream.squad.question_files import qa, squad, write
from tests.tasks.downstream.texts.glue_checkout import make_glue_data

QUESTION = {
    "id": "1",
    "title": "Ü",
    "context": "Ada came.",
    "question": "Who?",
    "answers": {"text": ["Ada"], "answer_start": [0]},
}
TABLE = "id,title,context,question,answer_text,answer_start\n1,Ü,Ada came.,Who?,Ada,0\n2,Ü,Ada came.,Who came?,Ada,0\n"
SST2 = "sentence\tlabel\nsehr schön\t1\nbad\t0\n"
QUESTIONS = "data.train_path"
VOCABULARY = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nä\nb\n"

Read = Callable[[Path], Any]


def questions_of(path: Path) -> list[str]:
    other = write(path.with_name(f"dev.{path.suffix}.json"), squad(qa("dev", answers=[("Ants", 0)])))
    settings = question_params(source="files", train_path=str(path), dev_path=str(other))
    return [make_questions(settings, path.parent / "made").partition(" on ")[0]]


def sst2(path: Path) -> dict[str, int]:
    folder = path.parent / "glue/sst2"
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("train", "dev"):
        (folder / f"{name}{path.suffix}").write_bytes(path.read_bytes())
    return make_glue_data("sst2", folder.parent, path.parent / "made")


FORMS: dict[str, tuple[str, str, Read]] = {
    "wikitext.txt": (" = Ä = \n\nOne.\n\n = B = \n\nTwo.\n", "corpus.path", documents_of),
    "paragraphs.txt": ("Ä one,\nits rest.\n\nTwo.\n\n\nThree.\n", "corpus.path", documents_of),
    "wiki_00": ('<doc id="1" url="u" title="Ä">\nÄ\n\nOne.\n</doc>\n', "corpus.path", documents_of),
    "text.jsonl": ('{"text": "Ä one."}\n{"text": "Two."}\n', "corpus.path", documents_of),
    "text.csv": ("title,text\nÄ,One.\nB,Two.\n", "corpus.path", documents_of),
    "questions.json": (
        json.dumps(squad(qa("1"), title="Ü"), indent=1, ensure_ascii=False) + "\n",
        QUESTIONS,
        questions_of,
    ),
    "questions.jsonl": (json.dumps(QUESTION, ensure_ascii=False) + "\n", QUESTIONS, questions_of),
    "questions.csv": (TABLE, QUESTIONS, questions_of),
    "examples.tsv": (SST2, "downstream.glue-sst2.data.path", sst2),
    "examples.csv": (SST2.replace("\t", ","), "downstream.glue-sst2.data.path", sst2),
    "vocab.txt": (VOCABULARY, "tokenizer.path", lambda path: read_vocabulary(path, "tokenizer.path")),
}


@pytest.mark.parametrize("mark", ["", "\ufeff"], ids=["plain", "marked"])
@pytest.mark.parametrize("end", ["\r\n", "\r"], ids=["crlf", "cr"])
@pytest.mark.parametrize("name", FORMS)
def test_line_ends_and_a_byte_order_mark_change_nothing(tmp_path: Path, name: str, end: str, mark: str) -> None:
    text, _, read = FORMS[name]
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    (tmp_path / "a" / name).write_bytes(text.encode())
    (tmp_path / "b" / name).write_bytes((mark + text.replace("\n", end)).encode())
    assert read(tmp_path / "b" / name) == read(tmp_path / "a" / name)


@pytest.mark.parametrize("encoding", ["utf-32-le", "utf-32-be", "utf-16-le", "utf-16-be"])
@pytest.mark.parametrize("name", [name for name in FORMS if name != "wiki_00"])
def test_other_encodings_are_named_with_the_way_out(tmp_path: Path, name: str, encoding: str) -> None:
    text, key, read = FORMS[name]
    (tmp_path / name).write_bytes(f"\ufeff{text}".encode(encoding))
    with pytest.raises(InputError) as caught:
        read(tmp_path / name)
    assert f"is {encoding[:6].upper()} (byte order mark" in str(caught.value)
    assert "-t UTF-8" in str(caught.value)
    assert key in str(caught.value)


def test_a_long_file_of_an_old_mac_is_read_line_by_line(tmp_path: Path) -> None:
    lines = [f"Paragraph {number} ü." for number in range(90_000)]
    (tmp_path / "a.txt").write_bytes("\r\r".join(lines).encode())
    assert [text for _, _, text in documents_of(tmp_path / "a.txt")] == lines


def test_a_return_inside_a_line_is_no_line_end(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b'text\n"One\rstill one."\nTwo.\n')
    assert [text for _, _, text in documents_of(tmp_path / "a.csv")] == ["One\nstill one.", "Two."]


@pytest.mark.parametrize("name", [*FORMS, "text.parquet", "questions.parquet"])
def test_an_empty_file_is_called_empty(tmp_path: Path, name: str) -> None:
    read = documents_of if name == "text.parquet" else questions_of if name == "questions.parquet" else FORMS[name][2]
    (tmp_path / name).touch()
    with pytest.raises(InputError) as caught:
        read(tmp_path / name)
    assert " empty" in str(caught.value)
    assert str(tmp_path) in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


PACK: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.compress,
    ".zst": lambda content: pa.compress(content, codec="zstd", asbytes=True),
}
every_packing = pytest.mark.parametrize("packing", PACK)


@pytest.mark.parametrize(
    ("name", "ending"),
    [("a.CSV.GZ", ".csv"), ("a.b.jsonl.zst", ".jsonl"), ("a.gz", ".gz"), ("a.parquet.gz", ".gz"), ("wiki_00", "")],
)
def test_the_ending_before_that_of_the_packing_decides(name: str, ending: str) -> None:
    assert file_suffix(Path("folder.v1") / name) == ending


@every_packing
@pytest.mark.parametrize("text", ["", "one\ntwo\n", "old\rmac\r", "\ufeffé\n" * 300_000])
def test_lines_are_those_of_the_file_unpacked_also_of_two_members(tmp_path: Path, packing: str, text: str) -> None:
    plain, path, content = tmp_path / "a.txt", tmp_path / f"a.txt{packing}", text.encode()
    plain.write_bytes(content)
    for members in ([content], [content[:5], content[5:]]):
        path.write_bytes(b"".join(map(PACK[packing], members)))
        assert list(read_lines(path, "key")) == list(read_lines(plain, "key"))


@every_packing
def test_what_is_cut_off_damaged_or_not_packed_is_refused(tmp_path: Path, packing: str) -> None:
    path, content = tmp_path / f"a.txt{packing}", PACK[packing](bytes(range(1, 256)) * 100)
    for damaged in (content[:-9], content[:12] + b"\xff\xff\xff" + content[15:], b"plain text\n" * 10):
        path.write_bytes(damaged)
        with pytest.raises(InputError, match=r"a\.txt\.\w+ (cannot be read|is not UTF-8|is binary)"):
            list(read_lines(path, "key"))


@every_packing
def test_a_bomb_is_refused_before_it_is_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, packing: str) -> None:
    monkeypatch.setattr(text_files, "FREE_BYTES", 1 << 20)
    path = tmp_path / f"a.txt{packing}"
    path.write_bytes(PACK[packing](b"\n" * (256 << 20)))
    read: list[int] = []
    with open_unpacked(path) as stream:
        blocks = iter(lambda: stream.read(1 << 20), b"")
        with pytest.raises(InputError, match="more than 1 MB"):
            read.extend(map(len, blocks))
    assert sum(read) < (2 << 20) + 201 * path.stat().st_size


def test_row_groups_are_read_one_at_a_time(tmp_path: Path) -> None:
    """40 MB of lists in groups of a megabyte, of which the library reads ahead."""
    path = tmp_path / "lists.parquet"
    with pq.ParquetWriter(path, pa.schema([("offsets", pa.list_(pa.int32()))])) as writer:
        for group in range(40):
            values = pa.array(np.arange(group, group + (1 << 18), dtype=np.int32))
            writer.write_table(pa.table({"offsets": pa.ListArray.from_arrays(pa.array([0, 1 << 17, 1 << 18]), values)}))
    before, most = pa.total_allocated_bytes(), 0
    with pq.ParquetFile(path, pre_buffer=False) as file:
        for batch in read_group_batches(file, ["offsets"], 1024):
            assert len(batch) == 2
            most = max(most, pa.total_allocated_bytes() - before)
    assert most < 10 << 20
