"""A page of everything that pages share, with text that is hostile or long in every place."""

from __future__ import annotations

import math

from tasks.pages.plots import Line, bar_plot, line_plot
from tasks.pages.render import html_page
from tests.browser.planted import EVIL, LONG

ROWS = [
    ("base-9", 88.5, "2026-11-20 10:00", "podium run --name base-9"),
    ("base-10", 9.25, "2026-11-21 10:00", f"podium run --set publish.title={EVIL}"),
    ("large", 91.0, "2026-11-19 10:00", f"podium run --set corpus.path={LONG}"),
    ("unfinished", "", "2026-11-22 10:00", "podium run --preset bert"),
]
"""Name, score (none of a run that made none), when, and command."""


def page() -> str:
    """The page."""
    curve = [(float(step), 8 * math.exp(-step / 400)) for step in range(10, 1501, 10)]
    lines = [
        Line(EVIL, curve),
        Line(LONG, [(x, y + 1) for x, y in curve]),
        Line("held out", curve[::40], True),
    ]
    tips = [f"{EVIL}: 3 examples", "two: 50 examples", "three: 7 examples"]
    plots = [
        ("Loss", line_plot(lines, "update", "loss (nats)", f"loss {EVIL}")),
        ("Rate", line_plot([Line("rate", [(x, 1e-6 * x) for x, _ in curve])], "update", "learning rate", "rates")),
        ("Both", line_plot([Line("a", [(0.001, 2.0)]), Line("b", [(0.0015, 3.0)])], "rate", "loss (nats)", "few")),
        ("Lengths", bar_plot([3, 50, 7], tips, [EVIL, LONG, "c"], "length (words)", "examples", "lengths")),
    ]
    return html_page(__file__, "parts_shown.html.j2", plots=plots, rows=ROWS, evil=EVIL, long=LONG)
