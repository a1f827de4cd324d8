"""Standard streams, events and errors: what reaches people and a run, and that nothing ends in a traceback."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tasks.stage import streams
from tasks.stage.events import EVENTS, MAX_TEXT, report, report_progress
from tasks.stage.scratch import make_scratch
from tests.places import ROOT

BEFORE = """import os, subprocess, sys
from tasks.stage.errors import GateRejected, InputError, ParamsError
from tasks.plan.main import run_main
"""
CLOSING = "import os, sys; os.close(int(sys.argv[1])); os.execv(sys.executable, [sys.executable, '-c', sys.argv[2]])"


def ended(body, stdout=subprocess.PIPE, closed=None, **variables):
    program = f"{BEFORE}def main():\n    {body}\nrun_main(main)\n"
    words = [program] if closed is None else [CLOSING, str(closed), program]
    environment = {**os.environ, "PYTHONUNBUFFERED": "", **variables}
    streams = {"stdin": subprocess.DEVNULL, "stdout": stdout, "stderr": subprocess.PIPE}
    return subprocess.run([sys.executable, "-c", *words], cwd=ROOT, env=environment, check=False, **streams)


def unread(body):
    """The same, for a standard output whose reader has gone."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        return ended(body, stdout=writer)
    finally:
        os.close(writer)


@pytest.mark.parametrize(
    ("body", "end"),
    [
        ("print('one line')", (141, b"")),
        ("[print('a line') for _ in range(100_000)]", (141, b"")),
        ("print('one line'); raise ParamsError('fintune is not known')", (2, b"error: fintune is not known\n")),
    ],
)
def test_a_reader_that_has_gone_ends_a_command_in_silence_and_hides_no_error(body, end):
    done = unread(body)
    assert (done.returncode, done.stderr) == end


@pytest.mark.parametrize(
    ("failure", "code", "words"),
    [
        ("InputError('corpus.path is empty')", 1, b"error: corpus.path is empty"),
        ("ParamsError('fintune is not known')", 2, b"error: fintune is not known"),
        ("GateRejected('f1 is under the floor')", 3, b"f1 is under the floor"),
        ("BrokenPipeError(32, 'Broken pipe')", 1, b"error: Broken pipe"),
        ("OSError(28, 'No space left on device', 'data/rows')", 1, b"No space left on device (data/rows)"),
        ("KeyboardInterrupt", 130, b""),
        ("ZeroDivisionError", 1, b"Traceback"),
    ],
)
def test_each_kind_of_error_has_its_exit_code_and_only_a_defect_of_ours_a_traceback(failure, code, words):
    done = ended(f"raise {failure}")
    assert done.returncode == code
    assert words in done.stderr
    assert (b"Traceback" in done.stderr) == (failure == "ZeroDivisionError")


def test_a_full_disk_behind_standard_output_is_said_and_a_run_outlives_it():
    body = "with streams.outlive_output(): streams.say('one line')\n    print('a result'); note('the end', '')"
    body = f"from tasks.stage import streams; from tasks.stage.streams import note\n    {body}"
    with open("/dev/full", "wb") as full:
        plain, outlived = ended("print('one line')", stdout=full), ended(body, stdout=full)
    assert plain.returncode == 1
    assert plain.stderr.startswith(b"error: No space left on device")
    assert outlived.returncode == 0
    assert outlived.stderr.startswith(b"note: standard output cannot be written (No space left on device)")
    assert outlived.stderr.endswith(b"\nthe end\n")
    done = unread(body)
    assert (done.returncode, done.stderr) == (0, b"the end\n")


@pytest.mark.parametrize("closed", [0, 1, 2])
def test_what_a_child_says_into_a_closed_stream_gets_into_no_file(closed, tmp_path):
    file = tmp_path / "file"
    body = (
        f"stream = open({str(file)!r}, 'w'); print('to people', file=sys.stderr); print('to people')\n"
        "    subprocess.run(['sh', '-c', 'echo child; echo child >&2; read line'], check=False)\n"
        "    stream.write('data')"
    )
    done = ended(body, closed=closed)
    assert done.returncode == 0
    assert b"Traceback" not in done.stderr
    assert file.read_text() == "data"


def test_a_terminal_shows_what_it_cannot_show_as_numbers():
    done = ended(
        "print('\\u00e9 \\u4e2d'); raise ParamsError('\\u4e2d ' + os.fsdecode(b'\\xff'))",
        PYTHONIOENCODING="latin-1:strict",
    )
    assert (done.returncode, done.stdout) == (2, b"\xe9 \\u4e2d\n")
    assert done.stderr == b"error: \\u4e2d \\udcff\n"


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    folder = make_scratch(for_sockets=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(str(folder / "events"))
        monkeypatch.setenv(EVENTS, str(folder / "events"))
        yield receiver
    (folder / "events").unlink()
    folder.rmdir()


def test_a_run_receives_events_in_order(run: socket.socket, capsys: pytest.CaptureFixture[str]) -> None:
    assert report_progress(0.42, "update 3/7")
    assert report("failed", text="x" * 1_000_000)
    streams.note("3 labels are new")
    events = [json.loads(run.recv(1 << 18)) for _ in range(3)]
    assert events[0] == {"event": "progress", "percent": 42, "text": "update 3/7"}
    assert len(events[1]["text"]) == MAX_TEXT
    assert events[2] == {"event": "note", "text": "3 labels are new"}
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("path", [None, "", "/nowhere/events"])
def test_without_a_run_a_stage_works_and_prints_its_notes(
    path: str | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv(EVENTS, raising=False) if path is None else monkeypatch.setenv(EVENTS, path)
    assert not report("started", pid=1)
    streams.note("3 labels are new")
    assert capsys.readouterr().err == "note: 3 labels are new\n"
