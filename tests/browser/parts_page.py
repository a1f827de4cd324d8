"""A page of everything that pages share, with text that is hostile or long in every place."""

import math

from tasks.pages.plots import PlotLine, plot_lines
from tasks.pages.render import render_html
from tests.browser.planted import EVIL, LONG

ROWS = [
    ("base-9", 88.5, "2026-11-20 10:00", "podium run --name base-9"),
    ("base-10", 9.25, "2026-11-21 10:00", f"podium run --set publish.title={EVIL}"),
    ("large", 91.0, "2026-11-19 10:00", f"podium run --set corpus.path={LONG}"),
    ("unfinished", "", "2026-11-22 10:00", "podium run --preset bert"),
]
"""Name, score (none of a run that made none), when, and command."""


def page():
    curve = [(float(step), 8 * math.exp(-step / 400)) for step in range(10, 1501, 10)]
    lines = [
        PlotLine(EVIL, curve),
        PlotLine(LONG, [(x, y + 1) for x, y in curve]),
        PlotLine("held out", curve[::40], True),
    ]
    plots = [
        ("Loss", plot_lines(lines, "update", "loss (nats)", f"loss {EVIL}")),
        ("Rate", plot_lines([PlotLine("rate", [(x, 1e-6 * x) for x, _ in curve])], "update", "learning rate", "rates")),
        (
            "Both",
            plot_lines([PlotLine("a", [(0.001, 2.0)]), PlotLine("b", [(0.0015, 3.0)])], "rate", "loss (nats)", "few"),
        ),
    ]
    return render_html(__file__, "parts_shown.html.j2", plots=plots, rows=ROWS, evil=EVIL, long=LONG)
