"""One self-contained HTML page of an evaluation, for people: no script, nothing loaded from elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tasks.downstream.squad.answers import Answer
from tasks.downstream.squad.files import Question
from tasks.downstream.squad.slices import Slice
from tasks.pages.markup import html_text
from tasks.pages.reliability_diagram import reliability_section
from tasks.statistics.calibration import Calibration

SHOWN_MISTAKES = 25
SHOWN_CANDIDATES = 3
AROUND = 110
"""Characters of the context shown on either side of a marked answer."""

STYLE = """
:root { color-scheme: light dark; --ground: #f6f7f9; --card: #ffffff; --ink: #1b2430; --quiet: #5b6675;
  --line: #dde2e9; --bar: #4a7bbf; --track: #e9edf2; --reference: #d3efdd; --reference-line: #14713d;
  --prediction: #fbdedb; --prediction-line: #b3261e; --both: #f6e7b5; --both-line: #8a6500; }
@media (prefers-color-scheme: dark) { :root { --ground: #12161c; --card: #1b2129; --ink: #e7ebf0;
  --quiet: #9ca8b7; --line: #323b47; --bar: #6f9be0; --track: #2a323d; --reference: #1d4a30;
  --reference-line: #6fd39a; --prediction: #5a2522; --prediction-line: #ff9a92;
  --both: #54450f; --both-line: #e5c35a; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--ground); color: var(--ink); font: 16px/1.5 system-ui, sans-serif; }
main { max-width: 1080px; margin: 0 auto; padding: 24px 16px 48px; overflow-wrap: anywhere; }
h1 { font-size: 1.5rem; margin: 0 0 16px; } h2 { font-size: 1.15rem; margin: 32px 0 4px; }
h3 { font-size: 1rem; margin: 0 0 10px; } p { margin: 0 0 12px; } .quiet { color: var(--quiet); font-size: 0.9rem; }
.card { background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 14px 18px; }
.scores { display: grid; grid-template-columns: repeat(auto-fit, minmax(220px, 1fr)); gap: 12px; margin: 0; }
.scores dt { color: var(--quiet); font-size: 0.85rem; } .scores dd { margin: 0; }
.scores .value { font-size: 2rem; line-height: 1.2; font-weight: 600; font-variant-numeric: tabular-nums; }
.figures { columns: 420px 2; column-gap: 12px; }
.figures .card { break-inside: avoid; margin-bottom: 12px; }
.bars { display: grid; gap: 6px 10px; align-items: center; font-size: 0.9rem; font-variant-numeric: tabular-nums; }
.bars .number { text-align: right; } .bars .head { color: var(--quiet); font-size: 0.8rem; }
.bars svg { display: block; width: 100%; height: 18px; }
.track { fill: var(--track); } .bar { fill: var(--bar); }
.interval { stroke: var(--ink); stroke-width: 1.5; vector-effect: non-scaling-stroke; }
.reliability { display: flex; flex-wrap: wrap; gap: 16px 32px; align-items: flex-start; }
.reliability svg { max-width: 100%; height: auto; font-size: 12px; } .reliability text { fill: var(--ink); }
.diagonal { stroke: var(--ink); stroke-width: 2; stroke-dasharray: 6 4; }
.point { fill: var(--card); stroke: var(--ink); stroke-width: 1.5; }
table { border-collapse: collapse; font-size: 0.88rem; font-variant-numeric: tabular-nums; }
td, th { text-align: right; padding: 2px 12px 2px 0; border-bottom: 1px solid var(--line); font-weight: 400; }
th { color: var(--quiet); }
.mistake { margin-top: 12px; } .mistake h3 { margin-bottom: 6px; }
.mistake p { margin-bottom: 8px; } .mistake dl { margin: 0; display: grid; grid-template-columns: max-content 1fr;
  gap: 2px 12px; font-size: 0.9rem; } dt { color: var(--quiet); } dd { margin: 0; }
.excerpt { white-space: pre-line; }
mark { color: var(--ink); border-radius: 3px; padding: 0 2px; border-bottom: 2px solid; }
mark.reference { background: var(--reference); border-color: var(--reference-line); }
mark.prediction { background: var(--prediction); border-color: var(--prediction-line); border-bottom-style: dashed; }
mark.both { background: var(--both); border-color: var(--both-line); border-bottom-style: double;
  border-bottom-width: 4px; }
footer { margin-top: 32px; color: var(--quiet); font-size: 0.85rem; }
@media (max-width: 560px) { .card { padding: 12px; } .bars { font-size: 0.82rem; gap: 6px 7px; }
  .mistake dl { grid-template-columns: 1fr; } .mistake dd { margin-bottom: 4px; } }
"""


@dataclass(frozen=True)
class Mistake:
    """A question whose predicted answer is none of the references."""

    question: Question
    candidates: Sequence[Answer]
    """The n best answers, the prediction first."""
    f1: float
    """0 to 1."""

    @property
    def prediction(self) -> Answer:
        """The best of them."""
        return self.candidates[0]


def worst_mistakes(
    questions: Sequence[Question], answers: Sequence[Sequence[Answer]], exact: Sequence[float], f1: Sequence[float]
) -> list[Mistake]:
    """Wrong answers: lowest F1 first, then those the model was surest of, then in the order of the questions."""
    wrong = [
        Mistake(question, candidates, overlap)
        for question, candidates, match, overlap in zip(questions, answers, exact, f1, strict=True)
        if not match
    ]
    return sorted(wrong, key=lambda mistake: (mistake.f1, -mistake.prediction.probability))


def page(
    metrics: Mapping[str, Any],
    parts: Sequence[Slice],
    f1_counts: Mapping[str, int],
    calibrated: Calibration,
    mistakes: Sequence[Mistake],
) -> str:
    """The page; every text of the data is escaped.

    Args:
        metrics: content of metrics/squad.json.
        parts: scores by slice.
        f1_counts: label of an F1 range -> questions in it.
        calibrated: probabilities of the predictions against exact match.
        mistakes: all of them, worst first; the first SHOWN_MISTAKES are shown.
    """
    sections = [
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>Evaluation of the answers</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{STYLE}</style></head><body><main>",
        "<h1>Evaluation of the answers</h1>",
        _scores(metrics),
        "<h2>Where it is strong, where not</h2>",
        '<p class="quiet">F1 and exact match (EM) in percent per kind of question; bar and thin line: F1 and its 95% '
        "interval, wide where the questions are few. Both intervals of every slice: plots/squad-slices.csv.</p>",
        f'<div class="figures">{_slices(parts)}{_distribution(f1_counts)}</div>',
        reliability_section(calibrated),
        _mistakes(mistakes, metrics["total"]),
        _footer(metrics),
        "</main></body></html>\n",
    ]
    return "\n".join(section for section in sections if section)


def _scores(metrics: Mapping[str, Any]) -> str:
    cards = [
        f'<div class="card"><dt>{title}</dt><dd class="value">{metrics[name]:.2f}</dd>'
        f'<dd class="quiet">95% interval {metrics[name + "_low"]:.2f} to {metrics[name + "_high"]:.2f}</dd></div>'
        for name, title in (("exact_match", "Exact match, percent"), ("f1", "F1, percent"))
    ]
    cards.append(
        f'<div class="card"><dt>Questions</dt><dd class="value">{metrics["total"]:,}</dd>'
        f'<dd class="quiet">{metrics["answered"]:,} answered; SQuAD v1.1 rules</dd></div>'
    )
    return f'<dl class="scores">{"".join(cards)}</dl>'


def _slices(parts: Sequence[Slice]) -> str:
    cards = []
    for by in dict.fromkeys(part.by for part in parts):
        rows = "".join(
            _row(
                part.slice,
                _bar(part.f1, part.f1_low, part.f1_high),
                f"{part.f1:.1f}",
                f"{part.exact_match:.1f}",
                f"{part.questions:,}",
            )  # fmt: skip
            for part in parts
            if part.by == by
        )
        cards.append(_bars(f"By {by}", ("F1", "EM", "questions"), rows))
    return "".join(cards)


def _distribution(f1_counts: Mapping[str, int]) -> str:
    total = sum(f1_counts.values())
    rows = "".join(
        _row(label, _bar(100 * count / total), f"{100 * count / total:.1f}%", f"{count:,}")
        for label, count in f1_counts.items()
    )
    return _bars("Questions by their F1", ("share", "questions"), rows)


def _bars(title: str, heads: Sequence[str], rows: str) -> str:
    head = "".join(f'<span class="head{" number" if text else ""}">{text}</span>' for text in ("", "", *heads))
    columns = f"minmax(0, max-content) minmax(60px, 1fr) repeat({len(heads)}, max-content)"
    bars = f'<div class="bars" style="grid-template-columns:{columns}">{head}{rows}</div>'
    return f'<section class="card"><h3>{html_text(title)}</h3>{bars}</section>'


def _row(label: str, drawing: str, *values: str) -> str:
    numbers = "".join(f'<span class="number">{text}</span>' for text in values)
    return f"<span>{html_text(label)}</span>{drawing}{numbers}"


def _bar(value: float, low: float | None = None, high: float | None = None) -> str:
    """A bar on a track of 0 to 100, stretched to the room there is."""
    whisker = ""
    if low is not None and high is not None:
        whisker = "".join(
            f'<line class="interval" x1="{x1:.2f}" x2="{x2:.2f}" y1="{y1}" y2="{y2}"/>'
            for x1, x2, y1, y2 in ((low, high, 9, 9), (low, low, 5, 13), (high, high, 5, 13))
        )
    return (
        '<svg viewBox="0 0 100 18" preserveAspectRatio="none" aria-hidden="true">'
        '<rect class="track" width="100" height="18"/>'
        f'<rect class="bar" width="{value:.2f}" height="18"/>{whisker}</svg>'
    )


def _mistakes(mistakes: Sequence[Mistake], total: int) -> str:
    if not mistakes:
        return "<h2>Mistakes</h2><p>None: every answer equals a reference.</p>"
    shown = mistakes[:SHOWN_MISTAKES]
    count = f"{len(mistakes):,} of {total:,} answers equal no reference"
    which = "all of them" if len(shown) == len(mistakes) else f"the worst {len(shown)}"
    return (
        f'<h2>Mistakes</h2><p class="quiet">{count}; below, {which}: lowest F1 first, then those the model was '
        "surest of. Best answers have their score (sum of two logits) and probability. "
        'Marked in the context: <mark class="reference">reference</mark>, '
        '<mark class="prediction">prediction</mark>, <mark class="both">both</mark>.</p>'
        + "".join(_mistake(mistake) for mistake in shown)
    )


def _mistake(mistake: Mistake) -> str:
    question, prediction = mistake.question, mistake.prediction
    references = " | ".join(dict.fromkeys(question.answers))
    facts = (
        ("Reference", html_text(references)),
        ("Prediction", html_text(prediction.text) or "(none)"),
        ("F1", f"{100 * mistake.f1:.1f}, probability among the best answers {prediction.probability:.2f}"),
        ("Best answers", " | ".join(_candidate(answer) for answer in mistake.candidates[:SHOWN_CANDIDATES])),
        ("Question id", html_text(question.id)),
    )
    listed = "".join(f"<dt>{name}</dt><dd>{value}</dd>" for name, value in facts)
    return (
        f'<section class="card mistake"><h3>{html_text(question.question)}</h3>'
        f'<p class="excerpt">{excerpt(question, prediction)}</p><dl>{listed}</dl></section>'
    )


def _candidate(answer: Answer) -> str:
    return (
        f'{html_text(answer.text) or "(none)"} <span class="quiet">{answer.score:.2f}, {answer.probability:.2f}</span>'
    )


def excerpt(question: Question, prediction: Answer) -> str:
    """HTML of the context around the first reference and the prediction, both marked."""
    spans = []
    if question.answer_starts:
        start = question.answer_starts[0]
        spans.append(("reference", start, start + len(question.answers[0])))
    if prediction.end > prediction.start:
        spans.append(("prediction", prediction.start, prediction.end))
    context, pieces, shown_to = question.context, [], 0
    for begin, end in _around(context, [(start, stop) for _, start, stop in spans]):
        pieces.append(" … " if begin > shown_to else "")
        pieces.append(_marked(context, begin, end, spans))
        shown_to = end
    return "".join(pieces) + (" …" if shown_to < len(context) else "")


def _around(context: str, spans: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Parts of the context that show every span with its surroundings, cut between words, in order."""
    parts: list[tuple[int, int]] = []
    for start, end in sorted(spans or [(0, 0)]):
        begin, stop = max(0, start - AROUND), min(len(context), end + AROUND)
        begin = context.find(" ", begin, start) + 1 or begin if begin else 0
        cut = context.rfind(" ", end, stop) if stop < len(context) else stop
        stop = cut if cut > end else stop
        if parts and begin <= parts[-1][1]:
            parts[-1] = (parts[-1][0], max(parts[-1][1], stop))
        else:
            parts.append((begin, stop))
    return parts


def _marked(context: str, begin: int, end: int, spans: Sequence[tuple[str, int, int]]) -> str:
    borders = sorted({begin, end, *(x for _, *span in spans for x in span if begin < x < end)})
    pieces = []
    for left, right in zip(borders, borders[1:], strict=False):
        kinds = [kind for kind, start, stop in spans if start <= left and right <= stop]
        text = html_text(context[left:right])
        kind = "both" if len(kinds) > 1 else "".join(kinds)
        pieces.append(f'<mark class="{kind}">{text}</mark>' if kind else text)
    return "".join(pieces)


def _footer(metrics: Mapping[str, Any]) -> str:
    files = "; ".join(f"<code>{html_text(entry['path'])}</code> {entry['sha256'][:12]}" for entry in metrics["files"])
    return (
        "<footer>Intervals: percentile bootstrap over the questions; they say nothing about training again with "
        f"another seed. SHA-256 begins: {files}. For programs: <code>metrics/squad.json</code>, "
        "<code>evaluation/nbest.json</code>.</footer>"
    )
