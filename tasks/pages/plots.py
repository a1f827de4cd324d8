"""Plots as parts of a page: drawn by pygal as SVG, coloured by the style sheet, each value there to be looked at.

pygal's own styles, scripts, random names and dates are taken out, so that the same values give the same text, in which
nothing is loaded or run. A value is shown by the page's script (templates/page.js) under the pointer or by the arrow
keys, from the attribute data-tip.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from markupsafe import Markup

from tasks.pages.markup import readable

if TYPE_CHECKING:
    from pygal.graph.graph import Graph

WIDTH, HEIGHT = 390, 220
"""Of a plot in its own units, which are about pixels."""
MOST_POINTS = 160
"""Of a line: more cannot be told apart on that width."""
LONGEST_NAME = 40
"""Characters of a text in the drawing; what is said of a value has the whole one."""
LETTERS = 48
"""Of texts beside each other for which there is room below a plot."""
COLORS = 8
"""In the style sheet, --c0 to --c7."""
UNWANTED = ("defs", "title", "desc")
OVERLAYS = ("text-overlay", "tooltip-overlay")

Plot = Markup
"""A drawing, which is a part of a page."""
Point = tuple[float, float]


def short(value: float) -> str:
    """A figure of an axis: 1,500 or 0.00015, with four digits that count."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


@dataclass(frozen=True)
class Line:
    """Points of one colour, joined by a line or, as `marks`, each by itself."""

    name: str
    points: Sequence[Point]
    marks: bool = False
    color: int | None = None
    """None: the next of the style sheet."""


def line_plot(lines: Sequence[Line], across: str, up: str, label: str) -> Plot:
    """Lines over a common axis; the one that goes up begins at zero, so that plots can be compared by eye.

    Args:
        across, up: names of the axes, with units.
        label: what the plot shows, for those who do not see it.
    """
    import pygal

    kept = [(line, _kept(line.points)) for line in lines]
    places = [x for _, points in kept for x, _ in points]
    chart = pygal.XY(
        **_options(across, up) | _legend([line.name for line in lines]),
        x_value_formatter=short,
        x_labels=_ticks(places),
        include_x_axis=True,
        **({"xrange": (places[0] - 1, places[0] + 1)} if len(set(places)) == 1 else {}),
    )
    for line, points in kept:
        chart.add(_name(line.name), points, stroke=not line.marks, dots_size=3.5 if line.marks else 2)
    tips = [[f"{line.name}\n{across} {short(x)}\n{up} {short(y)}" for x, y in points] for line, points in kept]
    looks = [(index if line.color is None else line.color, " marks" * line.marks) for index, line in enumerate(lines)]
    return _drawn(chart, tips, looks, label)


@dataclass(frozen=True)
class Trace:
    """One of many lines over each other."""

    key: int | None
    """By which a script shows or hides it."""
    color: int
    points: Sequence[Point]
    dots: Sequence[tuple[float, float, str]] = ()
    """Where something is said, and what."""
    marks: bool = False
    """The dots are seen without looking for them."""


def overlay_plot(
    traces: Sequence[Trace], across: str, up: str, label: str, from_zero: bool = True, room: float = 0.0
) -> Plot:
    """So many lines that pygal would take seconds: it draws the axes, and the lines are put in with its scale.

    Args:
        across, up, label: as of `line_plot`.
        from_zero: the axis that goes up begins at zero.
        room: beyond both ends of the axis that goes across.
    """
    import pygal

    found = [point for trace in traces for point in (*trace.points, *((x, y) for x, y, _ in trace.dots))]
    (left, right), (low, high) = _range([x for x, _ in found]), _range([y for _, y in found])
    corners = [(left - room, low), (right + room, high)]
    chart = pygal.XY(
        **_options(across, up),
        x_value_formatter=short,
        x_labels=_ticks([x for x, _ in found]),
        include_x_axis=from_zero,
    )
    chart.add("", corners)
    tree = _tidied(chart, label)
    (plot,) = [one for one in tree.iter() if one.get("class") == "plot" and one is not tree]
    (drawn,) = [one for one in plot if "series" in one.get("class", "").split()]
    place = _places(corners, next(one.get("d", "") for one in drawn.iter("path")))
    plot.remove(drawn)
    (graph,) = tree  # in it stand the axes, and the dots of the corners above them
    graph.remove(next(one for one in graph if one.get("class") == "plot overlay"))
    for trace in traces:
        look = f"series color-{trace.color % COLORS}{' marks' * trace.marks}"
        key = {} if trace.key is None else {"data-run": str(trace.key)}
        group = ElementTree.SubElement(plot, "g", {"class": look, **key})
        if trace.points:
            ElementTree.SubElement(group, "path", {"class": "line", "d": "M" + "L".join(map(place, trace.points))})
        for x, y, tip in trace.dots:
            column, row = place((x, y)).split()
            dot = {"class": "dot", "cx": column, "cy": row, "r": "3", "data-tip": readable(tip)}
            ElementTree.SubElement(group, "circle", dot)
    return Markup(ElementTree.tostring(tree, encoding="unicode"))


def _range(values: Sequence[float]) -> tuple[float, float]:
    """From the lowest to the highest, and more where these are one."""
    low, high = min(values, default=0.0), max(values, default=0.0)
    return (low, high) if low < high else (low - 0.5, high + 0.5)


def _places(corners: Sequence[Point], path: str) -> Callable[[Point], str]:
    """Where a value lies in a drawing, by the path through two corners of it."""
    (left, bottom), (right, top) = ([float(word) for word in part.split()] for part in path[1:].split("L"))
    (x_low, y_low), (x_high, y_high) = corners
    across, up = (right - left) / (x_high - x_low), (top - bottom) / (y_high - y_low)
    return lambda point: f"{left + across * (point[0] - x_low):.1f} {bottom + up * (point[1] - y_low):.1f}"


def bar_plot(
    heights: Sequence[float], tips: Sequence[str], labels: Sequence[str], across: str, up: str, label: str
) -> Plot:
    """Bars side by side.

    Args:
        heights: of the bars.
        tips: what is said of each.
        labels: below the bars, of which as many are shown as there is room for.
        across, up, label: as of `line_plot`.
    """
    import pygal

    shown = [_name(text, max(8, LETTERS // len(labels))) for text in labels]
    every = max(1, -(-len(shown) * max(map(len, shown), default=1) // 36))
    chart = pygal.Bar(
        **_options(across, up),
        x_labels=shown,
        x_labels_major_every=every,
        show_minor_x_labels=False,
    )
    chart.add("", list(heights))
    return _drawn(chart, [list(tips)], [(0, "")], label)


def _options(across: str, up: str) -> dict[str, Any]:
    from pygal.style import Style

    return {
        "width": WIDTH,
        "height": HEIGHT,
        "x_title": _name(across),
        "y_title": _name(up),
        "value_formatter": short,
        "show_legend": False,
        "margin": 4,
        "margin_right": 16,  # half of a figure below the end of the axis
        "min_scale": 3,
        "max_scale": 8,  # figures beside each other that can be read
        "truncate_label": -1,
        "truncate_legend": -1,
        "js": [],
        "css": [],
        # Nothing of it is drawn, but pygal makes room by it.
        "style": Style(label_font_size=11, major_label_font_size=11, title_font_size=12, legend_font_size=12),
    }


def _legend(names: Sequence[str]) -> dict[str, Any]:
    """A legend with room for the names of what is drawn, side by side where they are short."""
    if len(names) < 2:
        return {}
    fitting = max(1, LETTERS // (4 + max(len(_name(name)) for name in names)))
    # pygal makes no room for a row that is not full, and too little below the last one.
    columns = max(count for count in range(1, len(names) + 1) if count <= fitting and len(names) % count == 0)
    height = HEIGHT + 12 + 18 * (len(names) // columns)
    shown = {"show_legend": True, "legend_at_bottom": True, "legend_at_bottom_columns": columns, "legend_box_size": 10}
    return {**shown, "height": height, "margin_bottom": 14}


def _ticks(values: Sequence[float]) -> list[float]:
    """Round figures of an axis that goes across, so few that they can be read beside each other; whole among whole."""
    if not values:
        return []
    low, high = min(values), max(values)
    if not low < high:
        return [low]
    least = 10.0 ** math.floor(math.log10((high - low) / LETTERS))
    if all(float(value).is_integer() for value in values):  # a run, or an update, and a fifth is none
        least = max(least, 1.0)
    for step in (least * part * 10**power for power in range(4) for part in (1, 2, 5)):
        found = [step * number for number in range(math.ceil(low / step), math.floor(high / step) + 1)]
        if sum(len(short(tick)) + 3 for tick in found) <= LETTERS:
            return found
    return [low]


def _name(text: str, longest: int = LONGEST_NAME) -> str:
    """A text of a drawing: one line, not long, and without blanks at its ends, on which pygal would never end."""
    line = " ".join(readable(text).split())
    return line if len(line) <= longest else f"{line[: longest - 1].strip()}…"


def _kept(points: Sequence[Point]) -> list[Point]:
    """So few that each can be seen: of every stretch the lowest and the highest, which no spike escapes."""
    found = [(float(x), float(y)) for x, y in points]
    if len(found) <= MOST_POINTS:
        return found
    stretch = -(-2 * len(found) // (MOST_POINTS - 2))
    kept = {0, len(found) - 1}
    for first in range(0, len(found), stretch):
        indices = range(first, min(first + stretch, len(found)))
        kept |= {min(indices, key=lambda index: found[index][1]), max(indices, key=lambda index: found[index][1])}
    return [found[index] for index in sorted(kept)]


def _drawn(chart: Graph, tips: list[list[str]], looks: Sequence[tuple[int, str]], label: str) -> Plot:
    """The chart without what pygal says of itself, with what is said of each value, as markup of our own."""
    tree = _tidied(chart, label)
    for number, (color, look) in enumerate(looks):
        for group in [one for one in tree.iter() if f"serie-{number}" in one.get("class", "").split()]:
            group.set("class", f"series color-{color % COLORS}{look}")
            places = [one for one in group.iter() if "tooltip-trigger" in one.get("class", "").split()]
            for place, tip in zip(places, tips[number] if places else [], strict=True):
                place.set("class", "dot" if place.tag == "circle" else "box")
                place.set("data-tip", readable(tip))
    for number, group in enumerate(one for one in tree.iter() if "activate-serie" in one.get("class", "").split()):
        group.set("class", "legend")
        group.attrib.pop("id", None)
        for box in group.iter("rect"):
            box.set("class", f"color-{looks[number][0] % COLORS}")
    return Markup(ElementTree.tostring(tree, encoding="unicode"))


def _tidied(chart: Graph, label: str) -> ElementTree.Element:
    """The chart without what pygal says of itself."""
    tree: ElementTree.Element = chart.render_tree()
    for parent in list(tree.iter()):
        for child in list(parent):
            word = child.get("class", "") if isinstance(child.tag, str) else ""
            if not isinstance(child.tag, str) or child.tag in UNWANTED or word.endswith(OVERLAYS):
                parent.remove(child)
    tree.attrib.pop("id", None)
    tree.set("class", "plot")
    tree.set("role", "img")
    tree.set("aria-label", readable(label))
    tree.set("tabindex", "0")
    return tree
