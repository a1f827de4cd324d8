"""Packed files are read as what they hold, within bounds, and damage in them is named."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from tasks.records import text_files
from tasks.records.text_files import file_suffix, open_unpacked, read_lines
from tasks.stage.errors import InputError


def zstandard(content: bytes) -> bytes:
    found: bytes = pa.compress(content, codec="zstd", asbytes=True)
    return found


PACK: dict[str, Callable[[bytes], bytes]] = {".gz": gzip.compress, ".zst": zstandard}
every_packing = pytest.mark.parametrize("packing", PACK)


@pytest.mark.parametrize(
    ("name", "ending"),
    [
        ("a.csv.gz", ".csv"),
        ("a.CSV.GZ", ".csv"),
        ("a.b.jsonl.zst", ".jsonl"),
        ("a.csv", ".csv"),
        ("a.gz", ".gz"),
        ("a.parquet.gz", ".gz"),
        ("wiki_00", ""),
    ],
)
def test_the_ending_before_that_of_the_packing_decides(name: str, ending: str) -> None:
    assert file_suffix(Path("folder.v1") / name) == ending


@every_packing
@pytest.mark.parametrize("text", ["", "one\ntwo\n", "old\rmac\r", "\ufeffé\n" * 300_000])
def test_lines_are_those_of_the_file_unpacked(tmp_path: Path, packing: str, text: str) -> None:
    plain, path = tmp_path / "a.txt", tmp_path / f"a.txt{packing}"
    plain.write_bytes(text.encode())
    path.write_bytes(PACK[packing](text.encode()))
    assert list(read_lines(path, "key")) == list(read_lines(plain, "key"))


@every_packing
def test_several_members_one_after_the_other_are_one_text(tmp_path: Path, packing: str) -> None:
    path = tmp_path / f"a.txt{packing}"
    path.write_bytes(PACK[packing](b"one\n") + PACK[packing](b"two\n"))
    assert list(read_lines(path, "key")) == ["one\n", "two\n"]


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
        with pytest.raises(InputError, match="unpacks to more than 1 MB and 200 times its size"):
            read.extend(map(len, blocks))
    assert sum(read) < (2 << 20) + 201 * path.stat().st_size
