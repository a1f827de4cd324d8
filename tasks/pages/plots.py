"""Plots for pages: SVG from pygal, colored by the style sheet, with a tooltip for each value.

pygal's own styles, scripts, random names and dates are removed: equal values give equal text, and the text loads and
runs nothing. The page's script (templates/page.js) shows the tooltip in data-tip at the pointer or by the arrow keys.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from markupsafe import Markup

from tasks.pages.markup import replace_hidden

if TYPE_CHECKING:
    from pygal.graph.graph import Graph

WIDTH, HEIGHT = 390, 220
"""Size of a plot in its own units, about pixels."""
MAX_POINTS = 160
"""Maximum points of a line: more cannot be distinguished at this width."""
MAX_NAME = 40
"""Maximum characters of a text in the plot; tooltips have the whole text."""
LABEL_CHARACTERS = 48
"""Characters of labels that fit below a plot."""
COLORS = 8
"""Number of colors in the style sheet, --c0 to --c7."""
UNWANTED = ("defs", "title", "desc")
OVERLAYS = ("text-overlay", "tooltip-overlay")

Plot = Markup
"""SVG markup of a plot."""
Point = tuple[float, float]


def format_tick(value: float) -> str:
    """Return the label of an axis value, with four significant digits: 1,500 or 0.00015."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


@dataclass(frozen=True)
class PlotLine:
    """Line of a plot, or with `marks` its points only."""

    name: str
    points: Sequence[Point]
    marks: bool = False
    color: int | None = None
    """Color number; None: the next in the style sheet."""


def plot_lines(lines: Sequence[PlotLine], across: str, up: str, label: str) -> Plot:
    """Return a plot of lines; its y axis starts at zero, so that plots can be compared by eye.

    Args:
        across, up: names of the x and y axes, with units.
        label: description of the plot for screen readers.
    """
    import pygal

    thinned = [(line, _thin(line.points)) for line in lines]
    xs = [x for _, points in thinned for x, _ in points]
    chart = pygal.XY(
        **_options(across, up) | _legend([line.name for line in lines]),
        x_value_formatter=format_tick,
        x_labels=_ticks(xs),
        include_x_axis=True,
        **({"xrange": (xs[0] - 1, xs[0] + 1)} if len(set(xs)) == 1 else {}),
    )
    for line, points in thinned:
        chart.add(_shorten(line.name), points, stroke=not line.marks, dots_size=3.5 if line.marks else 2)
    tip = "{}\n{} {}\n{} {}".format
    tips = [[tip(line.name, across, format_tick(x), up, format_tick(y)) for x, y in points] for line, points in thinned]
    looks = [(index if line.color is None else line.color, " marks" * line.marks) for index, line in enumerate(lines)]
    return _render(chart, tips, looks, label)


@dataclass(frozen=True)
class Trace:
    """One of many lines in a plot."""

    key: int | None
    """Key by which a script shows or hides it."""
    color: int
    points: Sequence[Point]
    dots: Sequence[tuple[float, float, str]] = ()
    """Points with tooltips: x, y, text."""
    marks: bool = False
    """The dots are always visible."""


def plot_overlay(
    traces: Sequence[Trace], across: str, up: str, label: str, from_zero: bool = True, room: float = 0.0
) -> Plot:
    """Return a plot of very many lines: pygal draws only the axes, because it would take seconds for the lines.

    Args:
        across, up, label: see `plot_lines`.
        from_zero: whether the y axis starts at zero.
        room: margin at both ends of the x axis.
    """
    import pygal

    found = [point for trace in traces for point in (*trace.points, *((x, y) for x, y, _ in trace.dots))]
    (left, right), (low, high) = _range([x for x, _ in found]), _range([y for _, y in found])
    corners = [(left - room, low), (right + room, high)]
    chart = pygal.XY(
        **_options(across, up),
        x_value_formatter=format_tick,
        x_labels=_ticks([x for x, _ in found]),
        include_x_axis=from_zero,
    )
    chart.add("", corners)
    tree = _render_tree(chart, label)
    (plot,) = [one for one in tree.iter() if one.get("class") == "plot" and one is not tree]
    (drawn,) = [one for one in plot if "series" in one.get("class", "").split()]
    place = _make_scale(corners, next(one.get("d", "") for one in drawn.iter("path")))
    plot.remove(drawn)
    (graph,) = tree  # has the axes, and the dots of the corners above them
    graph.remove(next(one for one in graph if one.get("class") == "plot overlay"))
    for trace in traces:
        look = f"series color-{trace.color % COLORS}{' marks' * trace.marks}"
        key = {} if trace.key is None else {"data-run": str(trace.key)}
        group = ElementTree.SubElement(plot, "g", {"class": look, **key})
        if trace.points:
            ElementTree.SubElement(group, "path", {"class": "line", "d": "M" + "L".join(map(place, trace.points))})
        for x, y, tip in trace.dots:
            column, row = place((x, y)).split()
            dot = {"class": "dot", "cx": column, "cy": row, "r": "3", "data-tip": replace_hidden(tip)}
            ElementTree.SubElement(group, "circle", dot)
    return Markup(ElementTree.tostring(tree, encoding="unicode"))


def _range(values: Sequence[float]) -> tuple[float, float]:
    """Return the lowest and the highest value, widened if they are equal."""
    low, high = min(values, default=0.0), max(values, default=0.0)
    return (low, high) if low < high else (low - 0.5, high + 0.5)


def _make_scale(corners: Sequence[Point], path: str) -> Callable[[Point], str]:
    """Return a function from values to SVG coordinates, derived from the path through two corners of the plot."""
    (left, bottom), (right, top) = ([float(word) for word in part.split()] for part in path[1:].split("L"))
    (x_low, y_low), (x_high, y_high) = corners
    across, up = (right - left) / (x_high - x_low), (top - bottom) / (y_high - y_low)
    return lambda point: f"{left + across * (point[0] - x_low):.1f} {bottom + up * (point[1] - y_low):.1f}"


def plot_bars(
    heights: Sequence[float], tips: Sequence[str], labels: Sequence[str], across: str, up: str, label: str
) -> Plot:
    """Return a bar plot.

    Args:
        heights: height of each bar.
        tips: tooltip of each bar.
        labels: label of each bar; only as many are shown as fit.
        across, up, label: see `plot_lines`.
    """
    import pygal

    shown = [_shorten(text, max(8, LABEL_CHARACTERS // len(labels))) for text in labels]
    every = max(1, -(-len(shown) * max(map(len, shown), default=1) // 36))
    chart = pygal.Bar(
        **_options(across, up),
        x_labels=shown,
        x_labels_major_every=every,
        show_minor_x_labels=False,
    )
    chart.add("", list(heights))
    return _render(chart, [list(tips)], [(0, "")], label)


def _options(across: str, up: str) -> dict[str, Any]:
    from pygal.style import Style

    return {
        "width": WIDTH,
        "height": HEIGHT,
        "x_title": _shorten(across),
        "y_title": _shorten(up),
        "value_formatter": format_tick,
        "show_legend": False,
        "margin": 4,
        "margin_right": 16,  # half of the label below the end of the axis
        "min_scale": 3,
        "max_scale": 8,  # readable labels next to each other
        "truncate_label": -1,
        "truncate_legend": -1,
        "js": [],
        "css": [],
        # Not drawn, but pygal computes margins from it.
        "style": Style(label_font_size=11, major_label_font_size=11, title_font_size=12, legend_font_size=12),
    }


def _legend(names: Sequence[str]) -> dict[str, Any]:
    """Return pygal's options for a legend, with columns if the names are short."""
    if len(names) < 2:
        return {}
    fitting = max(1, LABEL_CHARACTERS // (4 + max(len(_shorten(name)) for name in names)))
    # pygal reserves no space for an incomplete row, and too little below the last one.
    columns = max(count for count in range(1, len(names) + 1) if count <= fitting and len(names) % count == 0)
    height = HEIGHT + 12 + 18 * (len(names) // columns)
    shown = {"show_legend": True, "legend_at_bottom": True, "legend_at_bottom_columns": columns, "legend_box_size": 10}
    return {**shown, "height": height, "margin_bottom": 14}


def _ticks(values: Sequence[float]) -> list[float]:
    """Return round x axis ticks, few enough to be readable; integers if all values are integers."""
    if not values:
        return []
    low, high = min(values), max(values)
    if not low < high:
        return [low]
    least = 10.0 ** math.floor(math.log10((high - low) / LABEL_CHARACTERS))
    if all(float(value).is_integer() for value in values):  # numbers of runs or updates
        least = max(least, 1.0)
    for step in (least * part * 10**power for power in range(4) for part in (1, 2, 5)):
        found = [step * number for number in range(math.ceil(low / step), math.floor(high / step) + 1)]
        if sum(len(format_tick(tick)) + 3 for tick in found) <= LABEL_CHARACTERS:
            return found
    return [low]


def _shorten(text: str, longest: int = MAX_NAME) -> str:
    """Return a short text of one line without outer spaces, on which pygal would loop forever."""
    line = " ".join(replace_hidden(text).split())
    return line if len(line) <= longest else f"{line[: longest - 1].strip()}…"


def _thin(points: Sequence[Point]) -> list[Point]:
    """Return at most MOST_POINTS points: the lowest and the highest of each stretch, so that spikes stay visible."""
    found = [(float(x), float(y)) for x, y in points]
    if len(found) <= MAX_POINTS:
        return found
    stretch = -(-2 * len(found) // (MAX_POINTS - 2))
    chosen = {0, len(found) - 1}
    for first in range(0, len(found), stretch):
        indices = range(first, min(first + stretch, len(found)))
        chosen |= {min(indices, key=lambda index: found[index][1]), max(indices, key=lambda index: found[index][1])}
    return [found[index] for index in sorted(chosen)]


def _render(chart: Graph, tips: list[list[str]], looks: Sequence[tuple[int, str]], label: str) -> Plot:
    """Return the chart as markup, with our classes and tooltips and without pygal's metadata."""
    tree = _render_tree(chart, label)
    for number, (color, look) in enumerate(looks):
        for group in [one for one in tree.iter() if f"serie-{number}" in one.get("class", "").split()]:
            group.set("class", f"series color-{color % COLORS}{look}")
            places = [one for one in group.iter() if "tooltip-trigger" in one.get("class", "").split()]
            for place, tip in zip(places, tips[number] if places else [], strict=True):
                place.set("class", "dot" if place.tag == "circle" else "box")
                place.set("data-tip", replace_hidden(tip))
    for number, group in enumerate(one for one in tree.iter() if "activate-serie" in one.get("class", "").split()):
        group.set("class", "legend")
        group.attrib.pop("id", None)
        for box in group.iter("rect"):
            box.set("class", f"color-{looks[number][0] % COLORS}")
    return Markup(ElementTree.tostring(tree, encoding="unicode"))


def _render_tree(chart: Graph, label: str) -> ElementTree.Element:
    """Return the chart without pygal's metadata."""
    tree: ElementTree.Element = chart.render_tree()
    for parent in list(tree.iter()):
        for child in list(parent):
            word = child.get("class", "") if isinstance(child.tag, str) else ""
            if not isinstance(child.tag, str) or child.tag in UNWANTED or word.endswith(OVERLAYS):
                parent.remove(child)
    tree.attrib.pop("id", None)
    tree.set("class", "plot")
    tree.set("role", "img")
    tree.set("aria-label", replace_hidden(label))
    tree.set("tabindex", "0")
    return tree
