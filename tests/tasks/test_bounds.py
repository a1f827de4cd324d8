"""Small files that unfold to gigabytes, and files that are none: refused at once, with little memory."""

from __future__ import annotations

import os
import resource
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tasks.common import artifacts
from tasks.common.errors import InputError
from tasks.common.regular import NotAFile, open_regular
from tasks.memory import limited, limited_steps
from tasks.tables import Column, check_columns, each_key_once
from tasks.text_files import Reading, text_lines

PROJECT = Path(__file__).resolve().parents[2]
MOST_MB = 1536
"""Above the 200 MB or so of a process with its libraries, a gigabyte, and room for neither to be exact."""
SECONDS = 60
"""Of a host that is busy; alone each takes one or two."""


def refused(code: str, *words: str) -> str:
    """Run `code`, which must end in one of our errors, soon and with little memory; what it says."""
    peak = "next(line.split()[1] for line in open('/proc/self/status') if line.startswith('VmHWM'))"
    script = (
        "import sys; from pathlib import Path; from tasks.common.errors import run_main\n"
        f"def main():\n    {code}\ntry:\n    run_main(main)\nfinally:\n    print({peak})"
    )
    started_at = time.monotonic()
    process = subprocess.run(
        [sys.executable, "-c", script, *words], cwd=PROJECT, capture_output=True, text=True, check=False
    )
    assert process.returncode == 1, process.stderr
    assert process.stderr.startswith("error: "), process.stderr
    assert int(process.stdout) >> 10 < MOST_MB
    assert time.monotonic() - started_at < SECONDS
    return process.stderr


CORPUS = (
    "from tasks.readers import read_files; from tasks.documents import TextColumns; from tasks.text_files import "
    "Reading; [None for _ in read_files(Path(sys.argv[1]), TextColumns('text'), 'auto', Reading())]"
)


def one_long_value(path: Path) -> None:
    pq.write_table(pa.table({"text": ["a" * (300 << 20)]}), path, compression="zstd")


def one_entry_for_all_rows(path: Path) -> None:
    """The footer states 10 MB, which are those of the dictionary; a batch of its rows has 10 GB."""
    same = pa.DictionaryArray.from_arrays(pa.array([0] * 4096, pa.int32()), pa.array(["b" * (10 << 20)]))
    pq.write_table(pa.table({"text": same}), path, compression="zstd", dictionary_pagesize_limit=1 << 30)


PARQUET: dict[str, tuple[Callable[[Path], None], str]] = {
    "one long value": (one_long_value, "bytes for a row; up to 67,108,864 are read"),
    "a dictionary": (one_entry_for_all_rows, "unfolds to more than 1,024 MB"),
}


@pytest.mark.parametrize("kind", PARQUET)
def test_parquet_that_unfolds_to_gigabytes(tmp_path: Path, kind: str) -> None:
    make, words = PARQUET[kind]
    make(tmp_path / "text.parquet")
    said = refused(CORPUS, str(tmp_path / "text.parquet"))
    assert words in said
    assert "text.parquet" in said


def test_the_bound_is_taken_back_and_holds_for_the_first_reader_that_enters() -> None:
    before = resource.getrlimit(resource.RLIMIT_DATA)

    def too_much() -> None:
        with limited("x.parquet", 64 << 20):
            bound = resource.getrlimit(resource.RLIMIT_DATA)
            assert bound != before
            with limited("y.parquet", 8 << 20):
                assert resource.getrlimit(resource.RLIMIT_DATA) == bound
            bytearray(256 << 20)

    with pytest.raises(InputError, match=r"x\.parquet unfolds to more than 64 MB"):
        too_much()
    assert resource.getrlimit(resource.RLIMIT_DATA) == before
    inside, leave = threading.Event(), threading.Event()

    def other() -> None:
        with limited("z", 1 << 30):
            inside.set()
            leave.wait(10)

    thread = threading.Thread(target=other)
    with limited("x", 1 << 30):
        thread.start()
        assert inside.wait(10)
    assert resource.getrlimit(resource.RLIMIT_DATA) != before  # the other one still reads
    leave.set()
    thread.join()
    assert resource.getrlimit(resource.RLIMIT_DATA) == before


def test_what_is_made_of_a_step_is_not_counted() -> None:
    before = resource.getrlimit(resource.RLIMIT_DATA)
    seen = []
    for number in limited_steps(iter(range(5)), "numbers", at_once=2):
        assert resource.getrlimit(resource.RLIMIT_DATA) == before
        seen.append(number)
    assert seen == [0, 1, 2, 3, 4]


def test_reading_lets_go_of_the_bound_where_its_user_stops(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_DATA)
    steps = limited_steps(iter(range(5)), "numbers")
    next(steps)
    steps.close()  # type: ignore[attr-defined]
    assert resource.getrlimit(resource.RLIMIT_DATA) == before


def device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def unix_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as end:
        end.bind(str(path))


NO_FILES: dict[str, Callable[[Path], Any]] = {"pipe": os.mkfifo, "device": device, "socket": unix_socket}
READERS: dict[str, Callable[[Path], Any]] = {
    "lines": lambda path: list(text_lines(path, "corpus.path")),
    "json": artifacts.read_json,
    "sha256": artifacts.sha256_of,
    "bytes": open_regular,
}


@pytest.mark.parametrize("kind", NO_FILES)
@pytest.mark.parametrize("reader", READERS)
def test_what_is_no_file_is_not_waited_for(tmp_path: Path, reader: str, kind: str) -> None:
    NO_FILES[kind](tmp_path / "a")
    started_at = time.monotonic()
    with pytest.raises((InputError, NotAFile, ValueError), match="is a pipe, socket or device"):
        READERS[reader](tmp_path / "a")
    assert time.monotonic() - started_at < 1


def test_a_pipe_that_takes_the_place_of_a_file_is_found_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a"
    path.write_text("text")
    real = os.open

    def swap(*arguments: Any) -> int:
        path.unlink()
        os.mkfifo(path)
        return real(*arguments)

    monkeypatch.setattr(os, "open", swap)
    with pytest.raises(NotAFile):
        open_regular(path)


@pytest.mark.parametrize("unit", ["[],", "{},", '{"":0},'])
def test_json_of_millions_of_empty_values(unit: str) -> None:
    with pytest.raises(ValueError, match="up to 4,000,000 are read"):
        artifacts.parse_json("[" + unit * 5_000_000 + "0]")


def test_an_object_and_a_table_of_a_million_names_are_looked_through_once() -> None:
    names = [f"n{number}" for number in range(400_000)]
    started_at = time.monotonic()
    with pytest.raises(ValueError, match="'n0' stands twice"):
        each_key_once([(name, 0) for name in [*names, "n0"]])
    with pytest.raises(InputError, match="400,000 columns; up to 10,000"):
        check_columns(names, [Column("text", "corpus.text_column", True)], "a.csv", Reading())
    assert time.monotonic() - started_at < 5
