"""Changes of a score: against the run before, the released model, a teacher, and the baseline.

The released model, the teacher and the baseline are compared by the gate's paired tests, the run before by the
same test at the end of the run (flows/runs/run_before.py). A result that the run replaced in its own folder is compared
by the 95% intervals of both, as if they were measured on independent examples.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

Note = tuple[str, str]
"""Text and color."""


def list_changes(result: Mapping[str, Any], metric: str, previous: Mapping[str, Any], began: str) -> list[Note]:
    """Return the changes of a score of a result; that against the baseline only if there is no other.

    Args:
        result: result in the record of its run, see RunReport.results.
        previous: last result in the same folder, see RunReport.previous.
        began: start of that run, for people.
    """
    before = _compare_before(result, metric) or [*_compare_previous(result, metric, previous, began)]
    return [*before, *_compare_released(result, metric)] or [*_compare_baseline(result, metric)]


def format_bounds(bounds: Sequence[float] | None) -> list[Note]:
    """Return a 95% interval as text; empty without one."""
    return [] if bounds is None else [(f"95% interval {bounds[0]:.2f} to {bounds[1]:.2f}", "")]


def _compare_before(result: Mapping[str, Any], metric: str) -> list[Note]:
    before = result.get("before")
    return [_format_change(before, f"run {before['run']}")] if before and before["metric"] == metric else []


def _compare_released(result: Mapping[str, Any], metric: str) -> Iterator[Note]:
    """Yield the gate's comparisons of a score with the released model, and with a teacher and its score."""
    for check in result.get("checks", ()):
        difference = check.get("difference")
        if not difference or difference["metric"] != metric:
            continue
        if check["name"].startswith("released_model"):
            yield _format_change(difference, "the released model")
        elif check["name"] == "teacher" and difference["mean"] is not None:
            score = result["scores"][metric] - difference["mean"]
            yield _format_change(difference, f"the teacher ({score:.2f})")


def _compare_previous(
    result: Mapping[str, Any], metric: str, previous: Mapping[str, Any], began: str
) -> Iterator[Note]:
    """Yield the difference of a score from the last result in the same folder."""
    name = result["name"]
    if (before := previous.get("scores", {}).get(name, {}).get(metric)) is None:
        return
    gain, other = result["scores"][metric] - before, f"the run of {began}"
    known = [
        intervals[metric]
        for intervals in (result.get("intervals", {}), previous["intervals"][name])
        if metric in intervals
    ]
    if len(known) < 2:
        yield f"{gain:+.2f} against {other}", ""
    else:
        from tasks.downstream.scoring.significance import ConfidenceInterval  # imports numpy

        half = math.hypot(*((high - low) / 2 for low, high in known))
        interval = ConfidenceInterval(gain, gain - half, gain + half)
        text, kind = _format_change({**asdict(interval), "verdict": interval.direction}, other)
        yield f"{text}, not paired", kind


def _compare_baseline(result: Mapping[str, Any], metric: str) -> Iterator[Note]:
    """Yield the gain of a score over the baseline of the gate."""
    for check in result.get("checks", ()):
        if check["name"] == "beats_constant_answer" and check.get("difference", {}).get("metric") == metric:
            yield _format_change(check["difference"], "the baseline")


def _format_change(change: Mapping[str, Any], other: str) -> Note:
    """Return a difference with its verdict, as the gate writes it, and the color of the verdict."""
    verdict = change["verdict"]
    kind = {"better": "good", "worse": "bad"}.get(verdict, "")
    words = f"{verdict} than {other}" if kind else f"no difference from {other} shown"
    if not kind and change["mean"] is not None and change["low"] * change["high"] > 0:  # the interval alone shows one
        words += " by McNemar's exact test"
    mean, low, high = ("none" if change[name] is None else f"{change[name]:+.2f}" for name in ("mean", "low", "high"))
    return f"{words}: {mean} ({low} to {high})", kind
