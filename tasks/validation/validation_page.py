"""One self-contained HTML page of a verdict, for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tasks.pages.render import html_page
from tasks.validation.checks import number

WIDTH, LEFT, TOP, BAR_HEIGHT = 340, 8, 18, 120
"""A histogram in SVG units: about pixels, as the figure is drawn near its own size."""
MAX_TICKS = 5


def page(values: Mapping[str, Any]) -> str:
    """The page of a verdict, as `tasks.validation.checks.verdict` gives it."""
    statistics = values["statistics"]
    return html_page(
        __file__,
        "validation.html.j2",
        **{name: value for name, value in values.items() if name != "statistics"},
        numbers=[{"name": one["name"], "value": number(one["value"])} for one in statistics["numbers"]],
        figures=[_figure(histogram) for histogram in statistics["histograms"]],
        width=WIDTH,
        left=LEFT,
        base=TOP + BAR_HEIGHT,
    )


def _figure(histogram: Mapping[str, Any]) -> dict[str, Any]:
    """Bars of equal width whatever their bins, with the bins' lower edges below them."""
    counts, edges = histogram["counts"], histogram["edges"]
    highest = max([1, *counts])
    step = (WIDTH - 2 * LEFT) / len(counts)
    bars = [
        {
            "x": LEFT + i * step,
            "width": max(1.0, step - 1),
            "height": max(1.5, BAR_HEIGHT * count / highest) if count else 0.0,  # what was seen at all stays visible
            "range": _bin(histogram, i),
            "count": count,
        }
        for i, count in enumerate(counts)
    ]
    every = -(-len(counts) // MAX_TICKS)
    ticks = [{"x": LEFT + (i + 0.5) * step, "text": _compact(edges[i])} for i in range(0, len(counts), every)]
    stated = {name: histogram[name] for name in ("title", "unit", "widening")}
    return {**stated, "first": edges[0], "last": edges[-1] - 1, "highest": highest, "bars": bars, "ticks": ticks}


def _bin(histogram: Mapping[str, Any], i: int) -> str:
    low, high = histogram["edges"][i], histogram["edges"][i + 1] - 1
    if histogram["open_end"] and i == len(histogram["counts"]) - 1:
        return f"{low:,} and more"
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _compact(value: int) -> str:
    """1250 as 1.2k, so that five of them fit under a histogram."""
    for limit, letter in ((1_000_000, "M"), (10_000, "k")):
        if value >= limit:
            return f"{value / (limit if letter == 'M' else 1000):.3g}{letter}"
    return f"{value:,}"
