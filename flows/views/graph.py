"""Layout of the stage graph: boxes in rows, each below the stages it depends on, with the data that it makes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tasks.plan.plan_file import Plan
from tasks.stage import artifacts

WIDTH, BOX, GAP, COLUMNS = 360, 172, 16, 2
"""Dimensions of the graph in its own units, about pixels; it fits a phone without scaling."""
HIGH, LINE = 26, 13
"""Height of a box with only its name, and of each further line."""
MAX_LINES = 2
"""Maximum outs in a box; the tooltip names all."""
UNSHOWN = f"{artifacts.MEASUREMENTS}/"
"""Outs that no other stage reads."""


@dataclass(frozen=True)
class StageBox:
    """Box of one stage."""

    name: str
    status: str
    """Selects a class of the style sheet, s-<status>."""
    tooltip: str
    link: str | None = None


def lay_out(boxes: Sequence[StageBox], plan: Plan, after: Mapping[str, Sequence[str]] | None = None) -> dict[str, Any]:
    """Return the positions of boxes and lines for templates/graph.html.j2; lines that others imply are left out.

    `after` has the dependencies of boxes that are not stages of the plan, such as publish on its gate.
    """
    names, further = [box.name for box in boxes], after or {}
    known = {name: plan.needs.get(name) or further.get(name, ()) for name in names}
    needs = {name: [other for other in known[name] if other in names] for name in names}
    rank: dict[str, int] = {}
    for name in names:
        rank[name] = 1 + max((rank[other] for other in needs[name] if other in rank), default=-1)
    positions, y = dict[str, dict[str, Any]](), 0.0
    for level in range(max(rank.values(), default=-1) + 1):
        row = [box for box in boxes if rank[box.name] == level]
        for first in range(0, len(row), COLUMNS):
            together = row[first : first + COLUMNS]
            left, highs = (WIDTH - len(together) * BOX - (len(together) - 1) * GAP) / 2, []
            for index, box in enumerate(together):
                outs = [out for out in plan[box.name].outs if not out.startswith(UNSHOWN)] if box.name in plan else []
                highs.append(HIGH + LINE * min(MAX_LINES, len(outs)))
                x = left + index * (BOX + GAP)
                positions[box.name] = {"box": box, "outs": outs, "x": x, "y": y, "high": highs[-1]}
            y += max(highs) + GAP
    lines = [(positions[other], positions[name]) for name in names for other in _direct_needs(name, needs)]
    sizes = {"height": max(0.0, y - GAP), "width": WIDTH, "box": BOX, "most": MAX_LINES}
    return {"boxes": list(positions.values()), "lines": lines, **sizes}


def _direct_needs(name: str, needs: Mapping[str, list[str]]) -> list[str]:
    """Return the direct dependencies of a stage, without those that another dependency implies."""
    behind: set[str] = set()
    left = [further for other in needs[name] for further in needs[other]]
    while left:
        if (stage := left.pop()) not in behind:
            behind.add(stage)
            left += needs[stage]
    return [other for other in needs[name] if other not in behind]
