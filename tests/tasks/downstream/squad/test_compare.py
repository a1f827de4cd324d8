"""Two prediction files on the same questions: numbers by hand, and the command."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from tasks.downstream.scoring.significance import mcnemar_exact
from tasks.downstream.squad.compare import changed_csv, compare, compare_files, format_comparison
from tasks.stage.errors import InputError
from tests.podium_here import call_podium

REFERENCES = [(str(number), ("red house",)) for number in range(40)]


def answers(right: int, wrong: str = "sea") -> dict[str, str]:
    """The first `right` questions right."""
    return {identifier: "red house" if number < right else wrong for number, (identifier, _) in enumerate(REFERENCES)}


@pytest.mark.parametrize(
    ("first_only", "second_only", "p"),
    # Two-sided sign test: 2 * sum of binomials; 5 of 5: 2 / 32; 6 of 6: 2 / 64; 1 of 4: 2 * (1 + 4) / 16.
    [(0, 5, 0.0625), (6, 0, 0.03125), (1, 3, 0.625), (4, 4, 1.0), (0, 0, 1.0)],
)
def test_mcnemar_by_hand(first_only: int, second_only: int, p: float) -> None:
    first = [1.0] * 10 + [1.0] * first_only + [0.0] * second_only + [0.0] * 3
    second = [1.0] * 10 + [0.0] * first_only + [1.0] * second_only + [0.0] * 3
    found = mcnemar_exact(np.array(first), np.array(second))
    assert (found.first_only, found.second_only) == (first_only, second_only)
    assert found.p_value == pytest.approx(p)


def test_a_comparison_is_of_the_questions_that_both_answered() -> None:
    first, second = answers(20), {**answers(30), "extra": "x"}
    del first["0"], second["39"]
    found = compare(REFERENCES, first, second)
    assert found["questions"] == 38
    assert (found["exact_match_first"], found["exact_match_second"]) == (50.0, 76.3158)  # 19 and 29 of 38
    assert found["exact_match_difference"]["mean"] == pytest.approx(1000 / 38, abs=1e-4)
    assert found["exact_match_difference"]["low"] > 0
    assert (found["mcnemar"]["first_only"], found["mcnemar"]["second_only"]) == (0, 10)
    assert [one["id"] for one in found["changed"]] == [str(number) for number in range(20, 30)]
    with pytest.raises(ValueError, match="no question has both predictions"):
        compare(REFERENCES, {"0": "x"}, {"1": "x"})


def test_an_answer_that_changes_without_its_score_is_listed_too() -> None:
    found = compare(REFERENCES, answers(20), answers(20, wrong="lake"))
    assert len(found["changed"]) == 20
    assert found["f1_difference"]["low"] == found["f1_difference"]["high"] == 0.0
    assert found["mcnemar"]["p_value"] == 1.0
    words = format_comparison(found, 0.95)
    assert "40 questions with both predictions, 20 answers changed" in words
    assert "exact match: 50.00 -> 50.00, +0.00 points" in words
    assert len(list(csv.reader(changed_csv(found["changed"]).splitlines()))) == 21


def test_the_command_prints_and_writes_the_comparison(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    qas = [
        {"id": name, "question": "?", "answers": [{"text": texts[0], "answer_start": 0}]} for name, texts in REFERENCES
    ]
    document = {"data": [{"title": "t", "paragraphs": [{"context": "red house", "qas": qas}]}]}
    for name, content in (("q", document), ("a", answers(10)), ("b", answers(40))):
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    monkeypatch.chdir(tmp_path)
    files = "a.json b.json --questions q.json --output c.json --changed changed.csv"
    done = call_podium("compare", *files.split(), "--confidence", "0.9")
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith("next: "), done.stderr
    assert "exact match: 25.00 -> 100.00, +75.00 points" in done.stdout
    assert "... and 10 more (--changed FILE lists all)" in done.stdout
    record = json.loads((tmp_path / "c.json").read_text())
    assert record["mcnemar"] == {"first_only": 0, "second_only": 30, "p_value": pytest.approx(2 / 2**30)}
    assert len(record["changed"]) == 30
    assert len((tmp_path / "changed.csv").read_text().splitlines()) == 31


def test_files_that_cannot_be_compared_are_named(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"1": "x"}')
    (tmp_path / "b.json").write_text('{"2": "x"}')
    (tmp_path / "q.json").write_text('{"data": [{"paragraphs": [{"qas": [{"id": "1", "answers": [{"text": "x"}]}]}]}]}')
    with pytest.raises(InputError, match=r"a.json and .*b.json cannot be compared .* no question has both predictions"):
        compare_files(tmp_path / "q.json", tmp_path / "a.json", tmp_path / "b.json")
    with pytest.raises(InputError, match="c.json not found"):
        compare_files(tmp_path / "q.json", tmp_path / "a.json", tmp_path / "c.json")
