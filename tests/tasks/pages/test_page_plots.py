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
    ("across", "said"), [([1, 2], ["1", "2"]), ([200, 203], ["200", "201", "202", "203"]), ([0.5, 1], ["0.5", "0.6"])]
)
def test_an_axis_of_whole_numbers_has_no_fractions(across: list[float], said: list[str]) -> None:
    tree = ElementTree.fromstring(plotted([(x, 1.0) for x in across]))
    (axis,) = [one for one in tree.iter(f"{SVG}g") if one.get("class") == "axis x"]
    shown = [text.text or "" for text in axis.iter(f"{SVG}text")]
    assert shown[: len(said)] == said
    assert (len(shown) > len(said)) == (0.5 in across)


def test_the_same_values_give_the_same_text_in_which_nothing_is_loaded_or_run() -> None:
    plot = plotted([(1, 2), (2, 1)])
    assert plot == plotted([(1, 2), (2, 1)])
    assert not re.search(r"script|style|href|<!--|http(?!://www.w3.org/2000/svg)", plot)


def test_axes_have_their_names_and_a_scale_from_zero() -> None:
    texts = [one.text for one in ElementTree.fromstring(plotted([(1, 5.0), (2, 4.0)])).iter(f"{SVG}text")]
    assert {"update", "loss (nats)", "0"} <= set(texts)


@pytest.mark.parametrize(
    ("highest", "shown"),
    [(7.8, ["0", "1", "2", "3", "4", "5", "6", "7"]), (0.0015, ["0", "0.0002", "0.0004", "0.0006", "0.0008", "0.001"])],
)
def test_figures_beside_a_plot_are_round_and_few(highest: float, shown: list[str]) -> None:
    tree = ElementTree.fromstring(plotted([(1, 0.5 * highest), (2, highest)]))
    [axis] = [one for one in tree.iter() if one.get("class") == "axis y"]
    assert [text.text for text in axis.iter(f"{SVG}text")][: len(shown)] == shown


def test_figures_below_a_plot_are_round_and_few_enough_to_be_read() -> None:
    plot = plotted([(float(step), 1.0) for step in range(10, 1501, 10)])
    [axis] = [one for one in ElementTree.fromstring(plot).iter() if one.get("class") == "axis x"]
    shown = [text.text for text in axis.iter(f"{SVG}text")]
    assert shown == ["200", "400", "600", "800", "1,000", "1,200", "1,400"]
    assert {"1"} <= {text.text for text in ElementTree.fromstring(plotted([(1, 5.0)])).iter(f"{SVG}text")}


def test_what_was_measured_once_stands_in_the_middle() -> None:
    [dot] = [one for one in ElementTree.fromstring(plotted([(200, 5.0)])).iter() if one.get("class") == "dot"]
    places = [
        float(one.get("cx", ""))
        for one in ElementTree.fromstring(plotted([(1, 5.0), (3, 5.0)])).iter()
        if one.get("class") == "dot"
    ]
    assert float(dot.get("cx", "")) == pytest.approx(sum(places) / 2, abs=2)


def test_a_plot_of_nothing_is_still_a_plot() -> None:
    assert "update" in plot_lines([], "update", "loss", "nothing yet")
    assert "update" in plotted([])


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_texts_never_become_markup(text: str) -> None:
    plot = plot_lines([PlotLine(text, [(1, 2)]), PlotLine("b", [(1, 2)])], text, text, text)
    drawn = {f"{SVG}{name}" for name in ("svg", "g", "rect", "path", "text", "circle")}
    assert {one.tag for one in ElementTree.fromstring(f"<div>{plot}</div>").iter()} <= {"div", "p", "span", "b", *drawn}
