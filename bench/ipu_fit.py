"""Fit of the constants in ipu_model/estimates/ipu_constants.py to published rows, with the error of every row.

Seconds are linear in the constants, so the coefficient of a constant in a row is the row's seconds with that constant 1
and the others 0. The fit minimises the sum of squared relative errors over the rows, with constants of at least 0. Each
row is estimated with constants fitted to rows of other layouts: all rows with its model, row length and head are left
out, for both generations, all pods and frameworks.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bench.ipu_published import ANSWERS, PRETRAINING, PUBLISHED, Published
from ipu_model.estimates.estimate import Interval
from ipu_model.estimates.ipu_constants import FITTED, FittedConstants
from ipu_model.estimates.ipu_time import call_interval, update_seconds

NAMES = tuple(spec.name for spec in dataclasses.fields(FittedConstants))
NOTHING = FittedConstants(*[0.0] * len(NAMES))


@dataclass(frozen=True)
class RowEstimate:
    """A published row with its estimates."""

    row: Published
    estimated: float
    """Sequences per second, with constants fitted to rows of other layouts."""
    held_out_interval: Interval
    """Interval of sequences per second, with the same constants."""
    fitted_interval: Interval
    """Interval of sequences per second with the constants in use, which are fitted to this row as well."""

    @property
    def error(self) -> float:
        """Relative error of the estimate."""
        return self.estimated / self.row.rate - 1

    def is_inside(self, interval: Interval) -> bool:
        """Return whether an interval covers the published rate."""
        return interval.low <= self.row.rate <= interval.high


def estimate_seconds(row: Published, fitted: FittedConstants) -> float:
    """Return the seconds of an update of the row, including its share of the call overhead."""
    training = dataclasses.replace(row.training(), fitted=fitted)
    host = fitted.host / training.updates_per_call if row.pytorch else 0.0
    return update_seconds(training).likely + host


def find_coefficients(row: Published) -> tuple[float, ...]:
    """Return the coefficient of each constant in the seconds of an update."""
    nothing = estimate_seconds(row, NOTHING)
    return tuple(estimate_seconds(row, dataclasses.replace(NOTHING, **{name: 1.0})) - nothing for name in NAMES)


def fit(rows: Sequence[Published]) -> FittedConstants:
    """Return the constants that fit these rows best."""
    left = list(range(len(NAMES)))
    relative = np.array([np.array(find_coefficients(row)) / row.update_seconds for row in rows])
    explained = np.array([1.0 - estimate_seconds(row, NOTHING) / row.update_seconds for row in rows])
    while True:
        found = np.linalg.lstsq(relative[:, left], explained, rcond=None)[0]
        if found.min() >= 0:
            break
        left.pop(int(found.argmin()))
    values = dict(zip((NAMES[place] for place in left), map(float, found), strict=True))
    return dataclasses.replace(NOTHING, **values)


def estimate_rows(rows: Sequence[Published] = PUBLISHED) -> list[RowEstimate]:
    """Estimate every row from rows of other layouts."""
    others = {row.layout: fit([x for x in rows if x.fitted and x.layout != row.layout]) for row in rows}
    found = []
    for row in rows:
        fitted = others[row.layout]
        estimated = row.rows_per_update * row.packing_factor / estimate_seconds(row, fitted)
        found.append(RowEstimate(row, estimated, _interval_of(row, fitted), _interval_of(row, FITTED)))
    return found


def _interval_of(row: Published, fitted: FittedConstants) -> Interval:
    """Return the estimated interval of sequences per second for the row."""
    call = call_interval(dataclasses.replace(row.training(), fitted=fitted))
    sequences = row.rows_per_update * row.packing_factor * row.updates_per_call
    return Interval(*(sequences / seconds for seconds in (call.high, call.likely, call.low)))


def summarise_errors(judged: Sequence[RowEstimate], head: str) -> tuple[float, float]:
    """Return the median and maximum absolute error of the rows of a head."""
    found = [abs(one.error) for one in judged if one.row.head == head]
    return statistics.median(found), max(found)


def time_lines() -> list[str]:
    """Return the table of times in docs/ipu-estimates.md."""
    judged = estimate_rows()
    lines = ["| BERT, row length | system | framework, source | published | estimated | error | interval |"]
    lines.append("|---|---|---|---|---|---|---|")
    for one in judged:
        row = one.row
        pod = f"{'POD' if row.generation.name == 'Mk2' else 'Bow Pod'}{row.replicas * len(row.placed)}"
        what = f"{row.model}, {row.length}" + (", packed" if row.packed else "") + (", SQuAD" * (row.head == ANSWERS))
        between = f"{one.held_out_interval.low:,.0f} to {one.held_out_interval.high:,.0f}"
        cells = (what, pod, f"{row.framework}, {row.source}", f"{row.rate:,.0f}", f"{one.estimated:,.0f}")
        lines.append(f"| {' | '.join(cells)} | {one.error:+.1%} | {between} |")
    for name, head in (("Pre-training", PRETRAINING), ("SQuAD", ANSWERS)):
        median, worst = summarise_errors(judged, head)
        rows = [x for x in judged if x.row.head == head]
        inside, by_fit = (
            sum(x.is_inside(x.held_out_interval) for x in rows),
            sum(x.is_inside(x.fitted_interval) for x in rows),
        )
        covered = f"{inside} of {len(rows)} rows, of {len({x.row.layout for x in rows})} layouts"
        by_all = f"by the constants fitted to all rows {by_fit} of {len(rows)}"
        lines += ["", f"{name}: median error {median:.1%}, worst {worst:.1%}."]
        lines += [f"Leave-one-out coverage: {covered}; {by_all}."]
    fitted = fit([row for row in PUBLISHED if row.fitted])
    stated = [f"{name} {getattr(fitted, name):.3g} (stated {getattr(FITTED, name):.3g})" for name in NAMES]
    return [*lines, "", f"Constants fitted to all of these: {', '.join(stated)}."]
