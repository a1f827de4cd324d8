"""One self-contained HTML page of a verdict, for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tasks.pages.plots import Bars, Plot, bar_plot
from tasks.pages.render import html_page
from tasks.validation.checks import number

LEAST = 0.0125
"""Of the highest bar."""


def page(values: Mapping[str, Any]) -> str:
    """The page of a verdict, as `tasks.validation.checks.verdict` gives it."""
    statistics = values["statistics"]
    return html_page(
        __file__,
        "validation.html.j2",
        **{name: value for name, value in values.items() if name != "statistics"},
        numbers=[{"name": one["name"], "value": number(one["value"])} for one in statistics["numbers"]],
        figures=[_figure(histogram) for histogram in statistics["histograms"]],
    )


def _figure(histogram: Mapping[str, Any]) -> tuple[str, Plot, str]:
    """Title, plot and note: bars of equal width whatever their bins, with the bins' lower edges below them."""
    counts, edges, unit = histogram["counts"], histogram["edges"], histogram["unit"]
    least = LEAST * max(counts)  # what was seen at all stays visible
    heights = [max(count, least) if count else 0 for count in counts]
    tips = [f"{_bin(histogram, number)} {unit}: {count:,}" for number, count in enumerate(counts)]
    label = f"{histogram['title']}, from {edges[0]:,} to {edges[-1] - 1:,} {unit}"
    plot = bar_plot([Bars("", heights, tips)], [_compact(edge) for edge in edges[:-1]], unit, "number", label)
    return histogram["title"], plot, "Bars cover ever wider ranges." if histogram["widening"] else ""


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
