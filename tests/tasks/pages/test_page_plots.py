"""Plots: the values are there to be looked at, the same input gives the same text, and nothing in it is markup."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from tasks.pages.plots import MAX_POINTS, PlotLine, plot_lines
from tests.tasks.hostile import HOSTILE

SVG = "{http://www.w3.org/2000/svg}"


def tips(plot: str) -> list[str]:
    return [one.get("data-tip", "") for one in ElementTree.fromstring(plot).iter() if one.get("data-tip")]


def plotted(points: list[tuple[float, float]]) -> str:
    return plot_lines([PlotLine("training", points)], "update", "loss (nats)", "loss of training")


def test_every_value_of_a_short_line_can_be_looked_at() -> None:
    assert tips(plotted([(10, 2.5), (20, 1.25)])) == [
        "training\nupdate 10\nloss (nats) 2.5",
        "training\nupdate 20\nloss (nats) 1.25",
    ]


def test_a_long_line_keeps_its_ends_and_its_spike() -> None:
    points = [(float(step), 1.0) for step in range(10_000)]
    points[4321] = (4321.0, 99.0)
    found = tips(plotted(points))
    assert len(found) <= MAX_POINTS
    assert {"training\nupdate 0\nloss (nats) 1", "training\nupdate 4,321\nloss (nats) 99"} <= set(found)
    assert found[-1] == "training\nupdate 9,999\nloss (nats) 1"


@pytest.mark.parametrize(
    ("axis", "points", "shown"),
    [
        ("x", [(1, 1.0), (2, 1.0)], ["1", "2"]),
        ("x", [(200, 1.0), (203, 1.0)], ["200", "201", "202", "203"]),
        ("x", [(10.0 * n, 1.0) for n in range(1, 151)], ["200", "400", "600", "800", "1,000", "1,200", "1,400"]),
        ("x", [(200, 5.0)], ["200"]),
        ("x", [], []),
        ("y", [(1, 3.9), (2, 7.8)], ["0", "1", "2", "3", "4", "5", "6", "7"]),
        ("y", [(1, 0.0008), (2, 0.0011)], ["0", "0.0002", "0.0004", "0.0006", "0.0008", "0.001"]),
    ],
)
def test_figures_at_an_axis_are_round_and_few(axis: str, points: list[tuple[float, float]], shown: list[str]) -> None:
    [ticks] = [one for one in ElementTree.fromstring(plotted(points)).iter() if one.get("class") == f"axis {axis}"]
    assert [text.text for text in ticks.iter(f"{SVG}text")][: len(shown)] == shown


def test_the_same_values_give_the_same_text_in_which_nothing_is_loaded_or_run() -> None:
    plot = plotted([(1, 2), (2, 1)])
    assert plot == plotted([(1, 2), (2, 1)])
    assert not re.search(r"script|style|href|<!--|http(?!://www.w3.org/2000/svg)", plot)


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_texts_never_become_markup(text: str) -> None:
    plot = plot_lines([PlotLine(text, [(1, 2)]), PlotLine("b", [(1, 2)])], text, text, text)
    drawn = {f"{SVG}{name}" for name in ("svg", "g", "rect", "path", "text", "circle")}
    assert {one.tag for one in ElementTree.fromstring(f"<div>{plot}</div>").iter()} <= {"div", "p", "span", "b", *drawn}
