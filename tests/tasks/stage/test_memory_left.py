"""Sizes are tested against the memory that is left, and memory that is used up is one line."""

from __future__ import annotations

import json
import re
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from flows.cli import cli
from tasks.downstream.squad.examples import WHOLE_BYTES, check_question_file
from tasks.downstream.squad.params import SquadDataParams
from tasks.downstream.squad.questions import read_question_file
from tasks.records.interpretation import Interpretation
from tasks.stage import memory
from tasks.stage.errors import InputError
from tasks.stage.memory import limit_memory, memory_left, require_memory
from tests.places import ROOT
from tests.tasks.stage.bounded import run

KEY = "downstream.squad.data.train_path"
MB = 1 << 20


def leave(monkeypatch: pytest.MonkeyPatch, mb: int) -> None:
    """Let host and cgroup leave this much memory."""
    monkeypatch.setattr(memory, "free_memory", lambda: mb * MB)


def test_the_least_of_host_and_limit_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    leave(monkeypatch, 100)
    assert memory_left() == 100 * MB
    present = memory._present()
    monkeypatch.setattr(resource, "getrlimit", lambda which: (present + 8 * MB, resource.RLIM_INFINITY))
    assert 0 <= (memory_left() or 0) <= 9 * MB
    monkeypatch.setattr(resource, "getrlimit", lambda which: (MB, resource.RLIM_INFINITY))
    assert memory_left() == 0


def test_a_size_is_refused_with_what_it_takes_and_what_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    leave(monkeypatch, 100)
    require_memory("a.json", 25 * MB, 4, "split it")
    with pytest.raises(InputError, match="27,262,976 bytes, which need about 104 MB of memory. 100 MB are left"):
        require_memory("a.json", 26 * MB, 4, "split it")
    monkeypatch.setattr(memory, "free_memory", lambda: None)
    require_memory("a.json", 1 << 60, 4, "split it")


def test_reading_takes_no_more_than_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    leave(monkeypatch, 8)
    with pytest.raises(InputError, match=r"x\.parquet expands to more than 8 MB"), limit_memory("x.parquet"):
        bytearray(64 << 30)


def squad_json(path: Path, context: str) -> Path:
    answers = [{"text": "Ada", "answer_start": 0}]
    questions = [{"id": "q0", "question": "Who?", "answers": answers}]
    path.write_text(json.dumps({"data": [{"paragraphs": [{"context": context, "qas": questions}]}]}))
    return path


def test_a_file_of_questions_is_refused_before_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = squad_json(tmp_path / "train.json", "Ada came. " * 100_000)
    leave(monkeypatch, 2)
    with pytest.raises(InputError, match=r"train\.json \(.*train_path\) has 1,000,\d+ bytes, which need about 2 MB of"):
        read_question_file(path, KEY, SquadDataParams(), Interpretation())
    path.write_text(" " * (WHOLE_BYTES + 1))
    with pytest.raises(InputError, match=r"train\.json .* 16,777,217 bytes, which need about 48 MB .* 2 MB are left"):
        check_question_file(path, KEY, SquadDataParams(), Interpretation())


def test_a_long_text_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "Ada came. " * 150_000
    path = squad_json(tmp_path / "train.json", text)
    table = tmp_path / "train.jsonl"
    table.write_text(json.dumps({"context": text, "question": "Who?", "answers": {"text": [], "answer_start": []}}))
    leave(monkeypatch, 40)
    with pytest.raises(InputError, match=r"the context of question 'q0' has 1,500,000 bytes, which need about 45 MB"):
        read_question_file(path, KEY, SquadDataParams(), Interpretation())
    with pytest.raises(InputError, match="has 1,500,000 bytes, which need about 45 MB"):
        read_question_file(table, KEY, SquadDataParams(unanswerable="use"), Interpretation())
    (tmp_path / "book.txt").write_text(text)
    found = CliRunner().invoke(
        cli, ["predict", "nowhere", "--text", "Who?", "--context-file", str(tmp_path / "book.txt")]
    )
    assert isinstance(found.exception, InputError)
    assert "book.txt has 1,500,000 bytes, which need about 45 MB of memory. 40 MB are left" in str(found.exception)


@pytest.mark.parametrize("code", ["bytearray(1 << 60)", "import numpy; numpy.empty(1 << 50)"])
def test_memory_that_is_used_up_is_one_line(code: str) -> None:
    process, _ = run(code)
    assert process.returncode == 1
    assert process.stderr.startswith("error: out of memory (")
    assert process.stderr.count("\n") == 1, process.stderr
    assert "MB are left by the host, its cgroup and RLIMIT_DATA): split the input" in process.stderr


def test_a_process_within_a_limit_refuses_a_file_early(tmp_path: Path) -> None:
    (tmp_path / "train.json").write_text('{"data": [' + " " * (60 * MB) + "]}")
    limit = "import resource; from tasks.stage.memory import _present; at = _present() + (150 << 20); "
    limit += "resource.setrlimit(resource.RLIMIT_DATA, (at, at)); "
    code = limit + (
        "from tasks.downstream.squad.params import SquadDataParams; "
        "from tasks.records.interpretation import Interpretation; "
        "from tasks.downstream.squad.questions import read_question_file; "
        f"read_question_file(Path(sys.argv[1]), {KEY!r}, SquadDataParams(), Interpretation())"
    )
    process, peak_mb = run(code, str(tmp_path / "train.json"))
    assert process.returncode == 1
    assert process.stderr.startswith(f"error: {tmp_path / 'train.json'} ({KEY}) has 62,914,572 bytes"), process.stderr
    assert peak_mb < 60  # nothing of the 60 MB is read


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
    if code:
        assert re.match(
            r"error: stage rows@squad used \d+ MB of memory, and 2\d\d MB were left by the host, its cgroup and "
            r"RLIMIT_DATA: split the input, ",
            process.stderr,
        )
        assert process.stderr.count("\n") == 1
    else:
        assert not process.stderr  # the watcher has closed it, so it has ended
