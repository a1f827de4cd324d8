"""Small files that unfold to gigabytes, files that are none, and sizes beyond the memory that is left are refused."""

import json
import os
import re
import resource
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from flows.cli import cli
from ipu_model.core.files import NotAFile, open_regular, parse_json, reject_duplicate_keys
from tasks.downstream.squad.examples import WHOLE_BYTES, check_question_file
from tasks.downstream.squad.params import SquadDataParams
from tasks.downstream.squad.questions import read_question_file
from tasks.pretraining.rows import prepared_files
from tasks.records.interpretation import Interpretation
from tasks.records.tables import ColumnSpec, match_columns
from tasks.stage import memory
from tasks.stage.errors import InputError
from tasks.stage.memory import iterate_limited, limit_memory, memory_left, require_memory
from tests.places import ROOT
from tests.tasks.tiny_model import write_tiny_model

MOST_MB = 1536
"""Above the 200 MB or so of a process with its libraries, a gigabyte, and room for neither to be exact."""
SECONDS = 300
"""Of a host that is busy; alone each takes one or two, and what is not bounded hours."""
MB = 1 << 20


def run(code: str, *words: str) -> tuple[subprocess.CompletedProcess[str], int]:
    """Run `code` as a stage does; how it ended, and its peak memory in MB."""
    peak = "next(line.split()[1] for line in open('/proc/self/status') if line.startswith('VmHWM'))"
    script = (
        "import sys; from pathlib import Path; from tasks.plan.main import run_main\n"
        f"def main():\n    {code}\ntry:\n    run_main(main)\nfinally:\n    print({peak})"
    )
    command, environment = [sys.executable, "-c", script, *words], {**os.environ, "HF_HUB_OFFLINE": "1"}
    process = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    return process, int(process.stdout or 0) >> 10


def refused(code: str, path: Path, most_mb: int = MOST_MB, ends: tuple[int, ...] = (1,)) -> str:
    """Run `code` on a file, which must end in one of our errors, soon and with little memory; its message."""
    started_at = time.monotonic()
    process, peak_mb = run(code, str(path))
    assert process.returncode in ends, process.stderr
    assert process.stderr.startswith("error: "), process.stderr
    assert 0 < peak_mb < most_mb, f"{peak_mb} MB"
    assert time.monotonic() - started_at < SECONDS
    return process.stderr


CORPUS = (
    "from tasks.corpus.documents import document_columns, name_files, read_piece; "
    "from tasks.records.interpretation import Interpretation; "
    "columns, reading = document_columns('text'), Interpretation(); "
    "files = name_files(Path(sys.argv[1]), 'auto', reading, columns); "
    "[None for file in files for _ in read_piece(file, columns, reading)]"
)


def one_long_value(path: Path) -> None:
    pq.write_table(pa.table({"text": ["a" * (100 << 20)]}), path, compression="zstd")


def one_entry_for_all_rows(path: Path) -> None:
    """The footer states 10 MB, which are those of the dictionary; a batch of its rows has 10 GB."""
    same = pa.DictionaryArray.from_arrays(pa.array([0] * 4096, pa.int32()), pa.array(["b" * (10 << 20)]))
    pq.write_table(pa.table({"text": same}), path, compression="zstd", dictionary_pagesize_limit=1 << 30)


def many_columns(path: Path) -> None:
    pq.write_table(pa.table({f"c{number}": [1] for number in range(10_001)}), path)


def varint(number: int) -> bytes:
    """As Thrift's compact protocol writes it."""
    return bytes([number]) if number < 128 else bytes([number & 127 | 128]) + varint(number >> 7)


def a_long_footer(path: Path) -> None:
    path.write_bytes(b"PAR1\x15\x02" + bytes(64 << 20) + struct.pack("<I", 64 << 20) + b"PAR1")


def a_small_lie(path: Path) -> None:
    """The footer states 100 bytes where its page has 1.2 GB, as many rows as there are."""
    table = pa.chunked_array([pa.array(["a" * (300 << 20)])] * 4)
    plain = dict.fromkeys(["write_statistics", "store_schema", "use_dictionary"], False)
    pq.write_table(pa.table({"text": table}), path, compression="zstd", row_group_size=4, **plain)
    group = pq.read_metadata(path).row_group(0)
    content = path.read_bytes()
    for stated in {group.total_byte_size, group.column(0).total_uncompressed_size}:
        long = varint(stated << 1)
        content = content.replace(long, b"\xc8\x81" + b"\x80" * (len(long) - 3) + b"\0")
    path.write_bytes(content)
    assert pq.read_metadata(path).row_group(0).total_byte_size == 100


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (one_long_value, "bytes; at most 67,108,864"),
        (many_columns, "10,001 columns; at most 10,000"),
        (one_entry_for_all_rows, "more than 1,024 MB"),
        (a_small_lie, "more than 1,024 MB"),
        (a_long_footer, "a footer of 67,108,864 bytes; at most 16,777,216"),
    ],
)
def test_parquet_that_unfolds_to_gigabytes(tmp_path: Path, make: Callable[[Path], None], words: str) -> None:
    make(tmp_path / "text.parquet")
    assert re.search(rf"text\.parquet.*{words}", refused(CORPUS, tmp_path / "text.parquet"))


@pytest.mark.parametrize("stated", [1 << 31, 1 << 62], ids=["2 GB", "more than there is"])
def test_arrow_that_unfolds_to_gigabytes(tmp_path: Path, stated: int) -> None:
    """2 GB of zeros, packed; their size as it is, or as `stated`."""
    path, options = tmp_path / "rows.arrow", pa.ipc.IpcWriteOptions(compression="zstd")
    batch = pa.record_batch({"input_ids": pa.array(np.zeros(1 << 28, np.int64))})
    with pa.ipc.new_file(str(path), batch.schema, options=options) as writer:
        writer.write_batch(batch)
    content, real = path.read_bytes(), struct.pack("<q", 1 << 31)
    assert (real in content, len(content) < MB) == (True, True)
    path.write_bytes(content.replace(real, struct.pack("<q", stated)))
    code = (
        "from tasks.records.parquet import read_checked_batches; "
        "[None for _ in read_checked_batches(Path(sys.argv[1]), 2048, 'a file')]"
    )
    assert "a file expands to more than 1,024 MB" in refused(code, path)


@pytest.mark.soak
def test_a_data_set_that_unfolds_to_gigabytes(tmp_path: Path) -> None:
    one_entry_for_all_rows(tmp_path / "train.parquet")
    code = (
        "from tasks.records.hub_inputs import open_dataset; "
        "[None for _ in open_dataset('corpus', sys.argv[1], None, 'train', None)]"
    )
    # Where memory ran out, a thread of the library may abort the process at its very end, after all messages.
    ends = (1, -signal.SIGABRT)
    assert "expands to more than 1,536 MB" in refused(code, tmp_path, most_mb=2048, ends=ends)


def checksum(text: bytes) -> bytes:
    crc = google_crc32c.value(text)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


@pytest.mark.parametrize("length", [2**63, 5 << 20])
def test_a_record_that_claims_to_be_huge(tmp_path: Path, length: int) -> None:
    head = struct.pack("<Q", length)
    (tmp_path / "a.tfrecord").write_bytes(head + checksum(head) + checksum(b""))
    with pytest.raises(InputError, match=f"record 0 has {length:,} bytes; at most 4,194,304"):
        list(prepared_files.read_tfrecords(tmp_path / "a.tfrecord", ["input_ids"]))


@pytest.mark.parametrize(
    "write",
    [
        pytest.param(lambda: "[" * (100 << 20), id="brackets"),
        pytest.param(lambda: '"' + "x" * (120 << 20) + '\N{GRINNING FACE}"', marks=pytest.mark.soak, id="one text"),
        pytest.param(lambda: "[" + "1e5," * (28 << 20), marks=pytest.mark.soak, id="numbers"),
        pytest.param(lambda: " " * (200 << 20), id="too much"),
    ],
)
def test_json_of_a_hundred_megabytes(tmp_path: Path, write: Callable[[], str]) -> None:
    (tmp_path / "predictions.json").write_text(write(), encoding="utf-8")
    code = "from tasks.downstream.squad.score_files import read_predictions; read_predictions(Path(sys.argv[1]))"
    assert "predictions.json" in refused(code, tmp_path / "predictions.json")


def test_the_bound_is_taken_back_and_is_no_wider_inside_another(monkeypatch: pytest.MonkeyPatch) -> None:
    before = resource.getrlimit(resource.RLIMIT_DATA)

    def too_much() -> None:
        with limit_memory("x.parquet", 64 << 20):
            bound = resource.getrlimit(resource.RLIMIT_DATA)
            assert bound != before
            with limit_memory("y.parquet", 1 << 30):
                assert resource.getrlimit(resource.RLIMIT_DATA) == bound
            with limit_memory("y.parquet", 8 << 20):
                assert resource.getrlimit(resource.RLIMIT_DATA) < bound
            assert resource.getrlimit(resource.RLIMIT_DATA) == bound
            bytearray(64 << 30)  # more than garbage of other tests could make room for

    with pytest.raises(InputError, match=r"x\.parquet expands to more than 64 MB"):
        too_much()
    assert resource.getrlimit(resource.RLIMIT_DATA) == before
    leave(monkeypatch, 8)
    with pytest.raises(InputError, match=r"x\.parquet expands to more than 8 MB"), limit_memory("x.parquet"):
        bytearray(64 << 30)


def test_what_is_made_of_a_step_is_not_counted_and_a_reader_that_stops_lets_go_of_the_bound() -> None:
    before = resource.getrlimit(resource.RLIMIT_DATA)
    bounds = {number: resource.getrlimit(resource.RLIMIT_DATA) for number in iterate_limited(iter(range(5)), "n", 2)}
    assert bounds == dict.fromkeys(range(5), before)
    steps = iterate_limited(iter(range(5)), "numbers")
    next(steps)
    steps.close()  # type: ignore[attr-defined]
    assert resource.getrlimit(resource.RLIMIT_DATA) == before


def make_no_files(folder: Path) -> list[Path]:
    os.mkfifo(folder / "pipe")
    (folder / "device").symlink_to("/dev/zero")
    with socket.socket(socket.AF_UNIX) as end:
        end.bind(str(folder / "socket"))
    return [folder / name for name in ("pipe", "device", "socket")]


@pytest.mark.parametrize(
    "words",
    [
        ["predict", "MODEL", "--text", "Who?", "--context-file", "FILE"],
        ["evaluate", "FILE", "FILE"],
        ["compare", "FILE", "FILE", "--questions", "FILE"],
        ["predict", "FILE", "--text", "Who?", "--context", "Ada came."],
    ],
    ids=["context", "score", "compare", "model"],
)
def test_what_is_no_file_on_the_command_line(tmp_path: Path, words: list[str]) -> None:
    model = write_tiny_model(tmp_path / "model", ["ada"])
    for path in make_no_files(tmp_path):
        named = {"MODEL": str(model), "FILE": str(path)}
        result = CliRunner().invoke(cli, [named.get(word, word) for word in words])
        assert isinstance(result.exception, InputError), result.exception
        assert re.search("is a (file|pipe, socket or device)", str(result.exception))


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
        parse_json("[" + unit * 5_000_000 + "0]")


def test_an_object_and_a_table_of_a_million_names_are_looked_through_once() -> None:
    names = [f"n{number}" for number in range(400_000)]
    with pytest.raises(ValueError, match="'n0' occurs twice"):
        reject_duplicate_keys([(name, 0) for name in [*names, "n0"]])
    with pytest.raises(InputError, match="400,000 columns; at most 10,000"):
        match_columns(names, [{"text": ColumnSpec(("text",), "corpus.text_column")}], "a.csv", Interpretation())


def leave(monkeypatch: pytest.MonkeyPatch, mb: int) -> None:
    monkeypatch.setattr(memory, "free_memory", lambda: mb * MB)


def test_the_least_of_host_and_limit_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    leave(monkeypatch, 100)
    assert memory_left() == 100 * MB
    present = int(Path("/proc/self/status").read_text().partition("VmData:")[2].split()[0]) << 10
    monkeypatch.setattr(resource, "getrlimit", lambda which: (present + 8 * MB, resource.RLIM_INFINITY))
    assert 0 < (memory_left() or 0) <= 12 * MB
    monkeypatch.setattr(resource, "getrlimit", lambda which: (MB, resource.RLIM_INFINITY))
    assert memory_left() == 0


def test_a_size_is_refused_with_what_it_takes_and_what_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    leave(monkeypatch, 100)
    require_memory("a.json", 25 * MB, 4, "split it")
    with pytest.raises(InputError, match="27,262,976 bytes, .* 104 MB .* 100 MB are left"):
        require_memory("a.json", 26 * MB, 4, "split it")
    monkeypatch.setattr(memory, "free_memory", lambda: None)
    require_memory("a.json", 1 << 60, 4, "split it")


def test_a_file_of_questions_or_a_long_text_in_it_is_refused_before_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(path: Path, reader: Any = read_question_file, **settings: Any) -> None:
        reader(path, "downstream.squad.data.train_path", SquadDataParams(**settings), Interpretation())

    text, path, table = "Ada came. " * 150_000, tmp_path / "train.json", tmp_path / "train.jsonl"
    question = {"id": "q0", "question": "Who?", "answers": [{"text": "Ada", "answer_start": 0}]}
    path.write_text(json.dumps({"data": [{"paragraphs": [{"context": text, "qas": [question]}]}]}))
    table.write_text(json.dumps({"context": text, "question": "Who?", "answers": {"text": [], "answer_start": []}}))
    (tmp_path / "book.txt").write_text(text)
    leave(monkeypatch, 40)
    with pytest.raises(InputError, match=r"question 'q0' has 1,500,000 bytes"):
        read(path)
    with pytest.raises(InputError, match="1,500,000 bytes"):
        read(table, unanswerable="use")
    words = ["predict", "nowhere", "--text", "Who?", "--context-file", str(tmp_path / "book.txt")]
    with pytest.raises(InputError, match=r"book\.txt has 1,500,000 bytes"):
        CliRunner().invoke(cli, words, catch_exceptions=False)
    leave(monkeypatch, 2)
    with pytest.raises(InputError, match=r"train\.json \(.*train_path\) has 1,500,\d+ bytes"):
        read(path)
    path.write_text(" " * (WHOLE_BYTES + 1))
    with pytest.raises(InputError, match=r"train\.json .* 16,777,217 bytes, .* 2 MB are left"):
        read(path, check_question_file)


@pytest.mark.parametrize("code", ["bytearray(1 << 60)", "import numpy; numpy.empty(1 << 50)"])
def test_memory_that_is_used_up_is_one_line(code: str) -> None:
    process, _ = run(code)
    assert process.returncode == 1
    assert process.stderr.startswith("error: out of memory (")
    assert process.stderr.count("\n") == 1, process.stderr
    assert "RLIMIT_DATA): split the input" in process.stderr


@pytest.mark.parametrize(("mb", "code"), [(50, 0), (400, -signal.SIGKILL)])
def test_a_stage_ends_at_its_limit_of_resident_memory(mb: int, code: int) -> None:
    script = (
        "import numpy, signal; from tasks.stage import memory; memory.free_memory = lambda: 200 << 20\n"
        "memory.watch_memory('stage rows@squad')\n"
        f"address_space, resident = numpy.empty(1 << 27), b'x' * ({mb} << 20)\n"
        f"if {code}: signal.pause()"
    )
    process = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert process.returncode == code
    line = r"error: stage rows@squad used \d+ MB of memory, and 2\d\d MB were left .*: split the input, .*\n"
    assert re.fullmatch(line if code else "", process.stderr)  # the watcher has closed it, so it has ended
