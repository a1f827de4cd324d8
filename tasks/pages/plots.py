"""Plots for pages: SVG colored by the style sheet, with a tooltip for each value.

Equal values give equal text, which loads and runs nothing. The page's script (templates/page.js) shows the tooltip in
data-tip at the pointer or by the arrow keys, and zooms.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from xml.etree import ElementTree

from markupsafe import Markup

from tasks.pages.markup import replace_hidden

WIDTH, HEIGHT = 390, 220
"""Size of a plot in its own units, about pixels."""
TOP, RIGHT, AREA_HEIGHT = 4, 16, 169
"""Margins of the area with the lines, and its height; half of the label below the end of the axis is at its right."""
INSET_X, INSET_Y = 6.0, 3.0
"""Distance of the outermost values from the edges of the area."""
CHARACTER = 6.8
"""Width of a digit."""
MAX_POINTS = 160
"""Maximum points of a line: more cannot be distinguished at this width."""
MAX_NAME = 40
"""Maximum characters of a text in the plot; tooltips have the whole text."""
LABEL_CHARACTERS = 48
"""Characters of labels that fit below a plot."""
MAX_ROWS = 8
"""Maximum labels of the y axis."""
COLORS = 8
"""Number of colors in the style sheet, --c0 to --c7."""

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
    """Return a plot of lines.

    Args:
        across, up: names of the x and y axes, with units.
        label: description of the plot for screen readers.
        from_zero: whether the y axis starts at zero, so that plots can be compared by eye.
        room: margin at both ends of the x axis.
        log: whether the x axis is logarithmic; all x are then above 0.
    """
    drawn = [_select_points(line, across, up) for line in lines]
    if log:
        drawn = [
            ([(math.log10(x), y) for x, y in path], [(math.log10(x), y, tip) for x, y, tip in dots])
            for path, dots in drawn
        ]
    found = [point for path, dots in drawn for point in (*path, *((x, y) for x, y, _ in dots))]
    (first, last), (low, high) = _range([x for x, _ in found]), _range([y for _, y in found])
    columns = _log_ticks(first, last) if log else _ticks([x for x, _ in found])
    low, high = (min(low, 0.0), max(high, 0.0)) if from_zero else (low, high)
    rows = _round_ticks(low, high, 0.0, lambda ticks: len(ticks) <= MAX_ROWS)
    margin = round(26 + CHARACTER * max((len(format_tick(tick)) for tick in rows), default=0))
    width, middle = WIDTH - margin - RIGHT, TOP + AREA_HEIGHT / 2
    to_x = _make_scale((first - room, last + room), (INSET_X, width - INSET_X))
    to_y = _make_scale((low, high), (AREA_HEIGHT - INSET_Y, INSET_Y))
    tree = _add(None, "svg", "plot", xmlns="http://www.w3.org/2000/svg", viewBox=f"0 0 {WIDTH} {HEIGHT}")
    tree.attrib |= {"role": "img", "aria-label": replace_hidden(label), "tabindex": "0"}
    if not log:  # a script can zoom: ends of the axes, and their places
        ends = ((first - room, low), (last + room, high))
        tree.set("data-range", " ".join(f"{value:.10g}" for end in ends for value in end))
        tree.set("data-box", " ".join(f"{to_x(x)} {to_y(y)}" for x, y in ends))
    plot = _add(tree, "g", "plot", transform=f"translate({margin}, {TOP})")
    _add(plot, "rect", "background", width=width, height=AREA_HEIGHT)
    axis = _add(plot, "g", "axis y")
    for tick in rows:
        guides = _add(axis, "g", "guides")
        _add(guides, "path", "guide line", d=f"M0 {to_y(tick)} H{width}")
        _add(guides, "text", x=-5, y=f"{float(to_y(tick)) + 4:.1f}").text = format_tick(tick)
    axis = _add(plot, "g", "axis x")
    _add(axis, "path", "line", d=f"M0 0 V{AREA_HEIGHT}")
    for tick in columns:
        guides = _add(axis, "g", "guides")
        _add(guides, "text", x=to_x(tick), y=AREA_HEIGHT + 15).text = format_tick(10**tick if log else tick)
    _add(tree, "text", "title", x=margin + width / 2, y=HEIGHT - 4).text = _shorten(across)
    _add(tree, "text", "title", x=14, y=middle, transform=f"rotate(-90 14 {middle})").text = _shorten(up)
    legend = _add(None, "p", "legend")
    for index, (line, (path, dots)) in enumerate(zip(lines, drawn, strict=True)):
        color = (index if line.color is None else line.color) % COLORS
        group = _add(plot, "g", f"series color-{color}{' marks' * line.marks}")
        if line.key is not None:
            group.set("data-run", str(line.key))
        if path:
            _add(group, "path", "line", d="M" + "L".join(f"{to_x(x)} {to_y(y)}" for x, y in path))
        for x, y, tip in dots:
            _add(group, "circle", "dot", cx=to_x(x), cy=to_y(y), r=3).set("data-tip", replace_hidden(tip))
        if line.name:
            entry = _add(legend, "span")
            _add(entry, "b", f"key c{color}").tail = replace_hidden(line.name)
            entry.tail = " "
    parts = [tree, legend] if len(legend) > 1 else [tree]
    return Markup("".join(ElementTree.tostring(one, encoding="unicode", short_empty_elements=False) for one in parts))


def _add(
    parent: ElementTree.Element | None, tag: str, name: str = "", **attributes: str | float
) -> ElementTree.Element:
    """Return a new element with this class, in `parent` if there is one."""
    stated = {**({"class": name} if name else {}), **{key: str(value) for key, value in attributes.items()}}
    return ElementTree.Element(tag, stated) if parent is None else ElementTree.SubElement(parent, tag, stated)


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


def _make_scale(values: Point, places: Point) -> Callable[[float], str]:
    """Return a function from values to coordinates, which takes both `values` to their `places`."""
    (low, high), (start, end) = values, places
    return lambda value: f"{start + (end - start) * (value - low) / (high - low):.1f}"


def _ticks(values: Sequence[float]) -> list[float]:
    """Return round x axis ticks, few enough to be readable; integers if all values are integers."""
    if not values:
        return []
    least = 1.0 if all(float(value).is_integer() for value in values) else 0.0  # numbers of runs or updates
    return _round_ticks(min(values), max(values), least, _fit_below)


def _fit_below(ticks: Sequence[float]) -> bool:
    """Return whether the labels of ticks fit next to each other."""
    return sum(len(format_tick(tick)) + 3 for tick in ticks) <= LABEL_CHARACTERS


def _round_ticks(low: float, high: float, least: float, fits: Callable[[Sequence[float]], bool]) -> list[float]:
    """Return the multiples of the smallest 1, 2 or 5 times a power of ten, at least `least`, that fit."""
    if not low < high:
        return [low]
    finest = max(least, 10.0 ** math.floor(math.log10((high - low) / LABEL_CHARACTERS)))
    for step in (finest * part * 10**power for power in range(4) for part in (1, 2, 5)):
        found = [step * number for number in range(math.ceil(low / step), math.floor(high / step) + 1)]
        if fits(found):
            return found
    return [low]


def _log_ticks(low: float, high: float) -> list[float]:
    """Return ticks at 1, 2 and 5 times powers of ten, or at powers alone if those are many; values are logarithms."""
    parts = (1, 2, 5) if high - low < 2.5 else (1,)
    every = [math.log10(part) + power for power in range(math.floor(low), math.ceil(high) + 1) for part in parts]
    return [tick for tick in every if low - 1e-9 <= tick <= high + 1e-9] or [low]


def _shorten(text: str) -> str:
    """Return a short text of one line without outer spaces."""
    line = " ".join(replace_hidden(text).split())
    return line if len(line) <= MAX_NAME else f"{line[: MAX_NAME - 1].strip()}…"


def _thin(points: Sequence[Point]) -> list[Point]:
    """Return at most MAX_POINTS points: the lowest and the highest of each stretch, so that spikes stay visible."""
    found = [(float(x), float(y)) for x, y in points]
    if len(found) <= MAX_POINTS:
        return found
    stretch = -(-2 * len(found) // (MAX_POINTS - 2))
    chosen = {0, len(found) - 1}
    for first in range(0, len(found), stretch):
        indices = range(first, min(first + stretch, len(found)))
        chosen |= {min(indices, key=lambda index: found[index][1]), max(indices, key=lambda index: found[index][1])}
    return [found[index] for index in sorted(chosen)]
