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
    others = (table.Lost("bytes"), table.HalfPublished("half"), table.Leak("a process"), AssertionError("other"))
    for error in (*others, TimeoutError()):
        with pytest.raises(type(error)), table.case("disk full"):
            raise error
    found = table.read(lines)
    assert [entry["outcome"] for entry in found] == ["held", "lost", "half-published", "leaked", "lost", "lost"]
    assert (found[0]["case"], found[0]["note"], found[2]["note"]) == ("models", "said so", "half")


def test_the_table_adds_up_and_fails_unless_there_are_cases_and_all_held(lines, tmp_path, capsys):
    reports = tmp_path / "reports"
    assert table.main(lines, reports) == 1
    for outcome, seconds in (("held", 1.0), ("held", 2.5)):
        table.record("b", outcome, seconds=seconds)
    assert table.main(lines, reports) == 0
    table.record("a", "leaked", "case 3", note="a server")
    assert table.main(lines, reports) == 1
    said = capsys.readouterr().out
    assert "| b | 2 | 2 | 0 | 0 | 0 | 0 | 3.5 |" in said
    assert "| all | 3 | 2 | 0 | 0 | 1 | 0 | 3.5 |" in said
    assert "- leaked: a, case 3: a server" in said
    assert json.loads((reports / "faults.json").read_text())["rows"][0]["row"] == "a"
