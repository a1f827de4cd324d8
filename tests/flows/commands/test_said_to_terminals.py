"""Words of users on a terminal: whatever a command says of them, the terminal is told nothing by them."""

import contextlib
import json

import pytest

from flows import cli
from flows.commands import options
from flows.runs import listing
from flows.runs.report import RunReport, StageRecord
from flows.views import screen
from ipu_model.core.files import write_json
from tasks.stage import streams
from tests.places import ROOT

HOSTILE = "\x1b]0;owned\x07\x1b[31mred\x9b2J\x7f\b\r\u202egnp"
SHOWN = "\\x1b]0;owned\\x07\\x1b[31mred\\x9b2J\\x7f\\x08\\r\\u202egnp"


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A project with a run whose record and folder are hostile."""
    for name in ("dvc.yaml", "params.yaml"):
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    (tmp_path / "presets").mkdir()
    (tmp_path / "presets/mine.yaml").write_text('description: "a \\x1b[31mred one"\n')
    record = RunReport(
        f"runs/checkouts/{HOSTILE}", HOSTILE, error=HOSTILE, command=HOSTILE, began="2026-11-23T10:00:00+0000"
    )
    record.ended = "2026-11-23T10:12:31+0000"
    record.stages = [StageRecord(HOSTILE, "failed", 1.0, HOSTILE)]
    record.results = {"gate": {"name": HOSTILE, "scores": {HOSTILE: 1.0}, "decision": None, "published": None}}
    write_json(tmp_path / f"runs/checkouts/{HOSTILE}/reports/run.json", record.as_values())
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    "words",
    [
        ("runs",),
        ("runs", "--json"),
        ("runs", "show", HOSTILE),
        ("runs", "show", f"no-{HOSTILE}"),
        ("compare", HOSTILE, "other"),
        ("clean", HOSTILE),
        ("params", "presets", "show", "mine"),
        ("params", "list", HOSTILE),
        ("params", "show", "--set", f"publish.title={HOSTILE}"),
        ("params", "show", "--set", f"{HOSTILE}=1"),
        ("plan", "--preset", HOSTILE),
        ("plan", "--set", f"corpus.path={HOSTILE}"),
        ("run", "--name", HOSTILE),
        ("run", "--set", HOSTILE),
        ("predict", HOSTILE, "--text", "question", "--context", "text"),
        ("predict", "model", "--text", "question", "--context-file", HOSTILE),
        ("evaluate", "predictions.json", HOSTILE),
        ("--project", HOSTILE, "run"),
        (HOSTILE,),
        (f"--{HOSTILE}",),
        ("runs", "--status", HOSTILE),
    ],
    ids=lambda words: " ".join(words).translate({ord(char): "." for char in HOSTILE if not char.isprintable()})[:40],
)
def test_no_command_passes_on_what_a_terminal_would_obey(project, capsys, words):
    with contextlib.suppress(SystemExit):
        cli.main(list(words))
    said = capsys.readouterr()
    shown = said.out + said.err
    assert shown
    assert [char for char in shown if not (char.isprintable() or char in "\t\n\xa0")] == []


def test_the_end_of_a_run_is_said_without_commands(project, capsys):
    (found,) = [one for one in listing.list_all(project) if one.record is not None]
    screen.print_end(found.record, [], project / HOSTILE)
    said = capsys.readouterr()
    assert SHOWN in said.out
    assert SHOWN in said.err
    assert not set(said.out + said.err) & set("\x1b\x9b\x07\r\u202e")


def test_json_for_programs_is_the_same_and_has_no_command(capsys):
    values = {"a": HOSTILE, "é": "\U000e0001 ü"}
    options.print_json(values)
    said = capsys.readouterr().out
    assert json.loads(said) == values
    assert [char for char in said if not (char.isprintable() or char == "\n")] == []


def test_words_of_all_languages_stay_as_they_are():
    text = "naïve 日本語\u3000語 עברית می\u200cخواهم क्\u200dष 100\xa0% 🎉\tand\nso on"
    assert streams.printable(text) == text
    assert streams.printable(HOSTILE) == SHOWN
