"""The reliability diagram of an evaluation page, as SVG: stated probability across, share of right answers up."""

from __future__ import annotations

from tasks.statistics.calibration import Bin, Calibration

SIDE, LEFT, TOP, BELOW = 300, 52, 10, 46
"""Pixels: of the square of shares, and of what stands around it."""


def reliability_section(found: Calibration) -> str:
    """Heading, explanation, diagram and the figures of every bin."""
    rows = "".join(_line(one) for one in found.bins)
    return (
        '<h2>How far its probabilities can be trusted</h2><p class="quiet">Of the answers that the model gives a '
        "probability of 0.8, eight in ten should be right: then the bars end on the diagonal. Above it the model is "
        "better than it says, below it is too sure. The probability is that of the best answer among the n best. "
        f"Expected calibration error {found.error:.3f} (0 is perfect), Brier score {found.brier:.3f}.</p>"
        f'<div class="card reliability">{_diagram(found)}<table><tr><th>probability</th><th>questions</th>'
        f"<th>stated</th><th>right</th><th>95% interval</th></tr>{rows}</table></div>"
    )


def _line(one: Bin) -> str:
    if one.confidence is None or one.accuracy is None or one.accuracy_low is None or one.accuracy_high is None:
        return f"<tr><td>{one.low:.1f} to {one.high:.1f}</td><td>0</td><td></td><td></td><td></td></tr>"
    return (
        f"<tr><td>{one.low:.1f} to {one.high:.1f}</td><td>{one.count:,}</td><td>{one.confidence:.3f}</td>"
        f"<td>{one.accuracy:.3f}</td><td>{one.accuracy_low:.3f} to {one.accuracy_high:.3f}</td></tr>"
    )


def _diagram(found: Calibration) -> str:
    marks = "".join(_mark(one) for one in found.bins)
    ticks = "".join(
        f'<text x="{LEFT + SIDE * x:.0f}" y="{TOP + SIDE + 16}" text-anchor="middle">{x:g}</text>'
        f'<text x="{LEFT - 6}" y="{TOP + SIDE * (1 - x) + 4:.0f}" text-anchor="end">{x:g}</text>'
        for x in (0, 0.5, 1)
    )
    return (
        f'<svg viewBox="0 0 {LEFT + SIDE + 12} {TOP + SIDE + BELOW}" width="{LEFT + SIDE + 12}" role="img" '
        f'aria-label="reliability diagram, expected calibration error {found.error:.3f}">'
        f'<rect class="track" x="{LEFT}" y="{TOP}" width="{SIDE}" height="{SIDE}"/>{marks}'
        f'<line class="diagonal" x1="{LEFT}" y1="{TOP + SIDE}" x2="{LEFT + SIDE}" y2="{TOP}"/>{ticks}'
        f'<text x="{LEFT + SIDE / 2:.0f}" y="{TOP + SIDE + 36}" text-anchor="middle">stated probability</text>'
        f'<text transform="translate(12 {TOP + SIDE / 2:.0f}) rotate(-90)" text-anchor="middle">share right</text>'
        "</svg>"
    )


def _mark(one: Bin) -> str:
    """Bar of the share, its interval, and a dot at the mean stated probability."""
    if one.confidence is None or one.accuracy is None or one.accuracy_low is None or one.accuracy_high is None:
        return ""
    left, width = LEFT + SIDE * one.low, SIDE * (one.high - one.low)
    top, middle = TOP + SIDE * (1 - one.accuracy), LEFT + SIDE * one.confidence
    low, high = (TOP + SIDE * (1 - x) for x in (one.accuracy_low, one.accuracy_high))
    return (
        f'<rect class="bar" x="{left + 1:.1f}" y="{top:.1f}" width="{width - 2:.1f}" height="{TOP + SIDE - top:.1f}">'
        f"<title>{one.count:,} questions, {one.accuracy:.1%} right</title></rect>"
        f'<line class="interval" x1="{middle:.1f}" x2="{middle:.1f}" y1="{low:.1f}" y2="{high:.1f}"/>'
        f'<circle class="point" cx="{middle:.1f}" cy="{top:.1f}" r="3.5"/>'
    )
