"""Plots for pages: SVG colored by the style sheet, with a tooltip for each value.

Equal values give equal text, which loads and runs nothing. The page's script (templates/page.js) shows the tooltip in
data-tip at the pointer or by the arrow keys, and zooms.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
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
MAX_LABEL, MAX_UPRIGHT, LABEL_HEIGHT = 16, 24, 14
"""Maximum characters of a name below an axis; maximum upright names; height of a horizontal one."""
LABEL_CHARACTERS = 48
"""Characters of labels that fit below a plot."""
MAX_ROWS = 8
"""Maximum labels of the y axis."""
PARALLEL_SIDE = 52
"""Margin at both sides of a plot of parallel coordinates, for half of a name."""
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
    names: Mapping[float, str] | None = None,
) -> Plot:
    """Return a plot of lines.

    Args:
        across, up: names of the x and y axes, with units.
        label: description of the plot for screen readers.
        from_zero: whether the y axis starts at zero, so that plots can be compared by eye.
        room: margin at both ends of the x axis.
        names: x -> its label, for an axis of things instead of numbers; those that do not fit are left out.
    """
    drawn = [_select_points(line, across, up) for line in lines]
    shown = [point for path, dots in drawn for point in (*path, *((x, y) for x, y, _ in dots))]
    (first, last), (low, high) = _range([x for x, _ in shown]), _range([y for _, y in shown])
    columns = _ticks([x for x, _ in shown]) if names is None else _select_names(sorted(names))
    labels = {tick: format_tick(tick) if names is None else _shorten(names[tick], MAX_LABEL) for tick in columns}
    upright = names is not None and sum(len(label) + 3 for label in labels.values()) > LABEL_CHARACTERS
    height = HEIGHT + round(CHARACTER * max(map(len, labels.values()), default=0) - LABEL_HEIGHT) * upright
    low, high = (min(low, 0.0), max(high, 0.0)) if from_zero else (low, high)
    rows = _round_ticks(low, high, 0.0, lambda ticks: len(ticks) <= MAX_ROWS)
    margin = round(26 + CHARACTER * max((len(format_tick(tick)) for tick in rows), default=0))
    width, middle = WIDTH - margin - RIGHT, TOP + AREA_HEIGHT / 2
    to_x = _make_scale((first - room, last + room), (INSET_X, width - INSET_X))
    to_y = _make_scale((low, high), (AREA_HEIGHT - INSET_Y, INSET_Y))
    tree = _add(None, "svg", "plot", xmlns="http://www.w3.org/2000/svg", viewBox=f"0 0 {WIDTH} {height}")
    tree.attrib |= {"role": "img", "aria-label": replace_hidden(label), "tabindex": "0"}
    if names is None:  # a script can zoom: ends of the axes, and their places
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
        text = _add(_add(axis, "g", "guides"), "text", x=to_x(tick), y=AREA_HEIGHT + 15)
        text.text = labels[tick]
        if upright:
            corner = f"{float(to_x(tick)) + 4:.1f}", str(AREA_HEIGHT + 6)
            turned = {"transform": f"rotate(-90 {' '.join(corner)})", "class": "upright"}
            text.attrib |= {"x": corner[0], "y": corner[1], **turned}
    _add(tree, "text", "title", x=margin + width / 2, y=height - 4).text = _shorten(across)
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
    return Markup("".join(ElementTree.tostring(part, encoding="unicode", short_empty_elements=False) for part in parts))


@dataclass(frozen=True)
class ParallelAxis:
    """Axis of a plot of parallel coordinates."""

    name: str
    values: Sequence[float]
    """Value of each line."""
    log: bool = False
    """Its scale is logarithmic; all values are then above 0."""


def plot_parallel(axes: Sequence[ParallelAxis], tips: Sequence[str], best: int, label: str) -> Plot:
    """Return a plot of parallel coordinates: a line for each thing, with a tooltip, through its value on each axis.

    The line number `best` is highlighted; `label` describes the plot for screen readers.
    """
    tree = _add(None, "svg", "plot parallel", xmlns="http://www.w3.org/2000/svg", viewBox=f"0 0 {WIDTH} {HEIGHT}")
    tree.attrib |= {"role": "img", "aria-label": replace_hidden(label), "tabindex": "0"}
    plot, side = _add(tree, "g", "plot", transform=f"translate(0, {TOP + 16})"), PARALLEL_SIDE
    places, scales = [], []
    for number, axis in enumerate(axes):
        x = side + (WIDTH - 2 * side) * number / max(len(axes) - 1, 1)
        to_number: Callable[[float], float] = math.log10 if axis.log else float
        scale = _make_scale(
            _range([to_number(axis_value) for axis_value in axis.values]), (AREA_HEIGHT - INSET_Y, INSET_Y)
        )
        guides = _add(plot, "g", "axis x")
        _add(guides, "path", "line", d=f"M{x:.1f} 0 V{AREA_HEIGHT}")
        for value, height in ((max(axis.values), -6), (min(axis.values), AREA_HEIGHT + 14)):
            _add(guides, "text", x=f"{x:.1f}", y=height).text = format_tick(value)
        _add(tree, "text", "title", x=f"{x:.1f}", y=HEIGHT - 4).text = _shorten(axis.name, MAX_LABEL)
        places.append(x)
        scales.append((scale, to_number))
    order = sorted(range(len(tips)), key=lambda line: line == best)  # the best is drawn last, over the others
    for line in order:
        group = _add(plot, "g", f"series color-{int(line == best)} marks{' best' * (line == best)}")
        points = [
            (x, float(scale(to_number(axis.values[line]))))
            for axis, x, (scale, to_number) in zip(axes, places, scales, strict=True)
        ]
        _add(group, "path", "line", d="M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points))
        x, y = points[-1]
        _add(group, "circle", "dot", cx=f"{x:.1f}", cy=f"{y:.1f}", r=3).set("data-tip", replace_hidden(tips[line]))
    return Markup(ElementTree.tostring(tree, encoding="unicode", short_empty_elements=False))


def _add(
    parent: ElementTree.Element | None, tag: str, name: str = "", **attributes: str | float
) -> ElementTree.Element:
    """Return a new element with this class, in `parent` if there is one."""
    properties = {**({"class": name} if name else {}), **{key: str(value) for key, value in attributes.items()}}
    return ElementTree.Element(tag, properties) if parent is None else ElementTree.SubElement(parent, tag, properties)


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
        ticks = [step * number for number in range(math.ceil(low / step), math.floor(high / step) + 1)]
        if fits(ticks):
            return ticks
    return [low]


def _select_names(places: Sequence[float]) -> Sequence[float]:
    """Return the places whose names are shown: all, or as many as fit at equal distances."""
    return places[:: -(-len(places) // MAX_UPRIGHT) or 1]


def _shorten(text: str, most: int = MAX_NAME) -> str:
    """Return a short text of one line without outer spaces."""
    line = " ".join(replace_hidden(text).split())
    return line if len(line) <= most else f"{line[: most - 1].strip()}…"


def _thin(points: Sequence[Point]) -> list[Point]:
    """Return at most MAX_POINTS points: the lowest and the highest of each stretch, so that spikes stay visible."""
    pairs = [(float(x), float(y)) for x, y in points]
    if len(pairs) <= MAX_POINTS:
        return pairs
    stretch = -(-2 * len(pairs) // (MAX_POINTS - 2))
    chosen = {0, len(pairs) - 1}
    for first in range(0, len(pairs), stretch):
        indices = range(first, min(first + stretch, len(pairs)))
        chosen |= {min(indices, key=lambda index: pairs[index][1]), max(indices, key=lambda index: pairs[index][1])}
    return [pairs[index] for index in sorted(chosen)]
