"""One self-contained HTML page of a verdict, for people: no script, nothing loaded from elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tasks.pages.markup import html_text
from tasks.validation.checks import number

BAR_HEIGHT, LEFT, RIGHT, TOP, BOTTOM, WIDTH = 120, 8, 8, 18, 34, 340
"""Of a histogram, in SVG units: about pixels, as the figure is drawn near its own size."""
MAX_TICKS = 5

STYLE = """
:root { color-scheme: light dark; --ground: #f6f7f9; --card: #ffffff; --ink: #1b2430; --quiet: #5b6675;
  --line: #dde2e9; --good: #14713d; --good-ground: #e3f5ea; --bad: #b3261e; --bad-ground: #fdeceb; --bar: #4a7bbf; }
@media (prefers-color-scheme: dark) { :root { --ground: #12161c; --card: #1b2129; --ink: #e7ebf0;
  --quiet: #9ca8b7; --line: #323b47; --good: #6fd39a; --good-ground: #15301f; --bad: #ff9a92;
  --bad-ground: #3a1a18; --bar: #7aa7e6; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--ground); color: var(--ink); font: 16px/1.5 system-ui, sans-serif; }
main { max-width: 1080px; margin: 0 auto; padding: 24px 16px 48px; }
h1 { font-size: 1.5rem; margin: 0 0 12px; } h2 { font-size: 1.15rem; margin: 32px 0 12px; }
h1, td, dd, li, p { overflow-wrap: anywhere; }
.verdict { display: flex; gap: 16px; align-items: center; border-radius: 10px; padding: 16px 20px;
  border: 2px solid; }
.verdict strong { font-size: 1.6rem; line-height: 1.2; display: block; }
.verdict span { color: var(--ink); } .verdict svg { flex: none; width: 44px; height: 44px; }
.good { color: var(--good); background: var(--good-ground); }
.bad { color: var(--bad); background: var(--bad-ground); }
.card { background: var(--card); border: 1px solid var(--line); border-radius: 10px; }
.failure { padding: 14px 18px; margin-bottom: 12px; border-left: 6px solid var(--bad); }
.failure h3 { margin: 0 0 6px; font-size: 1rem; } .failure dl { margin: 0; display: grid;
  grid-template-columns: max-content 1fr; gap: 2px 14px; }
dt { color: var(--quiet); } dd { margin: 0; } dd ul { margin: 0; padding-left: 18px; }
code { font: 0.88em ui-monospace, monospace; }
.numbers { display: grid; grid-template-columns: repeat(auto-fill, minmax(155px, 1fr)); gap: 10px; margin: 0; }
.numbers div { padding: 10px 14px; } .numbers dt { font-size: 0.82rem; line-height: 1.3; }
.numbers dd { font-size: 1.2rem; font-variant-numeric: tabular-nums; }
table { width: 100%; border-collapse: separate; border-spacing: 0; overflow: hidden; }
th { text-align: left; font-size: 0.82rem; color: var(--quiet); font-weight: 600; }
th:nth-child(2) { width: 23%; } th:nth-child(4) { width: 29%; }
th, td { padding: 9px 14px; vertical-align: top; border-bottom: 1px solid var(--line); }
tbody tr:last-child td { border-bottom: 0; } td { font-size: 0.92rem; } td small { color: var(--quiet); }
.mark { white-space: nowrap; font-weight: 600; background: none; }
.figures { display: grid; grid-template-columns: repeat(auto-fill, minmax(300px, 1fr)); gap: 12px; }
figure { margin: 0; padding: 12px 14px; } figcaption { font-weight: 600; font-size: 0.92rem; }
figure svg { display: block; width: 100%; height: auto; }
.bars rect { fill: var(--bar); } .axis { stroke: var(--line); }
figure text { fill: var(--quiet); font: 12px system-ui, sans-serif; }
footer { margin-top: 32px; color: var(--quiet); font-size: 0.85rem; }
@media (max-width: 640px) { thead { display: none; } table, tbody, tr, td { display: block; }
  tr { border-bottom: 1px solid var(--line); padding: 8px 0; } tbody tr:last-child { border-bottom: 0; }
  td { border: 0; padding: 2px 14px; display: grid; grid-template-columns: 74px 1fr; gap: 8px; }
  td::before { content: attr(data-label); color: var(--quiet); font-size: 0.82rem; font-weight: 400; }
  .failure dl { grid-template-columns: 1fr; } .failure dd { margin-bottom: 6px; } }
"""
TICK = '<path d="M5 13l5 5L19 7" fill="none" stroke="currentColor" stroke-width="3" stroke-linecap="round"/>'
CROSS = '<path d="M6 6l12 12M18 6L6 18" fill="none" stroke="currentColor" stroke-width="3" stroke-linecap="round"/>'


def page(values: Mapping[str, Any]) -> str:
    """The page of a verdict, as `tasks.validation.checks.verdict` gives it; all text of the data is escaped."""
    name = html_text(values["data"])
    statistics = values["statistics"]
    parts = [
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{name}: '
        f"{'valid' if values['valid'] else 'not valid'}</title>"
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{STYLE}</style></head><body><main>",
        f"<h1>Validation of <code>{name}</code></h1>",
        _verdict(values),
        _failures([check for check in values["checks"] if not check["ok"]]),
        _checks(values["checks"], values["not_checked"]),
        _numbers(statistics["numbers"]),
        _figures(statistics["histograms"]),
        f"<footer>Judged by Great Expectations. Again: <code>python -m tasks.validation.validate {name}</code>. "
        f"For programs: <code>{name}.json</code>.</footer></main></body></html>\n",
    ]
    return "\n".join(part for part in parts if part)


def _verdict(values: Mapping[str, Any]) -> str:
    checks = values["checks"]
    failed = sum(not check["ok"] for check in checks)
    records = f"{values['rows']:,} {html_text(values['record'])}s"
    if values["valid"]:
        kind, word, drawing, text = "good", "Valid", TICK, f"All {len(checks)} checks passed on {records}."
    else:
        left_out = len(values["not_checked"])
        text = f"{failed} of {len(checks)} checks failed"
        text += f"; {left_out} more could not be made." if left_out else f" on {records}."
        text += " No model is trained on these data."
        kind, word, drawing = "bad", "Not valid", CROSS
    return (
        f'<div class="verdict {kind}"><svg viewBox="0 0 24 24" aria-hidden="true">{drawing}</svg>'
        f"<div><strong>{word}</strong><span>{text}</span></div></div>"
    )


def _failures(failed: Sequence[Mapping[str, Any]]) -> str:
    if not failed:
        return ""
    cards = []
    for check in failed:
        examples = "".join(f"<li><code>{html_text(text)}</code></li>" for text in check["examples"])
        cards.append(
            f'<section class="card failure"><h3>{_name(check)}</h3><dl>'
            f"<dt>Required</dt><dd>{html_text(check['required'])}</dd><dt>Found</dt><dd>{html_text(check['found'])}</dd>"
            + (f"<dt>Examples</dt><dd><ul>{examples}</ul></dd>" if examples else "")
            + f"<dt>What to do</dt><dd>{html_text(_sentence(check['advice']))}</dd></dl></section>"
        )
    return "<h2>What failed</h2>" + "".join(cards)


def _checks(checks: Sequence[Mapping[str, Any]], not_checked: Sequence[str]) -> str:
    rows = []
    for check in checks:
        kind, mark = ("good", "✓ passed") if check["ok"] else ("bad", "✕ failed")
        rows.append(
            f'<tr><td class="mark {kind}" data-label="Result"><span>{mark}</span></td>'
            f'<td data-label="Check"><span>{_name(check)}<br><small>{html_text(check["column"])}</small></span></td>'
            f'<td data-label="Required"><span>{html_text(check["required"])}</span></td>'
            f'<td data-label="Found"><span>{html_text(check["found"])}</span></td></tr>'
        )
    head = "".join(f"<th>{title}</th>" for title in ("Result", "Check", "Required", "Found"))
    body = "\n".join(rows)
    table = f'<h2>Checks</h2><table class="card"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'
    if not_checked:
        names = html_text(", ".join(name.replace("_", " ") for name in not_checked))
        table += f"<p>Not made, because they need the failed ones: {names}.</p>"
    return table


def _name(check: Mapping[str, Any]) -> str:
    return html_text(check["name"].replace("_", " "))


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def _numbers(numbers: Sequence[Mapping[str, Any]]) -> str:
    if not numbers:
        return ""
    cards = "".join(
        f'<div class="card"><dt>{html_text(one["name"])}</dt><dd>{number(one["value"])}</dd></div>' for one in numbers
    )
    return f'<h2>Figures</h2><dl class="numbers">{cards}</dl>'


def _figures(histograms: Sequence[Mapping[str, Any]]) -> str:
    if not histograms:
        return ""
    return f'<h2>Distributions</h2><div class="figures">{"".join(map(_figure, histograms))}</div>'


def _figure(histogram: Mapping[str, Any]) -> str:
    """Bars of equal width whatever their bins, with the bins' lower edges below them."""
    counts, edges = histogram["counts"], histogram["edges"]
    highest = max([1, *counts])
    step = (WIDTH - LEFT - RIGHT) / len(counts)
    bars = []
    for i, count in enumerate(counts):
        # What was seen at all stays visible.
        height = max(1.5, BAR_HEIGHT * count / highest) if count else 0.0
        bars.append(
            f'<rect x="{LEFT + i * step:.1f}" y="{TOP + BAR_HEIGHT - height:.1f}" width="{max(1.0, step - 1):.1f}" '
            f'height="{height:.1f}"><title>{_bin(histogram, i)}: {count:,}</title></rect>'
        )
    every = -(-len(counts) // MAX_TICKS)
    ticks = "".join(
        f'<text x="{LEFT + (i + 0.5) * step:.1f}" y="{TOP + BAR_HEIGHT + 14}" text-anchor="middle">'
        f"{_compact(edges[i])}</text>"
        for i in range(0, len(counts), every)
    )
    title, unit = html_text(histogram["title"]), html_text(histogram["unit"])
    note = ", bars cover ever wider ranges" if histogram["widening"] else ""
    return (
        f'<figure class="card"><figcaption>{title}</figcaption>'
        f'<svg viewBox="0 0 {WIDTH} {TOP + BAR_HEIGHT + BOTTOM}" role="img" aria-label="{title}, from '
        f'{edges[0]:,} to {edges[-1] - 1:,} {unit}"><text x="{LEFT}" y="12">{highest:,}</text>'
        f'<g class="bars">{"".join(bars)}</g><line class="axis" x1="{LEFT}" x2="{WIDTH - RIGHT}" '
        f'y1="{TOP + BAR_HEIGHT}" y2="{TOP + BAR_HEIGHT}"/>{ticks}'
        f'<text x="{WIDTH - RIGHT}" y="{TOP + BAR_HEIGHT + 30}" text-anchor="end">{unit}{note}</text></svg></figure>'
    )


def _bin(histogram: Mapping[str, Any], i: int) -> str:
    low, high = histogram["edges"][i], histogram["edges"][i + 1] - 1
    if histogram["open_end"] and i == len(histogram["counts"]) - 1:
        return f"{low:,} and more"
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _compact(value: int) -> str:
    """1250 as 1.2k, so that five of them fit under a histogram."""
    for limit, letter in ((1_000_000, "M"), (10_000, "k")):
        if value >= limit:
            return f"{value / (limit if letter == 'M' else 1000):.3g}{letter}"
    return f"{value:,}"
