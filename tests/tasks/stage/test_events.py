"""Events of a stage: whom they reach, and what they cost without a run."""

import json
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tasks.stage import streams
from tasks.stage.events import EVENTS, MAX_TEXT, report, report_progress
from tasks.stage.scratch import make_scratch


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """Socket of a run."""
    folder = make_scratch(for_sockets=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(str(folder / "events"))
        monkeypatch.setenv(EVENTS, str(folder / "events"))
        yield receiver
    (folder / "events").unlink()
    folder.rmdir()


def test_a_run_receives_events_in_order_and_texts_of_any_length(
    run: socket.socket, capsys: pytest.CaptureFixture[str]
) -> None:
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


def test_sockets_have_short_paths_wherever_temporary_files_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / ("long" * 20)))
    folder = make_scratch(for_sockets=True)
    assert len(str(folder / "events")) <= 103
    folder.rmdir()
