"""The study of estimates on a CPU: what it kept lies where it should, and the page shows it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import host_estimates
from bench.host_cases import CONFIGURATIONS
from bench.host_estimates import (
    BEGIN,
    DOCS,
    END,
    KEPT,
    LEAST,
    MOST,
    SHARE_OF_MEMORY,
    SHARE_OF_TIME,
    TIME_ERROR,
    WANTED,
    Line,
    lines_of,
    main,
    with_table,
)
from tasks.project.errors import InputError
from tests.places import ROOT


@pytest.fixture(scope="module")
def lines() -> list[Line]:
    return lines_of(json.loads((ROOT / KEPT).read_text(encoding="utf-8")))


def test_the_study_covers_what_it_should(lines: list[Line]) -> None:
    assert len(lines) >= 30
    assert sum(not one.fitted for one in lines) >= 12
    names = {one.name for one in lines}
    kept = [one for one in CONFIGURATIONS if one.name in names]
    assert {one.size for one in kept} == {"tiny", "mini", "small", "medium", "base"}
    assert {one.row_length for one in kept} >= {64, 128, 256, 384, 512}
    for name in ("task", "optimizer", "precision"):
        assert len({getattr(one, name) for one in kept}) == 2


def test_memory_is_foretold_from_the_measured_to_three_tenths_above(lines: list[Line]) -> None:
    ratios = [one.memory_ratio for one in lines]
    assert min(ratios) >= LEAST
    assert sum(WANTED <= ratio <= MOST for ratio in ratios) >= SHARE_OF_MEMORY * len(ratios)


def test_time_after_a_probe_is_right(lines: list[Line]) -> None:
    near = sum(abs(one.time_ratio - 1) <= TIME_ERROR for one in lines)
    assert near >= SHARE_OF_TIME * len(lines)


def test_the_page_shows_what_was_kept(lines: list[Line]) -> None:
    page = (ROOT / DOCS).read_text(encoding="utf-8")
    assert with_table(page, lines) == page
    assert with_table(f"before {BEGIN} old {END} after", lines).startswith(f"before {BEGIN}\n| task")
    with pytest.raises(InputError, match="lacks the marks"):
        with_table("no marks", lines)


def test_the_table_is_printed_without_measuring(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def never(*arguments: object) -> None:
        raise AssertionError("measured")

    monkeypatch.setattr(host_estimates, "_measure_all", never)
    monkeypatch.setattr("sys.argv", ["host_estimates", "--table", "--kept", str(ROOT / KEPT)])
    main()
    assert "judging:" in capsys.readouterr().out
    monkeypatch.setattr("sys.argv", ["host_estimates", "--table", "--only", "no such", "--kept", str(tmp_path / "x")])
    with pytest.raises(Exception, match="no configuration"):
        main()
