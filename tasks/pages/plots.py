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

Plot = Markup
"""SVG markup of a plot, and its legend."""
Point = tuple[float, float]
Dot = tuple[float, float, str]
"""x, y and tooltip."""


def format_tick(value: float) -> str:
    """Return the label of an axis value, with four significant digits: 1,500 or 0.00015."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


@dataclass(frozen=True)
class PlotLine:
    """Line of a plot."""

    name: str
    """Its name in the legend and in tooltips; if no line has one, there is no legend."""
    points: Sequence[Point]
    marks: bool = False
    """Its dots are always visible, and without dots of its own it is its points only."""
    color: int | None = None
    """Color number; None: the next in the style sheet."""
    key: int | None = None
    """Key by which a script shows or hides it."""
    dots: Sequence[Dot] | None = None
    """None: its points."""


def plot_lines(
    lines: Sequence[PlotLine],
    across: str,
    up: str,
    label: str,
    from_zero: bool = True,
    room: float = 0.0,
    log: bool = False,
) -> Plot:
    """Return a plot of lines; pygal draws only the axes, because it would take seconds for very many lines.

    Args:
        across, up: names of the x and y axes, with units.
        label: description of the plot for screen readers.
        from_zero: whether the y axis starts at zero, so that plots can be compared by eye.
        room: margin at both ends of the x axis.
        log: whether the x axis is logarithmic; all x are then above 0.
    """
    import pygal

    drawn = [_select_points(line, across, up) for line in lines]
    if log:
        drawn = [
            ([(math.log10(x), y) for x, y in path], [(math.log10(x), y, tip) for x, y, tip in dots])
            for path, dots in drawn
        ]
    found = [point for path, dots in drawn for point in (*path, *((x, y) for x, y, _ in dots))]
    (left, right), (low, high) = _range([x for x, _ in found]), _range([y for _, y in found])
    corners = [(left - room, low), (right + room, high)]
    chart = pygal.XY(
        **_options(across, up),
        x_value_formatter=(lambda x: format_tick(10**x)) if log else format_tick,
        x_labels=_log_ticks(left, right) if log else _ticks([x for x, _ in found]),
        include_x_axis=from_zero,
    )
    chart.add("", corners)
    tree = _render_tree(chart, label)
    (plot,) = [one for one in tree.iter() if one.get("class") == "plot" and one is not tree]
    (frame,) = [one for one in plot if "series" in one.get("class", "").split()]
    diagonal = next(one.get("d", "") for one in frame.iter("path"))
    scale = _make_scale(corners, diagonal)
    if not log:  # a script can zoom: ends of the axes, and their places
        tree.set("data-range", " ".join(f"{value:.10g}" for corner in corners for value in corner))
        tree.set("data-box", " ".join(diagonal[1:].replace("L", " ").split()))
    plot.remove(frame)
    legend = ElementTree.Element("p", {"class": "legend"})
    for index, (line, (path, dots)) in enumerate(zip(lines, drawn, strict=True)):
        color = (index if line.color is None else line.color) % COLORS
        key = {} if line.key is None else {"data-run": str(line.key)}
        look = {"class": f"series color-{color}{' marks' * line.marks}"}
        group = ElementTree.SubElement(plot, "g", look | key)
        if path:
            ElementTree.SubElement(group, "path", {"class": "line", "d": "M" + "L".join(map(scale, path))})
        for x, y, tip in dots:
            column, row = scale((x, y)).split()
            dot = {"class": "dot", "cx": column, "cy": row, "r": "3", "data-tip": replace_hidden(tip)}
            ElementTree.SubElement(group, "circle", dot)
        if line.name:
            entry = ElementTree.SubElement(legend, "span")
            ElementTree.SubElement(entry, "b", {"class": f"key c{color}"}).tail = replace_hidden(line.name)
            entry.tail = " "
    parts = [tree, legend] if len(legend) > 1 else [tree]
    return Markup("".join(ElementTree.tostring(one, encoding="unicode", short_empty_elements=False) for one in parts))


def _select_points(line: PlotLine, across: str, up: str) -> tuple[Sequence[Point], Sequence[Dot]]:
    """Return the points that a line is drawn through, and its dots."""
    points = _thin(line.points)
    if line.dots is not None:
        return points, line.dots
    dots = [(x, y, f"{line.name}\n{across} {format_tick(x)}\n{up} {format_tick(y)}") for x, y in points]
    return [] if line.marks else points, dots


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
        "js": [],
        "css": [],
        # Not drawn, but pygal computes margins from it.
        "style": Style(label_font_size=11, major_label_font_size=11, title_font_size=12),
    }


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


def _log_ticks(low: float, high: float) -> list[float]:
    """Return ticks at 1, 2 and 5 times powers of ten, or at powers alone if those are many; values are logarithms."""
    parts = (1, 2, 5) if high - low < 2.5 else (1,)
    every = [math.log10(part) + power for power in range(math.floor(low), math.ceil(high) + 1) for part in parts]
    return [tick for tick in every if low - 1e-9 <= tick <= high + 1e-9] or [low]


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


def _render_tree(chart: Graph, label: str) -> ElementTree.Element:
    """Return the chart without pygal's metadata."""
    tree: ElementTree.Element = chart.render_tree()
    for parent in list(tree.iter()):
        for child in list(parent):
            word = child.get("class", "") if isinstance(child.tag, str) else ""
            if not isinstance(child.tag, str) or child.tag in UNWANTED or word.endswith("overlay"):
                parent.remove(child)
    tree.attrib.pop("id", None)
    tree.set("class", "plot")
    tree.set("role", "img")
    tree.set("aria-label", replace_hidden(label))
    tree.set("tabindex", "0")
    return tree
