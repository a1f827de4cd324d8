"""reports/compare-A-B.html: runs beside each other on a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from flows import comparing, runs
from tasks.pages.plots import COLORS, Line, Plot, line_plot
from tasks.pages.render import html_page


def page(values: dict[str, Any], links: Mapping[str, str], index: bool = False) -> str:
    """One self-contained page.

    Args:
        values: what `compared` said.
        links: as `links` has them.
        index: the page of all runs lies beside this one.
    """
    return html_page(
        __file__,
        "compare.html.j2",
        **values,
        colors={run: number % COLORS for number, run in enumerate(values["runs"])},
        links=links,
        called=runs.called,
        index=index,
        drawn=[(curve["stage"], _drawn(curve, values["runs"])) for curve in values["curves"]],
        interval=comparing.interval,
        verdict=comparing.verdict,
        on_what=comparing.on_what,
    )


def _drawn(curve: dict[str, Any], names: Sequence[str]) -> Plot:
    """Curves on one scale that begins at zero: loss as lines, that on held-out rows as rings."""
    lines = []
    for line in curve["lines"]:
        color = names.index(line["run"])
        name = runs.called(line["run"])
        lines.append(Line(name, line["loss"], color=color))
        if line["held_out"]:
            lines.append(Line(f"{name}, held out", line["held_out"], marks=True, color=color))
    return line_plot(lines, "update", "loss (nats)", f"loss of {curve['stage']} in each run")
