"""Layout of the stage graph: boxes in rows, each below the stages it depends on, with the data passed between them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from tasks.plan.plan_file import Plan

WIDTH, BOX, GAP, COLUMNS = 360, 172, 16, 2
"""Dimensions of the graph in its own units, about pixels; it fits a phone without scaling."""
HIGH, LINE = 26, 13
"""Height of a box with only its name, and of each further line."""
MAX_LINES = 2
"""Maximum outs in a box; the tooltip names all."""


@dataclass(frozen=True)
class StageBox:
    """Box of one stage."""

    name: str
    status: str
    """Selects a class of the style sheet, s-<status>."""
    tooltip: str
    """Tooltip text."""
    link: str | None = None


def lay_out(boxes: Sequence[StageBox], plan: Plan, after: Mapping[str, Sequence[str]] | None = None) -> dict[str, Any]:
    """Return the positions of boxes and lines for templates/graph.html.j2; lines that others imply are left out.

    Args:
        after: dependencies of boxes that are not stages of the plan, such as publish on its gate.
    """
    names, further = [one.name for one in boxes], after or {}
    known = {name: plan.needs.get(name) or further.get(name, ()) for name in names}
    needs = {name: [other for other in known[name] if other in names] for name in names}
    outs = {name: _shared_outs(name, names, plan) for name in names}
    place, height = _place_boxes(names, needs, outs)
    shown = [{"box": one, "outs": outs[one.name], **place[one.name]} for one in boxes]
    lines = [(place[other], place[name]) for name in names for other in _direct_needs(name, needs)]
    return {"boxes": shown, "lines": lines, "height": height, "width": WIDTH, "box": BOX, "most": MAX_LINES}


def _place_boxes(
    names: Sequence[str], needs: Mapping[str, list[str]], outs: Mapping[str, list[str]]
) -> tuple[dict[str, dict[str, float]], float]:
    """Return left, top and height of each box, and the total height."""
    rank: dict[str, int] = {}
    for name in names:
        rank[name] = 1 + max((rank[other] for other in needs[name] if other in rank), default=-1)
    place: dict[str, dict[str, float]] = {}
    y = 0.0
    for level in range(max(rank.values(), default=-1) + 1):
        row = [name for name in names if rank[name] == level]
        for first in range(0, len(row), COLUMNS):
            together = row[first : first + COLUMNS]
            left = (WIDTH - len(together) * BOX - (len(together) - 1) * GAP) / 2
            for index, name in enumerate(together):
                high = HIGH + LINE * min(MAX_LINES, len(outs[name]))
                place[name] = {"x": left + index * (BOX + GAP), "y": y, "high": high}
            y += max(place[name]["high"] for name in together) + GAP
    return place, max(0.0, y - GAP)


def _shared_outs(name: str, names: Sequence[str], plan: Plan) -> list[str]:
    """Return the outs of a stage that other stages of the graph read."""
    if name not in plan:
        return []
    readers = [plan[other] for other in names if other in plan and name in plan.needs[other]]
    read = {path for reader in readers for path in reader.reads}
    return [out for out in plan[name].outs if any(_overlap(out, path) for path in read)]


def _overlap(one: str, other: str) -> bool:
    first, second = PurePosixPath(one), PurePosixPath(other)
    return first == second or first in second.parents or second in first.parents


def _direct_needs(name: str, needs: Mapping[str, list[str]]) -> list[str]:
    """Return the direct dependencies of a stage, without those that another dependency implies."""
    behind: set[str] = set()
    left = [further for other in needs[name] for further in needs[other]]
    while left:
        if (one := left.pop()) not in behind:
            behind.add(one)
            left += needs[one]
    return [other for other in needs[name] if other not in behind]
