"""Reports of the results as text, Markdown and JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from bench.results import Measurement, Results
from bench.statistics import summarise
from bench.targets import OURS, TARGETS, Target

Row = tuple[str, ...]


def to_json(results: Results, facts: dict[str, Any]) -> dict[str, Any]:
    """Return all results with every sample; `facts` are those of the host and the run."""
    return {
        "facts": facts,
        "bars": [evaluate_target(bar, results) for bar in TARGETS],
        "measured": [_measured(one) for one in results.measured],
    }


def _measured(one: Measurement) -> dict[str, Any]:
    summaries = {}
    if one.rounds:
        summaries = {"cpu_rate": asdict(summarise(one.cpu_rates)), "wall_rate": asdict(summarise(one.wall_rates))}
    return {**asdict(one), **summaries}


def evaluate_target(bar: Target, results: Results) -> dict[str, Any]:
    """Return a target with its measured value; `met` is None without a measurement."""
    found = bar.measure(results)
    return {
        "text": bar.text,
        "bar": bar.bar,
        "at_most": bar.at_most,
        "stretch": bar.stretch,
        "unit": bar.unit,
        "measured": None if found is None else asdict(found),
        "met": None if found is None else bar.meets(found.median, bar.bar),
        "stretch_met": None if found is None or bar.stretch is None else bar.meets(found.median, bar.stretch),
    }


def target_rows(results: Results) -> list[Row]:
    """Return the rows of the table of targets, with a header."""
    rows: list[Row] = [("target", "measured", "lowest", "highest", "bar", "stretch", "met")]
    for state in (evaluate_target(bar, results) for bar in TARGETS):
        found, unit = state["measured"], state["unit"]
        values = (
            ("not measured", "", "")
            if found is None
            else tuple(f"{found[key]:.2f}{unit}" for key in ("median", "low", "high"))
        )
        stretch = "" if state["stretch"] is None else f"{state['stretch']:g}{unit}"
        met = {None: "", True: "yes", False: "NO"}[state["met"]] + (", stretch too" if state["stretch_met"] else "")
        rows.append(
            (state["text"], *values, f"{'under ' if state['at_most'] else ''}{state['bar']:g}{unit}", stretch, met)
        )
    return rows


def rate_rows(results: Results) -> list[Row]:
    """Return the rows of the table of rates, with a header."""
    rows: list[Row] = [("case", "threads", "configuration", "rate", "lowest", "highest", "podium is", "peak MB")]
    for one in results.measured:
        where = (one.case, str(one.threads), one.variant)
        if not one.rounds:
            rows.append((*where, "failed", "", "", "", ""))
            continue
        found = summarise(one.rates)
        unit = f"{one.unit}/{'cpu-s' if one.threads == 1 else 's'}"
        ratio = results.ratio(one.case, OURS, one.variant, one.threads)
        times = (
            "" if ratio is None or one.variant == OURS else f"{ratio.median:.2f}x ({ratio.low:.2f}-{ratio.high:.2f})"
        )
        memory = one.facts.get("peak_memory_mb")
        rates = (f"{format_figure(found.median)} {unit}", format_figure(found.low), format_figure(found.high))
        rows.append((*where, *rates, times, "" if memory is None else f"{memory:,.0f}"))
    return rows


def precision_lines(results: Results) -> list[str]:
    """Return a line per case with the precision that `auto` chose, and the reason."""
    found = [(one, one.facts.get("precision_reason", "")) for one in results.measured if one.variant == OURS]
    return [
        f"{one.case}, {one.threads} thread{'s' * (one.threads > 1)}: {one.facts['precision']}, {reason}"
        for one, reason in found
        if reason
    ]


def format_figure(value: float) -> str:
    """Format a number: without decimals from 100 upwards, else with three digits."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def format_text_table(rows: Sequence[Row]) -> str:
    """Return a table with padded columns for a terminal."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join("  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows)


def format_markdown(results: Results, facts: dict[str, Any]) -> str:
    """Return the tables and the conditions of the run in Markdown."""
    lines = [f"* {name.replace('_', ' ')}: {_plain(value)}" for name, value in facts.items()]
    tables = [format_markdown_table(rows(results)) for rows in (target_rows, rate_rows)]
    chosen = "\n".join(f"* {line}" for line in precision_lines(results))
    return "\n\n".join(["# Benchmark", *tables, *([chosen] if chosen else []), "\n".join(lines)]) + "\n"


def _plain(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {inner}" for key, inner in value.items())
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def format_markdown_table(rows: Sequence[Row]) -> str:
    """Return a table in Markdown."""
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join([lines[0], "|" + "---|" * len(rows[0]), *lines[1:]])
