"""The table counts what its cases enter, and says whether all held."""

import json

import pytest

from tests.faults import table


@pytest.fixture
def lines(tmp_path, monkeypatch):
    path = tmp_path / "faults.jsonl"
    path.with_suffix(".began").touch()
    monkeypatch.setenv(table.LINES, str(path))
    return path


def test_a_case_is_entered_with_what_came_of_it(lines):
    with table.case("disk full", "models") as notes:
        notes.append("said so")
    for error in (table.Lost("bytes"), table.HalfPublished("half"), table.Leak("a process"), AssertionError("other")):
        with pytest.raises(AssertionError), table.case("disk full"):
            raise error
    found = table.read(lines)
    assert [entry["outcome"] for entry in found] == ["held", "lost", "half-published", "leaked", "lost"]
    assert (found[0]["case"], found[0]["note"], found[2]["note"]) == ("models", "said so", "half")


def test_what_is_no_failed_promise_is_entered_as_lost_too(lines):
    with pytest.raises(TimeoutError), table.case("server lost"):
        raise TimeoutError
    assert [entry["outcome"] for entry in table.read(lines)] == ["lost"]


def test_the_table_adds_up_and_fails_unless_all_held(lines, tmp_path, capsys):
    for outcome, seconds in (("held", 1.0), ("held", 2.5)):
        table.record("b", outcome, seconds=seconds)
    assert table.main(lines, tmp_path / "reports") == 0
    table.record("a", "leaked", "case 3", note="a server")
    assert table.main(lines, tmp_path / "reports") == 1
    said = capsys.readouterr().out
    assert "| b | 2 | 2 | 0 | 0 | 0 | 0 | 3.5 |" in said
    assert "| all | 3 | 2 | 0 | 0 | 1 | 0 | 3.5 |" in said
    assert "- leaked: a, case 3: a server" in said
    assert json.loads((tmp_path / "reports" / "faults.json").read_text())["rows"][0]["row"] == "a"
    assert (tmp_path / "reports" / "faults.md").read_text() in said


def test_no_case_at_all_is_no_success(lines, tmp_path):
    assert table.main(lines, tmp_path / "reports") == 1
