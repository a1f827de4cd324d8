"""Cases to results: children of a case side by side, one round of each after the other."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from bench.cases import Case
from bench.children import Child, ChildFailed
from bench.results import Measured, Results
from bench.variants import Variant

Say = Callable[[str], None]


@dataclass
class _Lane:
    """One variant on its way through the rounds."""

    variant: Variant
    measured: Measured
    child: Child | None = None


def run_case(case: Case, threads: int, results: Results, say: Say) -> None:
    """Measure all variants of a case in interleaved rounds; `results` grows with every round.

    A child that fails is noted and left out; the others go on. Whatever ends this function, the children end too.
    """
    lanes = []
    for variant in case.variants:
        if threads in variant.threads:
            lanes.append(_Lane(variant, Measured(case.name, variant.name, threads, variant.unit or case.unit)))
    results.measured += [lane.measured for lane in lanes]
    try:
        for lane in lanes:
            _guarded(lane, say, partial(_start, lane, case, threads))
        started, rounds = time.monotonic(), case.rounds_at(threads)
        for number in range(rounds):
            for lane in lanes:
                _guarded(lane, say, partial(_measure, lane, case, threads, number))
            spent = time.monotonic() - started
            left = spent / (number + 1) * (rounds - number - 1)
            say(f"  round {number + 1} of {rounds}, {left:.0f} s left of this case")
        for lane in lanes:
            _guarded(lane, say, partial(_stop, lane))
    finally:
        for lane in lanes:
            if lane.child is not None:
                lane.child.kill()


def _guarded(lane: _Lane, say: Say, action: Callable[[], None]) -> None:
    """Do it unless the lane has failed; note where it fails now."""
    if lane.measured.failure is not None:
        return
    try:
        action()
    except ChildFailed as failure:
        lane.measured.failure = str(failure)
        say(f"  {lane.measured.case}, {lane.measured.variant} failed: {failure}")
        if lane.child is not None:
            lane.child.kill()


def _start(lane: _Lane, case: Case, threads: int) -> None:
    lane.child = Child(case.spec(lane.variant, threads), lane.variant.environment)
    lane.measured.facts.update(lane.child.facts)


def _measure(lane: _Lane, case: Case, threads: int, number: int) -> None:
    if case.fresh and number:
        _stop(lane)
        _start(lane, case, threads)
    assert lane.child is not None
    lane.measured.rounds.append(lane.child.measure(number))


def _stop(lane: _Lane) -> None:
    assert lane.child is not None
    lane.measured.facts.update(lane.child.stop())
