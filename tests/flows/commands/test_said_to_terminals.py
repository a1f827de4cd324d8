"""Words of users on a terminal: whatever a command says of them, the terminal is told nothing by them."""

import contextlib
import json

import pytest

from flows import cli
from flows.commands import options
from flows.runs import listing
from flows.runs.report import RunReport, StageRecord
from flows.views import screen
from tasks.stage import streams
from tests.places import copy_project

HOSTILE = "\x1b]0;owned\x07\x1b[31mred\x9b2J\x7f\b\r\u202egnp"
SHOWN = "\\x1b]0;owned\\x07\\x1b[31mred\\x9b2J\\x7f\\x08\\r\\u202egnp"


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A project with a run whose record and folder are hostile."""
    copy_project(tmp_path, ("dvc.yaml", "params.yaml"))
    (tmp_path / "presets").mkdir()
    (tmp_path / "presets/mine.yaml").write_text('description: "a \\x1b[31mred one"\n')
    record = RunReport(f"runs/checkouts/{HOSTILE}", HOSTILE, error=HOSTILE, command=HOSTILE)
    record.began, record.ended = "2026-11-23T10:00:00+0000", "2026-11-23T10:12:31+0000"
    record.stages = [StageRecord(HOSTILE, "failed", 1.0, HOSTILE)]
    record.results = {"gate": {"name": HOSTILE, "scores": {HOSTILE: 1.0}, "decision": None, "published": None}}
    record.save(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    "words",
    [
        "runs",
        "runs show HOSTILE",
        "runs show no-HOSTILE",
        "compare HOSTILE other",
        "params presets show mine",
        "params show --set publish.title=HOSTILE",
        "plan --set corpus.path=HOSTILE",
        "run --set HOSTILE",
        "predict model --text question --context-file HOSTILE",
        "--project HOSTILE run",
        "HOSTILE",
        "--HOSTILE",
        "runs --status HOSTILE",
    ],
)
def test_no_command_passes_on_what_a_terminal_would_obey(project, capsys, words):
    with contextlib.suppress(SystemExit):
        cli.main([word.replace("HOSTILE", HOSTILE) for word in words.split()])
    shown = "".join(capsys.readouterr())
    assert shown
    assert [char for char in shown if not (char.isprintable() or char in "\t\n\xa0")] == []


def test_the_end_of_a_run_is_said_without_commands(project, capsys):
    (run,) = [run for run in listing.list_all(project) if run.record is not None]
    screen.print_end(run.record, [], project / HOSTILE)
    printed = capsys.readouterr()
    assert (SHOWN in printed.out, SHOWN in printed.err) == (True, True)
    assert not set(printed.out + printed.err) & set("\x1b\x9b\x07\r\u202e")


def test_json_for_programs_is_the_same_and_has_no_command(capsys):
    values = {"a": HOSTILE, "é": "\U000e0001 ü"}
    options.print_json(values)
    shown = capsys.readouterr().out
    assert json.loads(shown) == values
    assert [char for char in shown if not (char.isprintable() or char == "\n")] == []


def test_words_of_all_languages_stay_as_they_are():
    text = "naïve 日本語\u3000語 עברית می\u200cخواهم क्\u200dष 100\xa0% 🎉\tand\nso on"
    assert streams.printable(text) == text
    assert streams.printable(HOSTILE) == SHOWN
